"""Opens the store that the settings name: the only place where a store's kind is chosen."""

import re
from typing import Protocol
from urllib.parse import urlsplit

from seaweedq.clock import Ids
from seaweedq.concurrency.pools import Pools
from seaweedq.errors import InvalidRequest
from seaweedq.extras import install_command
from seaweedq.settings import Settings
from seaweedq.storage.interface import ObjectStore
from seaweedq.storage.local import LocalStore

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # and no slashes: a URL written wrongly, not a folder


class OpenStore(ObjectStore, Protocol):
    """A store with methods for its process to call before the first request and after the last one."""

    async def sweep_temporary(self) -> int:
        """Removes unnamed files of crashed writers. Returns their number."""

    async def close(self) -> None:
        """Closes the connections of the running event loop."""


def open_store(settings: Settings, ids: Ids, pools: Pools | None = None) -> OpenStore:
    """Opens the store that the settings name. Raises InvalidRequest for an unknown kind, or if an extra is not
    installed. Its blocking calls run in `pools`."""
    url = settings.store_path
    scheme, separator, _ = url.partition("://")
    if scheme == "s3":
        return _s3(settings, pools or Pools())
    if (separator and scheme != "file") or _SCHEME.match(scheme):
        raise InvalidRequest(f"store={url!r} is not supported; use file:///path or s3://bucket/prefix", field="store")
    if scheme == "file" and not url.startswith("file:///"):
        raise InvalidRequest(
            f"store={url!r} names the host {urlsplit(url).netloc!r}; a folder has three slashes: file:///path",
            field="store",
        )
    return LocalStore(url, ids, pools)


def _s3(settings: Settings, pools: Pools) -> OpenStore:
    try:
        import s3fs  # noqa: F401
    except ModuleNotFoundError:
        raise InvalidRequest(f"store={settings.store!r} needs s3fs: {install_command('s3')}", field="store") from None
    from seaweedq.storage.endpoints import Endpoints
    from seaweedq.storage.s3 import s3_stores
    from seaweedq.storage.s3_encryption import Encryption

    endpoints = [endpoint.strip() for endpoint in settings.s3_endpoints.split(",") if endpoint.strip()]
    encryption = Encryption(settings.s3_sse, settings.s3_sse_kms_key)
    stores = s3_stores(settings.store, endpoints, settings.s3_addressing, pools, encryption)
    return stores[0] if len(stores) == 1 else Endpoints(stores)

"""Opens the store and coordination that the settings name. No other module chooses their kinds."""

import logging
import os
import re
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from seaweedq.cli.server.credentials import secret_of
from seaweedq.cli.server.given_settings import is_loopback
from seaweedq.clock import Clock, Ids
from seaweedq.concurrency.pools import Pools
from seaweedq.coordination.interface import Coordination
from seaweedq.coordination.sqlite import EmbeddedCoordination
from seaweedq.errors import InvalidRequest
from seaweedq.extras import install_command
from seaweedq.settings import Settings
from seaweedq.storage.file_cache import FileCache
from seaweedq.storage.interface import ObjectStore
from seaweedq.storage.local import LocalStore

logger = logging.getLogger("seaweedq")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # and no slashes: a URL written wrongly, not a folder


class OpenStore(ObjectStore, Protocol):
    """A store with methods that its process calls before the first request and after the last one."""

    async def sweep_temporary(self) -> int:
        """Removes unfinished files of crashed writers. Returns their number."""

    async def close(self) -> None:
        """Closes the connections of the running event loop."""


def open_store(settings: Settings, ids: Ids, pools: Pools | None = None) -> OpenStore:
    """Opens the store that the settings name. Blocking calls of the store run in `pools`. Raises InvalidRequest for an
    unknown kind, or if an extra is not installed."""
    url = settings.store_path
    scheme, separator, _ = url.partition("://")
    if scheme == "s3":
        return _s3(settings, pools or Pools())
    if (separator and scheme != "file") or _SCHEME.match(scheme):
        raise InvalidRequest(f"store={url!r} is not supported; use file:///path or s3://bucket/prefix", field="store")
    if scheme == "file" and not url.startswith("file:///"):
        raise InvalidRequest(
            f"store={url!r} contains the host {urlsplit(url).netloc!r}; write a local folder with "
            "three slashes: file:///path",
            field="store",
        )
    return LocalStore(url, ids, pools)


def cores(cgroup: Path = Path("/sys/fs/cgroup/cpu.max")) -> float:
    """Returns the number of cores that this process may use: those of its affinity, within the CPU quota of its
    container (cgroup version 2)."""
    known = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = cgroup.read_text().split()
        return min(float(known), int(quota) / int(period))  # a quota of "max" is no number
    return float(known)


def open_cache(settings: Settings, clock: Clock, stack: AsyncExitStack) -> FileCache | None:
    """Opens the cache of a store on the network, if the settings name a folder for it; `stack` closes it. A disk that
    does not work only costs the cache. Raises InvalidRequest if the path cannot be a folder of this process."""
    if not settings.cache_dir or not settings.store_path.startswith("s3://"):
        return None
    try:
        cache = FileCache(Path(settings.cache_dir), settings.cache_bytes, clock)
    except (PermissionError, FileExistsError, NotADirectoryError) as error:
        raise InvalidRequest(
            f"cache_dir={settings.cache_dir!r} is not a folder that the broker can write to: {error}", field="cache_dir"
        ) from None
    except OSError as error:
        logger.warning("nothing is cached on disk, because cache_dir=%r cannot be used: %s", settings.cache_dir, error)
        return None
    stack.callback(cache.close)
    return cache


def _s3(settings: Settings, pools: Pools) -> OpenStore:
    try:
        import s3fs  # noqa: F401
    except ModuleNotFoundError:
        raise InvalidRequest(f"store={settings.store!r} needs s3fs: {install_command('s3')}", field="store") from None
    from seaweedq.storage.endpoints import Endpoints
    from seaweedq.storage.s3 import s3_stores
    from seaweedq.storage.s3_requests import Encryption

    endpoints = [endpoint.strip() for endpoint in settings.s3_endpoints.split(",") if endpoint.strip()]
    encryption = Encryption(settings.s3_sse, settings.s3_sse_kms_key)
    stores = s3_stores(settings.store, endpoints, settings.s3_addressing, pools, encryption)
    return stores[0] if len(stores) == 1 else Endpoints(stores)


ETCD = "etcd://"
POLL_S, ALONE_S = 0.05, 1.0  # a broker that is alone writes everything itself, and sees that at once


def open_coordination(settings: Settings, clock: Clock, pools: Pools) -> Coordination:
    """Opens the coordination that the settings name. If coordination needs a thread, `pools` has it. Raises
    InvalidRequest if an extra is not installed, or if a file cannot be read."""
    if not settings.coordination.startswith(ETCD):
        poll_s = POLL_S if settings.brokers.most > 1 else ALONE_S
        embedded = EmbeddedCoordination(settings.data_dir / "coordination.db", clock, poll_s=poll_s)
        pools.add(embedded.thread)
        return embedded
    try:
        from seaweedq.coordination.etcd import EtcdCoordination
        from seaweedq.coordination.etcd_transport import Access
    except ModuleNotFoundError:
        raise InvalidRequest(
            f"coordination={settings.coordination!r} needs etcd3: {install_command('etcd')}", field="coordination"
        ) from None
    except ImportError as error:
        raise InvalidRequest(f"coordination={settings.coordination!r}: {error}", field="coordination") from None
    _check_encrypted(settings)
    access = Access(
        endpoints=settings.coordination.removeprefix(ETCD).split(","),
        user=settings.etcd_user,
        password=secret_of(settings, "etcd_password"),
        ca_file=settings.etcd_ca_file,
        cert_file=settings.etcd_cert_file,
        key_file=settings.etcd_key_file,
    )
    try:
        return EtcdCoordination(access, settings.etcd_prefix)
    except OSError as error:
        raise InvalidRequest(
            f"a file given by one of the settings etcd_* cannot be read: {error}", field="etcd_ca_file"
        ) from None


def _check_encrypted(settings: Settings) -> None:
    """Raises InvalidRequest if a user or a certificate is set for an etcd without TLS (TLS needs a CA), or if
    permissions would be read from a remote etcd without TLS and allow_plain_etcd is not set."""
    given = [name for name in ("etcd_user", "etcd_cert_file") if getattr(settings, name)]
    endpoints = settings.coordination.removeprefix(ETCD).split(",")
    far = [one for one in endpoints if not is_loopback(urlsplit(f"//{one}").hostname or "")]
    if given and far and not settings.etcd_ca_file:
        raise InvalidRequest(
            f"{given[0]} is set, but etcd_ca_file is not: without a certificate authority the "
            f"connection to etcd has no TLS, so others could read the traffic to {far[0]}",
            field="etcd_ca_file",
        )
    if settings.auth == "required" and far and not settings.etcd_ca_file and not settings.allow_plain_etcd:
        raise InvalidRequest(
            f"auth=required, but the connection to etcd at {far[0]} has no TLS, so anyone who can "
            "modify its traffic can gain every permission; set etcd_ca_file, or set "
            "allow_plain_etcd=true if nobody else can reach the network between this broker and etcd",
            field="allow_plain_etcd",
        )

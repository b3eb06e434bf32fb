"""Which store a URL means: the one place where a backend is chosen."""

from seaweedq.clock import Ids
from seaweedq.errors import InvalidRequest
from seaweedq.storage.local import LocalStore


def open_store(url: str, ids: Ids) -> LocalStore:
    """The store at a URL. Raises InvalidRequest for a kind that there is not."""
    scheme, separator, _ = url.partition("://")
    if separator and scheme != "file":
        raise InvalidRequest(f"store={url!r}: only file:// stores are supported yet", field="store")
    return LocalStore(url, ids)

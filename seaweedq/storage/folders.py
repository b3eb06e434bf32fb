"""The folders directly below a prefix, found with one listing each, in whatever order the store has."""

from collections.abc import AsyncIterator

from seaweedq.storage.interface import ObjectStore

_LAST = "~"  # sorts behind every name that this program gives


async def folders(store: ObjectStore, prefix: str) -> AsyncIterator[str]:
    """Yields each folder (ending in a slash) directly below `prefix`, which is a folder or empty. Passes over objects
    beside them, and over what others have put there under any name."""
    after = ""
    while names := await store.list(prefix, after, 1):
        child, slash, _ = names[0].removeprefix(prefix).partition("/")
        folder = f"{prefix}{child}/"
        if not slash or after.startswith(folder):  # an object, or a name behind _LAST in a folder that is done
            after = names[0]
        else:
            yield folder
            after = folder + _LAST

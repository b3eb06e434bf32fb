"""What the queue needs of an object store, and nothing more.

Names are relative to the store's root, with `/` between parts. An object is immutable: it appears whole,
by `create`, and goes by `delete`.
"""

from typing import BinaryIO, Protocol

Data = bytes | bytearray | memoryview


class ObjectStore(Protocol):
    """An object store with create-if-absent."""

    async def create(self, name: str, data: Data) -> bool:
        """Put an object unless the name is taken. True: it is there now, durable, with these bytes. False: taken.

        Raises StoreUnavailable where the answer is unknown: the object may be there, or may yet appear. Never retries
        by itself.
        """

    async def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes [start, end) of an object. Raises FileNotFoundError, StoreUnavailable."""

    async def size(self, name: str) -> int:
        """Size in bytes. Raises FileNotFoundError, StoreUnavailable."""

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        """Names that begin with `prefix` (any depth) and sort behind `after`, in byte order, at most `limit`; never a
        cached answer."""

    async def delete(self, name: str) -> None:
        """Remove an object; one that is not there is no error."""

    def open(self, name: str) -> BinaryIO:
        """A seekable reader, to be used (and closed) in a worker thread. Raises FileNotFoundError."""

"""What the queue needs of an object store, and nothing more.

Names are relative to the store's root, with `/` between parts. An object is immutable: it appears whole,
by `create`, and goes by `delete`.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request that may be sent without credentials, with exactly these headers. Its URL is a secret: never log it."""

    url: str = field(repr=False)
    method: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a multipart upload that the store has; numbers begin at 1."""

    number: int
    size: int
    etag: str


class PayloadStore(ObjectStore, Protocol):
    """What payloads need beyond it: objects that no broker holds in memory.

    Where `presigns`, clients put and get them at the store itself, and large ones come in parts; else they come through
    `receive`.
    """

    presigns: bool

    def uri(self, name: str) -> str:
        """The object's absolute URI, as Spark and others open it."""

    async def receive(self, name: str, chunks: AsyncIterator[bytes], size: int, sha256: str | None) -> str | None:
        """Make an object of a stream, durable when this returns: its SHA-256 in hex. None: the name is taken already.

        Raises InvalidUpload where it is not `size` bytes long, or has another digest; then there is nothing. So it is
        where it is cut off.
        """

    async def digest(self, name: str) -> tuple[int, str | None]:
        """Size, and the SHA-256 in hex that the store itself found of the whole object, where it knows one. Raises
        FileNotFoundError, StoreUnavailable."""

    async def presign_put(
        self, name: str, expires_s: int, size: int, content_type: str, sha256: str | None
    ) -> SignedRequest:
        """A put of the whole object, of that size and digest."""

    async def presign_get(self, name: str, expires_s: int) -> SignedRequest:
        """A get of the object; ranges may be asked for."""

    async def begin_parts(self, name: str, content_type: str) -> str:
        """Begin a multipart upload: its name at the store."""

    async def presign_part(self, name: str, parts: str, number: int, expires_s: int, size: int) -> SignedRequest:
        """A put of one part, of that size."""

    async def list_parts(self, name: str, parts: str) -> list[Part]:
        """The parts that the store has, by number. Raises FileNotFoundError where there is no such upload."""

    async def end_parts(self, name: str, parts: str, found: Sequence[Part]) -> None:
        """Make the object of these parts; done again it is no error. Raises FileNotFoundError where there is neither
        upload nor object."""

    async def abort_parts(self, name: str, parts: str) -> None:
        """Remove all parts of an upload; one that is not there is no error."""

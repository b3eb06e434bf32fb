"""The interface of an object store: exactly what the queue needs.

Names are relative to the store's root, with `/` between parts, the same for every store. An object is immutable:
`create` makes it whole, `delete` removes it. An invalid name is a bug of this program (names from users are checked
where they arrive), hence a ValueError. Callers never use both `a` and `a/b`: stores need not agree on what that means.

A put that fails is tried again after a pause, each twice as long as the one before. A put that works tells all others
that pause: the store takes puts again, so that none waits for the rest of a long pause. A pause up to `SURE_S` is never
cut short, and follows each that was: a put that fails alone, while others work, is not tried more often than that.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, NoReturn, Protocol

from seaweedq.concurrency.deadline import Sleep, sleep_unless
from seaweedq.concurrency.futures import Signal
from seaweedq.concurrency.pools import Pool

Data = bytes | bytearray | memoryview
# S3's codes, in the field `code` of StoreUnavailable: for the bucket, and for a create that is not supported.
NO_BUCKET, UNSUPPORTED = "NoSuchBucket", "NotImplemented"
TEMPORARY = "_tmp/"
LAST = "~"  # sorts behind every name that this program gives
FIRST_S, SURE_S = 0.05, 0.8


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object in a listing: its size in bytes, and the time at which it was made by the store's own clock, in
    microseconds since 1970 (on S3 in whole seconds)."""

    name: str
    size: int
    modified_us: int


class ObjectStore(Protocol):
    """An object store with create-if-absent.

    `readers` are the threads in which files that `open` has given are read. A read may hang for ever, so that nothing
    else runs there. `worked` is woken by those who repeat puts until they work, after each that did (`Pauses`).
    """

    @property
    def worked(self) -> Signal:
        """A put has worked."""

    @property
    def readers(self) -> Pool:
        """The threads for blocking reads."""

    async def create(self, name: str, data: Data) -> bool:
        """Puts an object unless the name exists. True: it now exists, durably, with these bytes. False: the name
        existed.

        Raises StoreUnavailable if the outcome is unknown: the object may exist, or may still appear. Never retries by
        itself.
        """

    async def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Returns the bytes [start, end) of an object. Raises FileNotFoundError, StoreUnavailable."""

    async def size(self, name: str) -> int:
        """Returns the size in bytes. Raises FileNotFoundError, StoreUnavailable."""

    async def age_s(self, name: str) -> float:
        """Returns how long ago the object was put, by the store's own clock alone, to a second or so. Raises
        FileNotFoundError, StoreUnavailable."""

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        """Returns at most `limit` names that begin with `prefix` (any depth) and come after `after`; never from a
        cache.

        The names in one folder come in byte order, and all names below a folder come together; any other order is the
        store's own. AWS compares whole names, SeaweedFS their parts: `a/b/c`, then `a/b.parquet`. So `after` has a
        meaning inside the prefix alone: it is empty, or begins with `prefix` and is a name that was listed, which may
        be gone since, or a place in a folder. Raises ValueError for any other.
        """

    async def listed(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[ListedObject]:
        """As `list`, with sizes and times; no request more. An object that is deleted meanwhile may be left out."""

    async def delete(self, name: str) -> None:
        """Removes an object; a missing one is no error."""

    def open(self, name: str) -> BinaryIO:
        """Opens a seekable reader, to be used (and closed) in a worker thread. Raises FileNotFoundError."""


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request that may be sent without credentials, with exactly these headers. Its URL is a secret: never log it."""

    url: str = field(repr=False)
    method: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a multipart upload that the store has received; numbers begin at 1."""

    number: int
    size: int
    etag: str


class PayloadStore(ObjectStore, Protocol):
    """An object store for payloads too, which are objects that no broker holds in memory.

    If `presigns`, clients put and get them at the store itself, and large ones are uploaded in parts; otherwise they
    pass through `receive`.
    """

    presigns: bool

    async def check_bucket(self) -> None:
        """Checks that the bucket is there, before the first write: some stores make one for any put. Raises
        StoreUnavailable, which names bucket and endpoint. A folder or a dictionary needs none."""

    def uri(self, name: str) -> str:
        """Returns the object's absolute URI, as Spark and others open it."""

    async def receive(self, name: str, chunks: AsyncIterator[bytes], size: int, sha256: str | None) -> str | None:
        """Creates an object from a stream, durable on return. Returns its SHA-256 in hex. None: the name exists
        already.

        Raises InvalidUpload if the stream has not `size` bytes, or has another digest; then no object is made. Nor is
        one if the stream is interrupted.
        """

    async def copy(self, name: str, to: str) -> None:
        """Makes the object `to` of the bytes of another, which do not pass through here. Where `to` exists it has these
        bytes already, as the caller knows; to repeat it does no harm. Raises FileNotFoundError, StoreUnavailable."""

    async def digest(self, name: str) -> tuple[int, str | None]:
        """Returns the size, and the SHA-256 in hex of the whole object if the store itself has computed it. Raises
        FileNotFoundError, StoreUnavailable."""

    async def presign_put(
        self, name: str, expires_s: int, size: int, content_type: str, sha256: str | None
    ) -> SignedRequest:
        """Signs a put of the whole object, with that size and digest."""

    async def presign_get(self, name: str, expires_s: int) -> SignedRequest:
        """Signs a get of the object, also of ranges of it."""

    async def begin_parts(self, name: str, content_type: str) -> str:
        """Begins a multipart upload. Returns the store's id of it."""

    async def presign_part(self, name: str, parts: str, number: int, expires_s: int, size: int) -> SignedRequest:
        """Signs a put of one part, with that size."""

    async def list_parts(self, name: str, parts: str) -> list[Part]:
        """Returns the parts that the store has, by number.

        Never tells whether the upload is still open. Of one that was ended or aborted some stores still list parts,
        some answer with none, and the others raise FileNotFoundError.
        """

    async def end_parts(self, name: str, parts: str, found: Sequence[Part]) -> None:
        """Makes the object of these parts; may be repeated. Raises FileNotFoundError if neither upload nor object
        exists."""

    async def abort_parts(self, name: str, parts: str) -> None:
        """Removes all parts of an upload; a missing one is no error."""


def check_name(name: str) -> str:
    """Returns the name itself. Raises ValueError for absolute names, empty parts, `.`, `..`, NUL and names below
    `_tmp/`."""
    _check_parts(name, name.split("/"))
    return name


def check_prefix(prefix: str) -> str:
    """Returns the prefix itself; its last part may be empty, or the beginning of a name. Raises ValueError as
    `check_name`.

    A prefix that ends in the part `.` or `..` is refused as well: MinIO lists nothing for it.
    """
    *folders, last = prefix.split("/")
    _check_parts(prefix, [*folders, last] if last else folders)
    return prefix


def check_place(prefix: str, after: str) -> None:
    """Raises ValueError unless a listing of `prefix` may begin after `after`: stores differ in what lies outside."""
    if not after.startswith(prefix) and after:
        raise ValueError(f"after={after!r} does not begin with the prefix {prefix!r}")


def by_parts(name: str) -> str:
    """Returns the key that sorts names by their parts, as the paths of a file system: `a/b/c` before `a/b.parquet`."""
    return name.replace("/", "\0")


def _check_parts(name: str, parts: list[str]) -> None:
    if any(part in ("", ".", "..") for part in parts) or "\0" in name or name.startswith(TEMPORARY):
        raise ValueError(f"{name!r} is not a valid object name")


async def folders(store: ObjectStore, prefix: str, after: str = "") -> AsyncIterator[str]:
    """Yields each folder (ending in a slash) directly below `prefix`, which is a folder or empty; those after `after`,
    as for `list`. Passes over objects beside them, and over what others have put there under any name."""
    while names := await store.list(prefix, after, 1):
        child, slash, _ = names[0].removeprefix(prefix).partition("/")
        folder = f"{prefix}{child}/"
        if not slash or after.startswith(folder):  # an object, or a name behind LAST in a folder that is done
            after = names[0]
        else:
            yield folder
            after = folder + LAST


class Pauses:
    """The pauses of one put, none longer than `last_s`. `worked` is woken by each put to the same store that works."""

    def __init__(self, worked: Signal, sleep: Sleep, last_s: float) -> None:
        self._worked = worked
        self._sleep = sleep
        self._last_s = last_s
        self._next_s = FIRST_S

    async def wait(self) -> None:
        """Pauses before the next try."""
        pause_s = self._next_s
        self._next_s = min(2 * pause_s, self._last_s)
        if pause_s <= SURE_S:
            await self._sleep(pause_s)
            return
        worked = asyncio.Event()
        self._worked.listen(worked.set)
        try:
            if await sleep_unless(worked, self._sleep, pause_s):
                self._next_s = min(SURE_S, self._last_s)
        finally:
            self._worked.unlisten(worked.set)


class NoPresignedUrls:
    """A store whose payloads pass through `receive`. All other payload methods raise NotImplementedError: check
    `presigns` first."""

    presigns: bool = False

    async def check_bucket(self) -> None:
        """As PayloadStore: nothing has to be there before the first object."""

    async def presign_put(
        self, name: str, expires_s: int, size: int, content_type: str, sha256: str | None
    ) -> SignedRequest:
        self._refuse()

    async def presign_get(self, name: str, expires_s: int) -> SignedRequest:
        self._refuse()

    async def begin_parts(self, name: str, content_type: str) -> str:
        self._refuse()

    async def presign_part(self, name: str, parts: str, number: int, expires_s: int, size: int) -> SignedRequest:
        self._refuse()

    async def list_parts(self, name: str, parts: str) -> list[Part]:
        self._refuse()

    async def end_parts(self, name: str, parts: str, found: Sequence[Part]) -> None:
        self._refuse()

    async def abort_parts(self, name: str, parts: str) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__} supports neither signed requests nor multipart uploads")

"""Payloads of messages: references that a publish resolves, links for readers, and the payloads' bytes.

A reference is stored only as the upload's own record and object say, never as the client does. And whatever a row says,
a payload is opened, and a link is given, only below the topic's own `_payloads/{topic}/`.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from seaweedq.access.rights import NEVER_US
from seaweedq.broker.log.reader import Pieces
from seaweedq.broker.read.readable_segments import Readable
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.uploads import rules
from seaweedq.clock import Clock
from seaweedq.concurrency.deadline import Deadline
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.errors import (
    BadRequest,
    BelowRetention,
    InvalidMessages,
    InvalidRequest,
    NotOwner,
    OffsetOutOfRange,
    PayloadNotFound,
    PayloadTooLarge,
    Unavailable,
    UploadConflict,
    UploadExpired,
    UploadIncomplete,
    UploadMismatch,
    UploadNotFound,
)
from seaweedq.rows.intake import invalid_detail
from seaweedq.segments.rows import Reference, Single, references_column
from seaweedq.storage.interface import ObjectStore, PayloadStore

PIECE_BYTES = 1024 * 1024
ROW_BYTES = 1024 * 1024
PAUSE_S = 0.1
CLAIMS = 32  # concurrent ones
MAX_CLAIMS = 10_000  # at most, in one request
MAX_ERRORS = 100
YIELD = 200  # links, which take 10 to 20 us each, between two turns of other tasks
REFUSALS = (UploadNotFound, UploadIncomplete, UploadMismatch, UploadExpired, UploadConflict, PayloadTooLarge)

Claim = Callable[[Topic, str], Awaitable[Reference]]
Link = Callable[[Topic, str, int], Awaitable[str]]
Segments = Callable[[Topic, Sequence[int]], Awaitable[Mapping[int, Readable]]]
Unexpired = Callable[[Pieces], Awaitable[Pieces]]


class Payloads:
    """The payloads of a broker's messages.

    `claim` returns the reference of an upload, `link` a URL of an object for so many seconds at most, `segments`
    the readable segments of these numbers, `unexpired` the rows whose time is not over; a segment that moves is waited
    for `wait_s`.
    """

    def __init__(
        self,
        store: PayloadStore,
        claim: Claim,
        link: Link,
        segments: Segments,
        unexpired: Unexpired,
        clock: Clock,
        wait_s: float,
    ) -> None:
        self._store = store
        self._claim = claim
        self._link = link
        self._segments = segments
        self._unexpired = unexpired
        self._clock = clock
        self._wait_s = wait_s

    async def resolve_single(self, topic: Topic, message: Single) -> Single:
        """Returns the message with the reference of the upload that it names. Raises the errors of `claim`."""
        assert isinstance(message.reference, str)
        return replace(message, reference=await self._claim(topic, message.reference))

    async def resolve(self, topic: Topic, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows with the references of the uploads that they name; each upload is claimed once.

        For one row it raises the errors of `claim`. For several it raises InvalidMessages, with those whose upload
        cannot be published; an error that does not concern the request (Unavailable) goes first. Raises InvalidRequest
        for too many uploads.
        """
        at = rows.schema.get_field_index("_reference")
        column = rows.column(at)
        named = column.field("uri").to_pylist()
        ids = list(dict.fromkeys(each for each, there in zip(named, column.is_valid(), strict=True) if there.as_py()))
        if len(ids) > MAX_CLAIMS:
            detail = f"the request names {len(ids)} different uploads; a request may name at most {MAX_CLAIMS}"
            raise InvalidRequest(detail, value=len(ids), bound=MAX_CLAIMS)
        found, refused = await self._claim_all(topic, ids)
        if refused and rows.num_rows == 1:
            raise refused[ids[0]]
        if refused:
            raise _invalid([(row, refused[each]) for row, each in enumerate(named) if each in refused])
        return rows.set_column(at, rows.schema.field(at), references_column([found.get(each) for each in named]))

    async def _claim_all(
        self, topic: Topic, ids: Collection[str]
    ) -> tuple[dict[str, Reference], dict[str, BadRequest]]:
        """Returns the references of those uploads that can be claimed, and the errors of the others."""

        async def claim(upload: str) -> Reference | BadRequest:
            try:
                return await self._claim(topic, upload)
            except REFUSALS as error:
                return error

        found = dict(zip(ids, await gather_bounded(CLAIMS, claim, ids), strict=True))
        references = {each: result for each, result in found.items() if isinstance(result, Reference)}
        return references, {each: result for each, result in found.items() if isinstance(result, BadRequest)}

    def name_of(self, topic: Topic, uri: str | None) -> str | None:
        """Returns the name of the object that a reference of the topic names; None if it is not one of the topic's
        own.

        The rest of the URI must be a name that brokers draw, of this incarnation of the topic, letter by letter:
        nothing is decoded, and no dots are followed.
        """
        return _name(self._folder(topic), topic, uri)

    def _folder(self, topic: Topic) -> str:
        """Returns the URI of the topic's payloads, up to the last slash."""
        return self._store.uri(f"{rules.folder(topic.name)}0")[:-1]

    async def links_of(
        self, topic: Topic, batches: Iterable[pa.RecordBatch], until_us: int = NEVER_US
    ) -> dict[str, str]:
        """Returns `links` for all references of some rows, which mostly have none."""
        found = [uri for rows in batches if "_reference" in rows.schema.names for uri in uris_of(rows)]
        return await self.links(topic, found, until_us) if found else {}

    async def links(self, topic: Topic, uris: Iterable[str], until_us: int = NEVER_US) -> dict[str, str]:
        """Returns URLs for readers, by the URI of the reference; none for those that `name_of` does not know. They end
        by `until_us`, when the reader's token does; a reader with less than a second left gets none."""
        folder, links = self._folder(topic), {}
        lasts_s = (until_us - self._clock.now_us()) // 1_000_000
        if lasts_s < 1:
            return {}
        for number, uri in enumerate(uris):
            if name := _name(folder, topic, uri):
                with suppress(Unavailable):  # a message without its link is better than no message
                    links[uri] = await self._link(topic, name, lasts_s)
            if number % YIELD == YIELD - 1:
                await asyncio.sleep(0)
        return links

    async def find(self, topic: Topic, segment: int, offset: int) -> tuple[str, Reference]:
        """Returns the name of the object of a message's payload, and its reference. Raises PayloadNotFound,
        Unavailable."""
        reference = await self._reference(topic, segment, offset)
        name = self.name_of(topic, reference.uri) if reference else None
        if not reference or not name:
            why = (
                "has no payload" if not reference else "has a reference to something other than a payload of the topic"
            )
            raise PayloadNotFound(
                f"message {segment}-{offset} of {topic.name!r} {why}", **_place(topic, segment, offset)
            )
        try:
            size = await self._store.size(name)
        except FileNotFoundError:
            size = -1
        if size != reference.size:
            there = "is not in the store" if size < 0 else f"has {size} bytes, not {reference.size}"
            detail = f"the payload of message {segment}-{offset} of {topic.name!r} {there}"
            raise PayloadNotFound(detail, **_place(topic, segment, offset))
        return name, reference

    async def _reference(self, topic: Topic, segment: int, offset: int) -> Reference | None:
        """Returns the reference of a message, at whichever broker its segment is: waits for a segment that moves.
        Raises PayloadNotFound, Unavailable."""

        async def read() -> Pieces:
            readable = (await self._segments(topic, [segment]))[segment]
            return await readable.read(offset, 1, ROW_BYTES)

        pieces: Pieces = []
        with suppress(OffsetOutOfRange, BelowRetention):
            pieces = await Deadline(self._clock, self._wait_s).retry(read, NotOwner, topic.moved, PAUSE_S)
        alive = await self._unexpired(pieces)
        if not alive:
            detail = f"topic {topic.name!r} has no message {segment}-{offset}"
            raise PayloadNotFound(detail, **_place(topic, segment, offset))
        (_, rows) = alive[0]
        at = rows.schema.get_field_index("_reference")
        found = rows.column(at)[0].as_py() if at >= 0 else None
        return Reference(**found) if found else None

    def pieces(self, name: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Returns the bytes [start, end) of an object, as `read_pieces`."""
        return read_pieces(self._store, name, start, end, PIECE_BYTES)


async def read_pieces(
    store: ObjectStore, name: str, start: int, end: int, piece_bytes: int
) -> AsyncGenerator[bytes, None]:
    """Yields the bytes [start, end) of an object that has them, in order: the next piece is read while one is used.
    Memory: twice `piece_bytes`.

    Raises FileNotFoundError, StoreUnavailable. A caller that does not take all of it closes it (`aclosing`).
    """
    ahead: asyncio.Task[bytes] | None = None
    try:
        for at in range(start, end, piece_bytes):
            piece = await (ahead or store.read(name, at, min(at + piece_bytes, end)))
            behind = at + piece_bytes
            if behind < end:
                ahead = asyncio.create_task(store.read(name, behind, min(behind + piece_bytes, end)))
            yield piece
    finally:
        if ahead is not None:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)


def _name(folder: str, topic: Topic, uri: str | None) -> str | None:
    if not uri or not uri.startswith(folder):
        return None
    name = rules.folder(topic.name) + uri[len(folder) :]
    upload = rules.id_of(topic.name, name)
    return name if upload and rules.incarnation_of(upload) == topic.record.incarnation else None


def uris_of(rows: pa.RecordBatch) -> list[str]:
    """Returns the URIs of the rows' references, each once."""
    at = rows.schema.get_field_index("_reference")
    return pc.unique(pc.struct_field(rows.column(at), "uri").drop_null()).to_pylist() if at >= 0 else []


def _invalid(errors: Sequence[tuple[int, BadRequest]]) -> InvalidMessages:
    named = [
        {"index": row, "reason": error.detail, "type": f"/problems/{error.slug}"} for row, error in errors[:MAX_ERRORS]
    ]
    detail = invalid_detail(len(errors), errors[0][0], errors[0][1].detail)
    return InvalidMessages(detail, errors=named, invalid=len(errors))


def _place(topic: Topic, segment: int, offset: int) -> dict[str, str]:
    return {"topic": topic.name, "id": f"{segment}-{offset}"}

"""Slots, the objects of an object journal. Owns their names and bytes, which of them count, and the requests to the
store by which they are listed, read and deleted.

A slot is a header (magic, version, kind, number, broker, the put's nonce, `released`, `acknowledged`, `commits`, what
its broker had seen of coordination, lengths, CRCs), an index of frames and their payloads (frames.pack). A *fence* is a
slot without data that a recovery puts where the broker's next one would go. The header stands alone, so that it can be
read without the rest.

`released` says, as of the slot's making, that no slot below that number is needed any more; `acknowledged`, that all
below that number were durable. Neither falls from one slot to the next, so the newest slot says the most. So a slot
that is missing between the two was lost. At or above `acknowledged` a gap is taken for the end: up to a window of slots
may be missing there, since none of them was acknowledged when the newest slot was made.

Every version begins with magic, version and draft, a CRC of the whole header, and the header's length. So a header of a
later version is told from a damaged one, and needs a newer broker.

Beside its slots a journal may have the object `done`: nothing in the journal is needed. It is put before the first slot
is removed, so a journal with slots and without `done` is *needed*, whatever coordination knows of it. It states a
moment of coordination behind all that the journal was for.
"""

import asyncio
import logging
import struct
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from seaweedq.checks import reach
from seaweedq.clock import Ids
from seaweedq.errors import JournalDamaged
from seaweedq.formats import Format, Level, check_draft, drafted, needs_newer, undrafted
from seaweedq.journal.interface import NOTHING_SEEN, Seen, SeenNow, decode_seen, encode_seen, seen_nothing
from seaweedq.journal.pacing import MAX_WINDOW
from seaweedq.segments.frames import Commit, Frame, pack, padded, padding, terms_of, unpack
from seaweedq.segments.terms import Term
from seaweedq.storage.interface import ObjectStore

SLOTS = Format("slots", {1: 1})
MAX_UNDER_WAY = MAX_WINDOW + 1
"""Slots that a broker may have under way: its window, and the empty one that says that it is idle. So at most so many
of its own stand at or above a fence that holds."""
JOURNALS_FOLDER = "_journals/"
COPY = "~"
"""Stands between the broker and a nonce in the name of a copy (journal/mirrored_recovery), which no broker's id has."""
HEADER_BYTES = 256
"""So many bytes of a slot hold its header; it may be shorter."""

_MAGIC = b"seaweedq"
_CHECK = struct.Struct("<8sIIH")  # of every version: magic, version and draft, CRC of all other bytes, header's length
_CRC_AT, _CRC_END = 12, 16
_FIXED = struct.Struct("<HHQQQQIQ16sQQI")  # the broker id follows
PAGE = 1_000
NAMED = 10  # objects in a log line
logger = logging.getLogger(__name__)
BATCH = 16
"""Maximum number of concurrent requests."""
DONE = "done"
"""The name, in a journal's folder, that says that nothing in the journal is needed. It sorts behind all slots."""


class SlotKind(IntEnum):
    """The kinds of slots: commits of a broker, and fences of recoveries."""

    DATA = 1
    FENCE = 2


@dataclass(frozen=True, slots=True)
class SlotHeader:
    """The header of a slot. `nonce` is the put's: 32 hexadecimal digits that only its writer has. `seen` is what the
    writer had seen of coordination when it made the slot.

    A slot of a mirrored journal holds the frames of several commits: all commits below `commits` that are needed are in
    this slot or before it. 0: the slot is one commit, which has its number.
    """

    kind: SlotKind
    broker: str
    number: int
    nonce: str
    released: int
    acknowledged: int = 0
    version: int = 1
    seen: Seen = NOTHING_SEEN
    commits: int = 0

    @property
    def commit(self) -> int:
        """Returns the number of the last commit that the slot holds."""
        return self.commits - 1 if self.commits else self.number


@dataclass(frozen=True)
class SlotHeaders:
    """The headers of the slots of `broker`'s journal: each has a nonce, the version of the cluster's level, and what
    this process has seen of coordination."""

    broker: str
    ids: Ids
    level: Level
    seen: SeenNow = seen_nothing

    def make(self, kind: SlotKind, number: int, released: int, acknowledged: int, commits: int = 0) -> SlotHeader:
        """Returns the header of one more slot."""
        version = SLOTS.at(self.level())
        return SlotHeader(
            kind, self.broker, number, self.ids.nonce(), released, acknowledged, version, Seen(*self.seen()), commits
        )


@dataclass(frozen=True, slots=True)
class Run:
    """The slots that count are [first, end). `fence` is the newest fence that is not behind the broker, if any.

    All slots from `first` to below `reached` existed: their broker has acknowledged them, or a recovery found them
    there before it put the fence.
    """

    first: int
    end: int
    fence: int | None
    reached: int

    @property
    def is_torn(self) -> bool:
        """Tells whether a slot is missing, or a fence stands in its place, where a slot was: it was lost, unless the
        journal was recovered and goes."""
        return self.end < self.reached


def journal_folder(broker: str) -> str:
    """Returns the prefix of the names of a journal's slots."""
    return f"{JOURNALS_FOLDER}{broker}/"


def slot_name(broker: str, number: int) -> str:
    """Returns the object's name of a slot, counted from 0."""
    return f"{journal_folder(broker)}{number:08d}"


def done_name(broker: str) -> str:
    """Returns the name of the object that says that nothing in a journal is needed."""
    return f"{journal_folder(broker)}{DONE}"


def slot_number(name: str, broker: str) -> int | None:
    """Returns the number in an object's name; None if that is no slot of the broker's journal."""
    digits = name.removeprefix(journal_folder(broker))
    if not (digits.isascii() and digits.isdigit()) or slot_name(broker, int(digits)) != name:
        return None
    return int(digits)


def encode_slot(header: SlotHeader, frames: Sequence[Frame]) -> bytes:
    """Returns a slot's bytes. Payloads are copied once."""
    index, body, size = pack(frames)
    index_padded, broker = index + padding(len(index)), header.broker.encode()
    rest = _FIXED.pack(
        header.kind,
        len(broker),
        header.number,
        header.released,
        header.acknowledged,
        header.commits,
        *header.seen,
        bytes.fromhex(header.nonce),
        len(index),
        size,
        zlib.crc32(index_padded),
    )
    length = padded(_CHECK.size + len(rest) + len(broker))
    rest = (rest + broker).ljust(length - _CHECK.size, b"\0")
    version = drafted(header.version)
    crc = _checksum(_CHECK.pack(_MAGIC, version, 0, length) + rest)
    head = _CHECK.pack(_MAGIC, version, crc, length) + rest
    assert len(head) <= HEADER_BYTES, f"the broker's id is too long: {header.broker}"
    return b"".join((head, index_padded, *body))


def decode_header(data: bytes, name: str) -> SlotHeader:
    """Returns the header of the slot of that name, from its first HEADER_BYTES bytes or more. Raises JournalDamaged,
    NeedsNewerBroker, LevelMismatch."""
    return _decode_header(memoryview(data), name).header


def slot_bytes(data: bytes, name: str) -> int:
    """Returns the size of the slot of that name, from its first HEADER_BYTES bytes or more. Raises JournalDamaged,
    NeedsNewerBroker, LevelMismatch."""
    head = _decode_header(memoryview(data), name)
    return head.index_at + padded(head.index_length) + head.body_length


def decode_slot(data: bytes, name: str) -> tuple[SlotHeader, Commit]:
    """Returns the slot of that name, decoded; payloads are slices of `data`. Raises JournalDamaged,
    NeedsNewerBroker, LevelMismatch."""
    view = memoryview(data)
    head = _decode_header(view, name)
    body_at = head.index_at + padded(head.index_length)
    if len(view) != body_at + head.body_length:
        raise _damaged(name, "the object was changed after a broker had written it: its length differs")
    frames = unpack(_checked_index(view, head, name), view[body_at:])
    if frames is None:
        raise _damaged(name, "the object contains different bytes than the broker had written")
    return head.header, Commit(head.header.commit, frames)


def index_end(data: bytes, name: str) -> int:
    """Returns where the index of the slot of that name ends, from its first HEADER_BYTES bytes or more. Raises
    JournalDamaged, NeedsNewerBroker, LevelMismatch."""
    head = _decode_header(memoryview(data), name)
    return head.index_at + padded(head.index_length)


def slot_terms(data: bytes, name: str) -> dict[tuple[str, int], Term]:
    """Returns the highest term of each segment in the slot of that name, from its bytes up to the end of its index or
    further. Raises JournalDamaged, NeedsNewerBroker, LevelMismatch."""
    return terms_of(_checked_index(memoryview(data), _decode_header(memoryview(data), name), name))


def near(newest: int) -> int:
    """Returns the lowest number that a fence that holds can have if `newest` is the newest slot of all.

    All slots below were acknowledged: their broker had no more than MAX_UNDER_WAY under way when it made the newest.
    """
    return max(newest - MAX_UNDER_WAY + 1, 0)


def valid_run(there: Collection[int], headers: Mapping[int, SlotHeader]) -> Run:
    """Returns the slots that count of those that a listing found: from the highest `released` to a gap or fence.

    `headers` are needed of the newest slot with data and of all numbers from `near` on: a fence that holds is among
    them, and further down only slots with data, or fences that the broker had left behind, can stand. More do no harm.
    """
    data = [header for header in headers.values() if header.kind is SlotKind.DATA]
    first = max((header.released for header in data), default=0)
    acknowledged = max((header.acknowledged for header in data), default=0)
    fences = {number for number, header in headers.items() if header.kind is SlotKind.FENCE and number >= first}
    end = first
    while end in there and end not in fences:
        end += 1
    fence = max(fences, default=None)
    found = fence if fence and data else 0  # the removal of a journal leaves a fence alone
    return Run(first, end, fence, max(acknowledged, found))


class _Head(NamedTuple):
    """A header, and where the index begins, its length, that of the payloads, and the CRC of the index."""

    header: SlotHeader
    index_at: int
    index_length: int
    body_length: int
    index_crc: int


def _decode_header(view: memoryview, name: str) -> _Head:
    if bytes(view[: len(_MAGIC)]) != _MAGIC:
        raise _damaged(name, "the object does not begin with the header of a journal object")
    try:
        _, stamped, crc, length = _CHECK.unpack_from(view)
        if not _CHECK.size <= length <= len(view) or _checksum(view[:length]) != crc:
            raise _damaged(name, "the object has a damaged header")
        version, draft = undrafted(stamped)
        check_draft(draft, f"the journal's slot {name}")
        SLOTS.check(version, name)
        kind, broker_length, number, released, acknowledged, commits, *fields = _FIXED.unpack_from(view, _CHECK.size)
        generation, revision, nonce, *lengths = fields
        broker_at = _CHECK.size + _FIXED.size
        broker = str(view[broker_at : broker_at + broker_length], "utf-8")
    except (struct.error, UnicodeDecodeError) as error:
        raise _damaged(name, "the object has a damaged header") from error
    if kind not in set(SlotKind):
        raise needs_newer(f"the journal object {name} is of the unknown kind {kind}")
    mine = slot_name(broker, number)
    if mine != name:
        raise _damaged(name, f"the object's content belongs to another object, {mine}")
    seen = Seen(generation, revision)
    header = SlotHeader(SlotKind(kind), broker, number, nonce.hex(), released, acknowledged, version, seen, commits)
    return _Head(header, length, *lengths)


def _checked_index(view: memoryview, head: _Head, name: str) -> memoryview:
    body_at = head.index_at + padded(head.index_length)
    if zlib.crc32(view[head.index_at : body_at]) != head.index_crc:
        raise _damaged(name, "the object was changed after a broker had written it: its index differs")
    return view[head.index_at : head.index_at + head.index_length]


def _checksum(head: bytes | memoryview) -> int:
    """Returns the CRC of a header but for the four bytes of the CRC itself."""
    return zlib.crc32(head[_CRC_END:], zlib.crc32(head[:_CRC_AT]))


def _damaged(name: str, what: str) -> JournalDamaged:
    return JournalDamaged(f"{name}: {what}", path=name, position=0)


class ListedJournal(NamedTuple):
    """A listing of a journal: the numbers of its slots, rising, and whether it has `done`."""

    slots: list[int]
    is_done: bool

    @property
    def is_needed(self) -> bool:
        """Tells whether something in the journal may be needed."""
        return bool(self.slots) and not self.is_done


async def list_slots(store: ObjectStore, broker: str) -> list[int]:
    """Returns the numbers of all slots that exist, rising. Passes over objects of others."""
    return (await list_journal(store, broker)).slots


async def list_journal(store: ObjectStore, broker: str) -> ListedJournal:
    """Lists a journal. Passes over objects of others."""
    names: list[str] = []
    while True:
        page = await store.list(journal_folder(broker), after=names[-1] if names else "", limit=PAGE)
        names += page
        if len(page) < PAGE:
            break
    numbers = {name: slot_number(name, broker) for name in names}
    is_done = numbers.pop(done_name(broker), 0) is None
    if strange := [name for name, number in numbers.items() if number is None]:
        logger.warning(
            "%d objects in %s are not objects of a journal: %s", len(strange), journal_folder(broker), strange[:NAMED]
        )
    return ListedJournal(sorted(number for number in numbers.values() if number is not None), is_done)


async def read_header(store: ObjectStore, broker: str, number: int) -> SlotHeader:
    """Returns the header of a slot. Raises FileNotFoundError, JournalDamaged, StoreUnavailable."""
    name = slot_name(broker, number)
    return decode_header(await store.read(name, 0, HEADER_BYTES), name)


async def put_done(store: ObjectStore, broker: str, stated: Seen = NOTHING_SEEN) -> None:
    """Says in the store that nothing in a journal is needed, and states a moment that coordination knows: before its
    first slot is removed. Raises StoreUnavailable."""
    reach("done.put")
    await store.create(done_name(broker), encode_seen(stated))
    reach("done.stored")


async def read_done(store: ObjectStore, broker: str) -> Seen:
    """Returns the moment that a journal which is done states; NOTHING_SEEN if it has gone meanwhile. Raises
    StoreUnavailable."""
    try:
        return decode_seen(await store.read(done_name(broker)))
    except FileNotFoundError:
        return NOTHING_SEEN


async def delete_slots(store: ObjectStore, broker: str, numbers: Sequence[int]) -> None:
    """Deletes a batch; if one fails, the others are still tried. Raises StoreUnavailable."""
    deletions = (store.delete(slot_name(broker, number)) for number in numbers)
    for result in await asyncio.gather(*deletions, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def batches(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yields the numbers in their order, BATCH at a time."""
    for at in range(0, len(numbers), BATCH):
        yield numbers[at : at + BATCH]

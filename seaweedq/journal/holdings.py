"""Holdings: the commits of other brokers' mirrored journals that this process keeps in memory, and the bytes in which
commits travel between brokers.

A process has its holdings over all lives of its broker, so that brokers that lose their leases together lose nothing.
A holding is known by its id alone, which this process draws when an owner opens one: after a restart, and once it was
dropped, the id is unknown, and nobody takes that for an empty holding.

States: (none) --open--> open --fence--> fenced; either --its owner says so, or its owner's journal is gone or
recovered--> (none). An open one takes commits behind those that it has, and lets go of those that its owner says are
stored. A fenced one takes nothing and lets go of nothing.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from seaweedq.checks import reach, require
from seaweedq.clock import Ids
from seaweedq.errors import JournalDamaged, UnreadableBody
from seaweedq.journal.mirroring import FencedHolding, Span
from seaweedq.segments.frames import Buffer, Commit, Frame, pack, padded, padding, unpack

CALL_BYTES = 32 * 1024 * 1024
"""Commits of so many bytes go in one call; a larger one goes alone."""
_LENGTH = 8
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]


@dataclass(frozen=True, slots=True)
class PackedCommit:
    """A commit as it travels: the index of its frames, and their payloads, each padded."""

    index: Buffer
    body: Sequence[Buffer]
    size_bytes: int

    @staticmethod
    def pack(frames: Iterable[Frame]) -> "PackedCommit":
        """Packs the frames of a commit; payloads are not copied."""
        index, body, size = pack(frames)
        return PackedCommit(index, body, len(index) + size)

    def alone(self) -> "PackedCommit":
        """Returns the commit on bytes of its own: else it would keep those of the whole call that brought it."""
        return PackedCommit(bytes(self.index), tuple(map(bytes, self.body)), self.size_bytes)

    def frames(self, holding: str) -> tuple[Frame, ...]:
        """Returns the frames of a commit that has travelled. Raises JournalDamaged."""
        (body,) = self.body
        found = unpack(memoryview(self.index), memoryview(body))
        if found is None:
            raise JournalDamaged(
                f"the stored copy {holding} of another broker's journal differs from what that broker sent",
                path=holding,
                position=0,
            )
        return found


class HoldHeader(msgspec.Struct, array_like=True, frozen=True):
    """Brings commits from `first` on to a holding, whose mirror lets go of those below `stored`. Without a `holding` it
    opens one; if `is_over` the owner needs it no more. `sizes` has the lengths of each commit's index and payloads."""

    holding: str = ""
    stored: Count = 0
    first: Count = 0
    sizes: tuple[tuple[Count, Count], ...] = ()
    is_over: bool = False


class HoldState(IntEnum):
    """The state of a holding for its owner: it was held, is not known here, was fenced, or has no room."""

    HELD = 0
    UNKNOWN = 1
    FENCED = 2
    FULL = 3


class HoldAnswer(msgspec.Struct, array_like=True, frozen=True):
    """The holding, and the number below which it has all commits that its owner still needs."""

    state: HoldState
    holding: str = ""
    end: int = 0


class FenceCall(msgspec.Struct, array_like=True, frozen=True):
    """Fences all holdings of the journal of `owner`, which is gone."""

    owner: str


class HeldCall(msgspec.Struct, array_like=True, frozen=True):
    """Asks for the commits of a fenced holding from `first` on, up to CALL_BYTES."""

    holding: str
    first: Count


_HEADER = msgspec.msgpack.Decoder(HoldHeader)


def encode_hold(header: HoldHeader, commits: Sequence[PackedCommit]) -> bytes:
    """Returns the bytes of a call that brings commits."""
    sizes = tuple((memoryview(one.index).nbytes, sum(memoryview(part).nbytes for part in one.body)) for one in commits)
    head = msgspec.msgpack.encode(msgspec.structs.replace(header, sizes=sizes))
    parts: list[Buffer] = [len(head).to_bytes(_LENGTH, "little"), head, padding(len(head))]
    for one, (length, _) in zip(commits, sizes, strict=True):
        parts += (one.index, padding(length), *one.body)
    return b"".join(parts)


def decode_hold(data: bytes) -> tuple[HoldHeader, list[PackedCommit]]:
    """Returns the header and the commits, which stand on `data`. Raises UnreadableBody."""
    view = memoryview(data)
    length = int.from_bytes(view[:_LENGTH], "little")
    try:
        header = _HEADER.decode(view[_LENGTH : _LENGTH + length])
    except msgspec.DecodeError as error:
        raise UnreadableBody(f"the body contains no valid commits: {error}") from error
    at, commits = _LENGTH + padded(length), []
    for index_length, body_length in header.sizes:
        body_at = at + padded(index_length)
        index, body = view[at : at + index_length], view[body_at : body_at + body_length]
        commits.append(PackedCommit(index, (body,), index_length + body_length))
        at = body_at + body_length
    if at != len(view):
        raise UnreadableBody(
            "the commits in the body do not have the sizes that the header at the start of the body states"
        )
    return header, commits


@dataclass(slots=True)
class Holding:
    """The part of one journal that this process has. `commits` are those of `span`, in order."""

    owner: str
    id: str
    span: Span
    commits: deque[PackedCommit] = field(default_factory=deque)
    is_fenced: bool = False

    def take(self, stored: int, first: int, commits: Sequence[PackedCommit]) -> int:
        """Takes commits from `first` on, and lets go of those below `stored`. Returns the growth in bytes."""
        before = self.span
        self.span = before.after(stored, first, first + len(commits))
        grown = 0
        for _ in range(min(self.span.first, before.end) - before.first):
            grown -= self.commits.popleft().size_bytes
        new = commits[max(before.end, self.span.first) - first :] if len(self) < self._wanted else ()
        for one in new:
            self.commits.append(one.alone() if len(commits) > 1 else one)
            grown += one.size_bytes
        require(len(self) == self._wanted, "holding %s has %d commits for %s", self.id, len(self), self.span)
        return grown

    def __len__(self) -> int:
        return len(self.commits)

    @property
    def _wanted(self) -> int:
        return self.span.end - self.span.first


class Holdings:
    """The holdings of this process, of at most `limit_bytes`."""

    def __init__(self, limit_bytes: int, ids: Ids) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._ids = ids
        self._held: dict[str, Holding] = {}

    def owners(self) -> list[str]:
        """Returns the brokers whose commits are held."""
        return list(dict.fromkeys(one.owner for one in self._held.values()))

    def of(self, owner: str) -> set[str]:
        """Returns the holdings of a broker's journal."""
        return {one.id for one in self._held.values() if one.owner == owner}

    def count(self, owner: str) -> int:
        """Returns how many commits of a broker's journal are held."""
        return sum(len(one) for one in self._held.values() if one.owner == owner)

    def hold(self, owner: str, data: bytes) -> HoldAnswer:
        """Does what the broker `owner` asks for its own journal. Raises UnreadableBody."""
        header, commits = decode_hold(data)
        if not header.holding:
            one = Holding(owner, self._ids.nonce(), Span(header.stored, header.stored))
            self._held[one.id] = one
        else:
            found = self._held.get(header.holding)
            if found is None or found.owner != owner:
                return HoldAnswer(HoldState.UNKNOWN, header.holding)
            one = found
        if one.is_fenced:
            return HoldAnswer(HoldState.FENCED, one.id)
        if header.is_over:
            self._drop(one)
            return HoldAnswer(HoldState.UNKNOWN, one.id)
        self.size_bytes += one.take(header.stored, one.span.end, ())  # what comes may need the room
        lacking = commits[max(0, one.span.end - header.first) :]
        if self.size_bytes + sum(commit.size_bytes for commit in lacking) > self.limit_bytes:
            return HoldAnswer(HoldState.FULL, one.id)
        self.size_bytes += one.take(header.stored, header.first, commits)
        reach("mirror.held")
        return HoldAnswer(HoldState.HELD, one.id, one.span.end)

    def fence(self, owner: str) -> list[FencedHolding]:
        """Fences the holdings of a broker's journal, and returns their spans as they are from then on."""
        fenced = []
        for one in self._held.values():
            if one.owner == owner:
                one.is_fenced = True
                fenced.append(FencedHolding(one.id, *one.span))
        reach("mirror.fenced")
        return fenced

    def held(self, call: HeldCall) -> bytes:
        """Returns commits of a fenced holding, as a call that brings them; empty if it is not known here."""
        one = self._held.get(call.holding)
        if one is None or not one.is_fenced:
            return b""
        first = max(call.first, one.span.first)
        commits: list[PackedCommit] = []
        size = 0
        for number in range(first, one.span.end):
            commit = one.commits[number - one.span.first]
            size += commit.size_bytes
            if commits and size > CALL_BYTES:
                break
            commits.append(commit)
        return encode_hold(HoldHeader(one.id, one.span.first, first), commits)

    def look(self, owner: str) -> list[list[Commit]]:
        """Returns the commits of a broker's holdings, decoded, for people and tests."""
        return [
            [Commit(number, commit.frames(one.id)) for number, commit in enumerate(one.commits, one.span.first)]
            for one in self._held.values()
            if one.owner == owner
        ]

    def forget(self, owner: str) -> None:
        """Drops the holdings of a broker whose journal is gone or recovered."""
        for one in [one for one in self._held.values() if one.owner == owner]:
            self._drop(one)

    def _drop(self, one: Holding) -> None:
        del self._held[one.id]
        self.size_bytes -= sum(commit.size_bytes for commit in one.commits)


def commits_of(data: bytes) -> Iterator[Commit]:
    """Yields the commits that `Holdings.held` has returned. Raises JournalDamaged, UnreadableBody."""
    header, commits = decode_hold(data)
    for number, one in enumerate(commits, header.first):
        yield Commit(number, one.frames(header.holding))

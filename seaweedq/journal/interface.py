"""The seam behind which a broker makes everything durable before it is in a chain: three narrow interfaces.

`Journal` is the journal that a living broker writes, one for each start of a broker. `DeadJournal` is the journal that
a broker left behind, as a recovery reads it. `Journals` is a backend: it makes the one and opens the other. A backend
owns its bytes and how it fences; brokers know this interface alone, so a further kind needs no change in them.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from seaweedq.coordination.interface import Coordination, Put
from seaweedq.coordination.records import JournalRecord
from seaweedq.formats import Level
from seaweedq.journal.holdings import HeldCall, HoldAnswer, Holdings
from seaweedq.journal.home_folder import HomeFolder
from seaweedq.journal.mirroring import FencedHolding
from seaweedq.journal.pacing import PutBudget
from seaweedq.segments.frames import Commit, Frame
from seaweedq.segments.terms import Term
from seaweedq.storage.interface import ObjectStore

Claim: TypeAlias = Callable[[int], Awaitable[None]]
"""Waits until there is room in memory for so many bytes of a dead journal."""
AHEAD_BYTES = 8 * 1024 * 1024
"""So many bytes a dead journal may hold of commits for which it has claimed no room yet."""


class Seen(NamedTuple):
    """A moment of coordination as a life of a broker knew it: its generation, and the highest revision that the life
    had seen. Each commit states the one of its making."""

    generation: int = 0
    revision: int = 0


SeenNow: TypeAlias = Callable[[], tuple[int, int]]
"""Returns the fields of Seen as they are now. Asked once a commit."""
NOTHING_SEEN = Seen()
_DONE = msgspec.json.Decoder(dict[str, int])


def encode_seen(seen: Seen) -> bytes:
    """Returns the bytes of a `done`: the moment that it states; none if it states nothing."""
    return msgspec.json.encode(seen._asdict()) if seen != NOTHING_SEEN else b""


def decode_seen(data: bytes) -> Seen:
    """Returns the moment that a `done` states; NOTHING_SEEN for others."""
    try:
        return Seen(**_DONE.decode(data))
    except (msgspec.DecodeError, TypeError):
        return NOTHING_SEEN


def seen_nothing() -> Seen:
    """Returns what a journal states that is none of a cluster's."""
    return NOTHING_SEEN


@dataclass(frozen=True, slots=True)
class NeededJournal:
    """A journal in which something may be needed: it has commits, or seems to, and does not say that it is done.

    `record` is as its key would have it. `seen` is what its newest commit states; if that cannot be read, `unread` says
    why.
    """

    broker: str
    record: JournalRecord
    seen: Seen = NOTHING_SEEN
    unread: str = ""


def highest(found: Iterable[dict[tuple[str, int], Term]]) -> dict[tuple[str, int], Term]:
    """Returns the highest term of each segment in any of several."""
    all_of: dict[tuple[str, int], Term] = {}
    for terms in found:
        all_of |= {place: max(term, all_of.get(place, term)) for place, term in terms.items()}
    return all_of


class JournalUnreachable(Exception):
    """This process cannot reach a dead broker's journal, so its content is unknown, and never taken as empty.

    `silent` are brokers that may have it, and did not answer: another broker may reach them. `mirrors` are those of its
    set. Not in the tree of errors, since it never leaves a recovery.
    """

    def __init__(self, why: str, silent: Sequence[str] = (), mirrors: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.silent = silent
        self.mirrors = mirrors


class JournalInUse(JournalUnreachable):
    """Another process holds the folder of a dead broker's journal: the folder is not gone."""


class Journal(Protocol):
    """A journal in use by its one broker. The numbers of commits rise from 0; an object journal leaves gaps."""

    window: int
    """Maximum number of concurrent appends. If more than 1, a failed append ends the journal with Fenced, so that no
    gap can remain."""

    most_unreleased: int
    """Maximum number of commits that a recovery is to find; above it, the tails that pin the oldest ones are flushed.
    0: any number."""

    @property
    def mirrors(self) -> Sequence[str]:
        """Returns the brokers that hold its commits in memory."""

    async def append(self, frames: Sequence[Frame]) -> int:
        """Makes the frames durable as one commit, all or none, and returns its number. Appends end in the order of
        their calls.

        Raises JournalUnavailable (only if `window` is 1): the frames must not be acknowledged, though a recovery
        after a crash may still find them; the journal can be tried again. Raises Fenced: another broker recovers this
        journal, nothing more may be acknowledged. A cancelled append may still become durable.
        """

    async def discard_failed(self) -> None:
        """Makes sure that a recovery finds nothing of appends that have failed. Raises JournalUnavailable."""

    async def pace(self, is_full: asyncio.Event) -> None:
        """Waits until the next append may begin, so that more frames share it. If there is room for one, `is_full`
        ends the wait: as much waits as one append takes."""

    def release(self, below: int) -> None:
        """Marks commits numbered below `below` as no longer needed; their space comes back some time later."""

    @property
    def unreleased_bytes(self) -> int:
        """Returns the size of the commits that are still needed."""

    @property
    def budget(self) -> PutBudget | None:
        """Returns the counter of the puts to the store; None if the journal makes none."""

    async def close(self) -> None:
        """Ends appends under way and closes files. The journal's content stays."""

    async def remove(self, stated: Seen = NOTHING_SEEN) -> None:
        """Removes the content of a closed journal of which nothing is needed any more. The journal says so itself
        (`done`) before the first of it goes, and states a moment that coordination knows by then. Can be repeated."""


class DeadJournal(Protocol):
    """The journal of a broker whose lease has ended. Every step can be repeated, after a crash by another broker too.

    The order of calls is: fence, commits, remove, close. Only `fence` or `look` may be called first. Before `remove`
    the key of the journal must say that it was recovered; of a journal that was, anything may be missing. `remove`
    begins with the journal's own word that nothing in it is needed (`done`), as that of Journal does, and one that has
    said so has no commits.
    """

    async def fence(self) -> None:
        """Makes sure that the journal's broker acknowledges nothing more; does nothing if that is so already.

        Raises JournalUnreachable: its content is unknown. Raises JournalDamaged, NeedsNewerBroker,
        Unavailable.
        """

    async def look(self) -> None:
        """Raises what `fence` would raise now if no other broker lived, as far as that can be told without a write to
        the store or coordination."""

    def commits(self, claim: Claim) -> AsyncGenerator[Commit, None]:
        """Yields the commits that may still be needed, numbers rising, in bounded memory; a torn end is cut.

        Claims room for each commit before it is yielded: the reader may let go of the earlier ones meanwhile. Holds
        no more beside than AHEAD_BYTES, or one commit if that is larger.

        Raises JournalDamaged, which is none if another recovery has finished and removes the journal; and
        NeedsNewerBroker, Unavailable. The commits that were yielded before are sound.
        """

    async def terms(self) -> dict[tuple[str, int], Term]:
        """Returns the highest term that the journal's broker states of each segment, by topic and segment. Reads what
        describes the frames, and none of their content. Comes behind `fence`, at any time.

        Raises as `commits`.
        """

    async def remove(self, stated: Seen = NOTHING_SEEN) -> None:
        """Removes the content, oldest first. Raises JournalDamaged, Unavailable."""

    async def close(self) -> None:
        """Releases the lock of `fence` in this process. A fence that is stored stays."""


class Journals(Protocol):
    """A backend of journals, as one broker's process sees it."""

    def describe(self, broker: str) -> JournalRecord:
        """Returns the record for the journal's key in coordination, by which a recovery finds the journal."""

    def first_keys(self, broker: str) -> Sequence[Put]:
        """Returns the keys that are written in one transaction with the journal's own, for a journal that depends on
        them. The store has the journal's own key then, too."""

    def create(self, broker: str) -> Journal:
        """Returns a new, empty journal of this process's broker. Must be called on a running event loop."""

    def is_exclusive(self, record: JournalRecord) -> bool:
        """Returns whether this process alone can reach the journal of that record. Its broker then recovers it before
        it serves."""

    def open_dead(self, broker: str, record: JournalRecord) -> DeadJournal:
        """Returns the journal of another broker, which its key describes by `record`. Does no I/O."""

    async def needed(self) -> list[NeededJournal]:
        """Returns the journals in which something may be needed, also those of living brokers: of the store, and of
        this process's home folder. Asks coordination nothing. Raises Unavailable.

        A journal that is removed meanwhile may be among them, with an older moment: look again.
        """

    async def is_done(self, broker: str) -> bool:
        """Tells whether the store, or this process's home folder, says that nothing in a broker's journal is needed,
        whatever coordination knows of it. Raises Unavailable."""

    async def stated(self) -> Seen:
        """Returns the highest moment that journals state which are done: of the store, and of this process's home
        folder. Raises Unavailable."""

    async def sweep(self, read_known: Callable[[], Awaitable[Container[str]]]) -> int:
        """Deletes what is left of journals that are done, and returns the number of objects or files.

        `read_known` reads which brokers live, or have a journal's key: those journals stay, since a recovery may be at
        them. So does one that is not done, whatever coordination knows of it. Raises Unavailable.
        """


class MirrorBroker(NamedTuple):
    """A living broker, as a place for mirrors: its zone, and whether it may get more of them."""

    zone: str
    takes_more: bool


class FoundHolding(NamedTuple):
    """A fenced holding, and the broker that has it."""

    broker: str
    fenced: FencedHolding


class Mirrors(Protocol):
    """The cluster as mirrored journals see it: this broker's zone, coordination, and the brokers that may be mirrors.
    A call that gets no answer raises Unavailable; its outcome is unknown."""

    zone: str
    coordination: Coordination

    def brokers(self) -> Mapping[str, MirrorBroker]:
        """Returns the brokers that live, as last seen; this one may be among them."""

    async def hold(self, broker: str, data: bytes, timeout_s: float) -> HoldAnswer:
        """Brings commits of this broker's journal to a mirror (journal/holdings)."""

    async def fence(self, owner: str) -> tuple[list[FoundHolding], list[str]]:
        """Fences all holdings of a dead broker's journal that living brokers have. Returns them, and the brokers that
        did not answer."""

    def own(self, owner: str) -> Set[str]:
        """Returns the ids of the holdings of a broker's journal that this process has. Fences none."""

    async def held(self, broker: str, call: HeldCall) -> bytes:
        """Returns commits of a fenced holding; empty if it is gone."""


OpenJournals: TypeAlias = Callable[[ObjectStore, Level, SeenNow, Mirrors], Journals]


@dataclass(frozen=True, slots=True)
class JournalSetup:
    """The part of a broker's setup that concerns journals: its home folder, the backend for a given store, the
    cluster's level, what a life has seen of coordination, and the mirrors; and what this process holds for others.

    `open` needs the folder's id, so the folder must be locked before.
    """

    home: HomeFolder
    open: OpenJournals
    holdings: Holdings

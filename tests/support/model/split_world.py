"""What a world of the split model is made of: segments with their records and chains, brokers with their journals and
what they know, and which rules can be left out.

Broker X owns the old segments: one that is split or rolled, or two that are merged. The first `deaths` brokers may lose
their leases at any moment and go on as zombies. A commit or an entry on its way may land at any time later, or never;
whoever sent it hears at once, as hearing later is no different from doing nothing until then. A transaction may come at
any time when its comparisons hold. A message is acknowledged once a journal has it, and is sent again for ever.
"""

from typing import NamedTuple, TypeVar

RULES = {
    "plan what is not locked": "a plan takes the place of a committed one",
    "undo what is planned": "a committed intent is undone",
    "undo what two owners have": "nobody undoes a planned merge whose segments have come to two owners",
    "commit first": "the owner holds and seals for a planned intent",
    "commit the plan it saw": "the commit of a plan that was undone commits the next one",
    "commit all at once": "the segments of a merge are committed in a transaction each",
    "a committed one goes on": "a later owner opens a segment with a committed intent and takes messages",
    "hold": "the owner goes on taking after it has sealed",
    "seal when quiet": "the owner seals while a commit is under way",
    "seal the whole tail": "the entry of the seal leaves out what is durable and in no file",
    "seal with the table": "the entry of the seal has no producer table",
    "look for a seal": "a later owner seals, sealed or not",
    "the loser reads": "who loses the seal's name to another's seal gives up",
    "who loses to rows stops": "who loses the name to an entry without a seal opens the chain anew, and goes on",
    "seal, then the transaction": "the transaction comes before the seal is in the chain",
    "seal all, then the transaction": "the transaction of a merge comes after the first of its seals",
    "compare the records": "the transaction, whose answer was lost, is run once more and looks at no record",
    "inherit the table": "a successor begins with an empty producer table",
    "give to the first": "the halves of a committed merge stay at two owners",
    "the first stays": "the owners of the halves of a committed merge give them to each other, both at once",
    "fence": "a recovery does not fence the journal",
    "recover, then hand over": "a segment is handed over before its owner's journal is worked in",
    "hand over what it still owns": "the leader hands over what a dead broker owned when it looked, without comparing",
    "recover what it still owns": "a recovery appends to segments whose record names another, or nobody",
    "nothing behind a seal": "a recovery appends to a sealed chain",
    "recovered rows are known": "what a recovery appends is not in the producer table of its entry",
    "recovery inherits the table": "a recovery's first entry of a successor forgets the tables of the old segments",
    "the seal stays for its heirs": "retention removes a sealed segment's last entry, and a successor has none yet",
}
EITHER = {
    "commit what it owns": "a commit does not compare the owner",
    "commit while alive": "a commit does not compare the broker's own lease",
    "successors to the living": "the transaction does not compare the leases of the successors' owners",
    "records behind the fence": "a recovery reads the records before it has fenced the journal",
    "look again": "segments are handed over at the end of their owner's recovery, and never again",
}
SPARE = {
    "end while alive": "the transaction does not compare the broker's own lease",
    "a move undoes": "a move keeps the planned intent",
    "committed stays": "a move takes a segment with a committed intent along",
}

NAMES = "XYZV"
T = TypeVar("T")


class Place(NamedTuple):
    """Where a message is. Journals and producer tables are made of these."""

    message: int
    segment: int
    offset: int


Places = frozenset[Place]
NOWHERE: Places = frozenset()


class Entry(NamedTuple):
    """A file of a chain: its name, its messages, the producer table, and the plan whose seal it ends with, or 0."""

    sequence: int
    first: int
    messages: tuple[int, ...]
    table: Places
    seal: int = 0

    @property
    def name(self) -> tuple[int, int]:
        """What is taken by create-if-absent."""
        return self.sequence, self.first


Chain = tuple[Entry, ...]


class Intent(NamedTuple):
    """The plan, by its number, that locks a segment."""

    plan: int
    committed: bool


class Record(NamedTuple):
    """What coordination says of a segment; `ended` is the plan that sealed it, `begun` the one that made it, or 0."""

    owner: int | None
    intent: Intent | None = None
    ended: int = 0
    begun: int = 0

    @property
    def committed(self) -> bool:
        """Whether it has a committed intent."""
        return self.intent is not None and self.intent.committed


class Opened(NamedTuple):
    """A segment as a broker knows it. `doing`: taking, held (for a plan), sealed, or gave up.

    The next entry has the name (`sequence`, `first`) and begins with the tail; `flush` is an entry under way.
    """

    doing: str
    sequence: int
    first: int
    table: Places
    plan: int = 0
    tail: tuple[int, ...] = ()
    flush: Entry | None = None


class Recovery(NamedTuple):
    """Of which dead broker, what it does next, the entry to put, and the records if it looked at them too early."""

    broker: int
    step: str
    segment: int = 0
    entry: Entry | None = None
    records: "tuple[Record | None, ...] | None" = None


class World(NamedTuple):
    """Everything there is: by segment, by broker, and on the way."""

    records: tuple[Record | None, ...]
    chains: tuple[Chain, ...]
    journals: tuple[Places, ...]
    commits: tuple[Place | None, ...]  # on their way to the journals
    failed: tuple[Place | None, ...]  # in a journal, though its broker believes not
    opened: tuple[tuple[Opened | None, ...], ...]  # by broker, by segment
    alive: frozenset[int]
    recoveries: tuple[Recovery | None, ...]
    stopped: frozenset[int] = frozenset()  # brokers that know that they are fenced
    fenced: frozenset[int] = frozenset()
    recovered: frozenset[int] = frozenset()
    flying: frozenset[tuple[int, int, Entry]] = frozenset()  # (broker, segment, entry), on its way to a chain
    expired: frozenset[int] = frozenset()  # segments whose files retention has removed
    plans: int = 0  # made so far


class Bounds(NamedTuple):
    """How large a world is: `old` segments that make way for `new` ones. `left_out` are names of rules.

    `failures`: a commit may fail and its frame still be in the journal, as long as no later commit is. `moves`: owners
    may move the old segments to other living brokers. `retention`: sealed segments may lose their files.
    """

    old: int = 1
    new: int = 1
    messages: int = 2
    brokers: int = 2
    deaths: int = 1
    plans: int = 1
    recoveries: int = 1
    failures: bool = False
    moves: bool = False
    retention: bool = False
    left_out: frozenset[str] = frozenset()

    @property
    def olds(self) -> range:
        """The numbers of the old segments."""
        return range(self.old)

    @property
    def news(self) -> range:
        """The numbers of their successors."""
        return range(self.old, self.old + self.new)

    def messages_of(self, segment: int) -> tuple[int, ...]:
        """The messages whose keys lie in a segment's range."""
        first, count = (0, self.old) if segment in self.olds else (self.old, self.new)
        return tuple(m for m in range(self.messages) if m % count == segment - first)


def start_of(b: Bounds) -> World:
    """X has the old segments open; nothing was ever taken."""
    nobody, segments = (None,) * b.brokers, b.old + b.new
    fresh = tuple(Opened("taking", 0, 0, NOWHERE) if s in b.olds else None for s in range(segments))
    return World(
        records=tuple(Record(0) if s in b.olds else None for s in range(segments)),
        chains=((),) * segments,
        journals=(NOWHERE,) * b.brokers,
        commits=nobody,
        failed=nobody,
        opened=(fresh, *((None,) * segments for _ in range(b.brokers - 1))),
        alive=frozenset(range(b.brokers)),
        recoveries=(None,) * b.recoveries,
    )


def with_at(items: tuple[T, ...], at: int, item: T) -> tuple[T, ...]:
    """The items with one replaced."""
    return (*items[:at], item, *items[at + 1 :])


def with_record(w: World, segment: int, record: Record) -> World:
    """With another record."""
    return w._replace(records=with_at(w.records, segment, record))


def with_intent(w: World, segments: tuple[int, ...] | range, intent: Intent | None) -> World:
    """With an intent in the records of these segments, or without one."""
    for segment in segments:
        w = with_record(w, segment, w.records[segment]._replace(intent=intent))
    return w


def with_opened(w: World, x: int, segment: int, known: Opened | None) -> World:
    """With what a broker knows of a segment."""
    return w._replace(opened=with_at(w.opened, x, with_at(w.opened[x], segment, known)))


def with_entry(w: World, segment: int, entry: Entry) -> tuple[World, bool]:
    """With an entry in a chain; False if its name was taken."""
    chain = w.chains[segment]
    if any(there.name == entry.name for there in chain):
        return w, False
    longer = tuple(sorted((*chain, entry), key=lambda each: each.name))
    return w._replace(chains=with_at(w.chains, segment, longer)), True


def end_of(chain: Chain) -> tuple[int, int]:
    """The next name."""
    return (chain[-1].sequence + 1, chain[-1].first + len(chain[-1].messages)) if chain else (0, 0)


def is_sealed(chain: Chain) -> bool:
    """Whether a chain ends with a seal."""
    return bool(chain) and chain[-1].seal > 0


def table_of(w: World, b: Bounds, segment: int) -> Places:
    """The producer table as of a chain's end; where it has no entry, what the old segments' last entries say of it."""
    if chain := w.chains[segment]:
        return chain[-1].table
    if segment in b.olds:
        return NOWHERE
    last = [entry for old in b.olds if old not in w.expired for entry in w.chains[old][-1:]]
    mine = b.messages_of(segment)
    return frozenset(place for entry in last for place in entry.table if place.message in mine)

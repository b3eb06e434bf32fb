"""The start offsets of all segments, as this broker knows them: retention has removed the rows below.

A part of the catalog's view (broker/topics/catalog). To be behind is safe: between the raise of a start and the
deletion of files lies the grace (docs/protocol.md, "Retention"), in which a broker that cannot hear of it loses its
lease. A start whose record cannot be read stays as it was known before.
"""

from collections.abc import Callable, Mapping

from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change, Entry
from seaweedq.coordination.records import StartRecord
from seaweedq.coordination.versioned import Unreadable, Versioned
from seaweedq.segments.entry import EntryName

NO_START = Versioned.new(StartRecord(0, 0))
Raised = Callable[[str, int, int, EntryName], None]  # topic, incarnation, segment, start


class StartOffsets:
    """The records of starts by topic, incarnation and segment. `raised` is told of each that has risen."""

    def __init__(self, raised: Raised) -> None:
        self._raised = raised
        self._starts: dict[str, dict[int, Versioned[StartRecord]]] = {}  # by topic/incarnation
        self._unreadable: dict[str, Unreadable] = {}

    def held(self, topic: str, incarnation: int, segment: int) -> Versioned[StartRecord]:
        """Returns the record of a segment's start, with revision 0 where there is none. Raises NeedsNewerBroker."""
        if found := self._unreadable.get(keys.STARTS.key(topic, incarnation, segment)):
            raise found.error()
        return self.known(topic, incarnation).get(segment, NO_START)

    def start(self, topic: str, incarnation: int, segment: int) -> EntryName:
        """Returns the first entry of a segment that counts, as it was known last. Raises NeedsNewerBroker where it
        never was."""
        known = self.known(topic, incarnation).get(segment)
        return start_name((known or self.held(topic, incarnation, segment)).record)

    def is_emptied(self, topic: str, incarnation: int, segment: int) -> bool:
        """Tells whether retention has taken all entries of a sealed segment, as far as is known here."""
        known = self.known(topic, incarnation).get(segment)
        return known is not None and known.record.emptied

    def known(self, topic: str, incarnation: int) -> Mapping[int, Versioned[StartRecord]]:
        """Returns the records of a topic's starts by segment, as they were known last."""
        return self._starts.get(f"{topic}/{incarnation}", {})

    def offsets(self, topic: str, incarnation: int) -> dict[int, int]:
        """Returns the start offsets of a topic's segments that do not begin at 0."""
        return {segment: name.first_offset for segment, name in self.names(topic, incarnation).items()}

    def names(self, topic: str, incarnation: int) -> dict[int, EntryName]:
        """Returns the first entries that count, of the segments of which retention has taken any."""
        known = self.known(topic, incarnation)
        return {segment: start_name(known[segment].record) for segment in sorted(known)}

    def apply(self, change: Change) -> None:
        """Takes in a change of a start's key."""
        topic, incarnation, segment = keys.STARTS.parse(change.key)
        self._unreadable.pop(change.key, None)
        if change.value is None:
            known = self._starts.get(f"{topic}/{incarnation}", {})
            if known.pop(segment, None) and not known:
                del self._starts[f"{topic}/{incarnation}"]
            return
        held = keys.STARTS.read(Entry(change.key, change.value, change.revision))
        if isinstance(held, Unreadable):
            self._unreadable[change.key] = held
            return
        self._starts.setdefault(f"{topic}/{incarnation}", {})[segment] = held
        self._raised(topic, incarnation, segment, start_name(held.record))


def start_name(record: StartRecord) -> EntryName:
    """Returns the name of the first entry that counts."""
    return EntryName(record.sequence, record.offset)

"""The rules of `checker` for segments that give way to others: splits, merges, rolls. Pure.

Ids rise along the lineage, so that (segment, offset) is a key's order over all its segments.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from seaweedq.segments.keyrange import KEY_SPACE, hash_key
from tests.support.history.history import Event
from tests.support.history.judged import Id, Run, Segment

FOLLOWED = "followed"
"""The note of a read by one that follows segments: a segment's messages after those of all its predecessors."""


def tiled(run: Run) -> Iterator[str]:
    """The open segments have each key once, and what gave way has successors on just its range."""
    yield from _gaps({n: s for n, s in run.segments.items() if s.end is None}, 0, KEY_SPACE, "the open segments")
    for number, segment in run.segments.items():
        if segment.end is not None:
            cut = {n: _clipped(run.segments[n], segment) for n in segment.successors if n in run.segments}
            yield from _gaps(cut, segment.low, segment.high, f"the successors of {number}")


def kin(run: Run) -> Iterator[str]:
    """Predecessors and successors know one another, and ids rise from the one to the other."""
    for number, segment in run.segments.items():
        for after in segment.successors:
            if after <= number or after not in run.segments or number not in run.segments[after].predecessors:
                yield f"{number} names {after} a successor, which does not name it a predecessor, or is older"
        for before in segment.predecessors:
            if before not in run.segments or number not in run.segments[before].successors:
                yield f"{number} names {before} a predecessor, which does not name it a successor"


def ended(run: Run) -> Iterator[str]:
    """A sealed segment has just the messages below its end, and every message a segment."""
    counts: dict[int, int] = defaultdict(int)
    for row in run.http if run.segments else ():
        counts[row.segment] += 1
        if row.segment not in run.segments:
            yield f"{row} is in a segment that is not in the map"
    for number, segment in run.segments.items():
        if segment.end is not None and counts[number] != segment.end:
            yield f"segment {number} has ended at {segment.end}, and {counts[number]} messages are read of it"


def at_home(run: Run) -> Iterator[str]:
    """A message with a key is in a segment that has the key's hash."""
    for row in run.http:
        segment = run.segments.get(row.segment)
        if segment and row.key is not None and not segment.low <= hash_key(row.key) < segment.high:
            yield f"{row}, whose key hashes to {hash_key(row.key)}, is in [{segment.low}, {segment.high})"


def key_time(run: Run) -> Iterator[str]:
    """What was acknowledged before another publish of its key began comes before it, over all segments."""
    begun: dict[str | None, float] = {}
    for event in run.lines("publish", "invoke"):
        begun.setdefault(event.hash, event.t)
    told: dict[str | None, list[Event]] = defaultdict(list)
    seen: set[str | None] = set()
    for event in run.lines("publish", "ok"):
        if event.key is not None and event.hash not in seen:
            told[event.key].append(event)
            seen.add(event.hash)
    for key, events in told.items():
        known, newest = iter(sorted(events, key=lambda e: e.t)), (-1, -1)
        earlier = next(known)
        for event in sorted(events, key=lambda e: begun[e.hash]):
            while earlier.t < begun[event.hash]:
                newest, earlier = max(newest, _id(earlier)), next(known)
            if _id(event) < newest:
                yield f"{key}: {_id(event)} was begun after {newest} was acknowledged"


def followed(run: Run) -> Iterator[str]:
    """Who follows segments reads no message twice, those of a key and a producer in order, and a segment after all
    messages of its predecessors."""
    read: dict[tuple[str, int], set[int]] = defaultdict(set)  # offsets, by who follows and segment
    newest: dict[tuple[str, str | None, str | None], int] = {}
    for event in run.lines("read", "ok"):
        if event.note != FOLLOWED or event.hash is None:
            continue
        segment, offset = _id(event)
        for before in run.segments[segment].predecessors if segment in run.segments else ():
            if len(read[event.proc, before]) != run.segments[before].end:
                yield f"{event.proc} has read {segment}-{offset} before the end of {before}"
        if offset in read[event.proc, segment]:
            yield f"{event.proc} has read {segment}-{offset} twice"
        read[event.proc, segment].add(offset)
        at = (event.proc, event.key, event.producer)
        if event.key is not None and event.seq is not None and "ok" in run.outcomes.get(event.hash, ()):
            if event.seq < newest.get(at, -1):
                yield f"{event.proc} has read {segment}-{offset} of {event.key} behind {event.producer}:{newest[at]}"
            newest[at] = event.seq


def handed_on(run: Run) -> Iterator[str]:
    """A message comes to a subscriber after all messages of all its segment's ancestors were acked or have died, but in
    `shared`."""
    acks: dict[str, dict[Id, float]] = defaultdict(dict)
    for event in run.lines("ack", "invoke"):
        acks[event.subscription].setdefault(_id(event), event.t)
    first: dict[tuple[str, int], float] = {}
    for event in run.lines("deliver", "ok"):
        first.setdefault((event.subscription, event.segment or 0), event.t)
    for (name, number), at in first.items():
        if run.terms_of(name).mode == "shared":
            continue
        for before in ancestors(run.segments, number):
            alive = (n for n in range(run.segments[before].end or 0) if (before, n) not in run.dead[name])
            late = [n for n in alive if acks[name].get((before, n), at) >= at]
            if late:
                yield f"{name}: segment {number} came at {at:.3f}, and {late[:5]} of {before} were not acked"


RULES: Sequence[Callable[[Run], Iterable[str]]] = (tiled, kin, ended, at_home, key_time, followed, handed_on)


def _gaps(segments: Mapping[int, Segment], low: int, high: int, whose: str) -> Iterator[str]:
    at = low
    for number, segment in sorted(segments.items(), key=lambda each: each[1].low):
        if segment.low != at:
            yield f"{whose}: {number} begins at {segment.low}, and not at {at}"
        at = segment.high
    if segments and at != high:
        yield f"{whose} end at {at}, and not at {high}"


def _clipped(segment: Segment, whole: Segment) -> Segment:
    return Segment(max(segment.low, whole.low), min(segment.high, whole.high))


def ancestors(segments: Mapping[int, Segment], number: int) -> set[int]:
    """The segments from which this one comes, as far as they are in the map."""
    found: set[int] = set()
    todo = [number]
    while todo:
        segment = segments.get(todo.pop())
        before = set(segment.predecessors) - found if segment else set()
        found |= before
        todo += before
    return found & segments.keys()


def _id(event: Event) -> Id:
    return event.segment or 0, event.offset or 0

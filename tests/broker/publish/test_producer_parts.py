"""Producer tables by part, and where the rows of a repeat are: whatever splits and merges lie between a request and its
repeat, each message has one id."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seaweedq.broker.publish.batch_split import Batch, Slice, is_whole, split_again
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange, tiles_key_space
from seaweedq.segments.producers import New, OutOfOrder
from tests.support.reshape.lineage_world import Id, Request, Topic
from tests.support.tiers import examples

GRID = 16  # hashes and points come from a coarse grid, so that they meet
HASH = st.integers(0, 2 * GRID - 1).map(lambda n: n * KEY_SPACE // (2 * GRID))
POINT = st.integers(1, GRID - 1).map(lambda n: n * KEY_SPACE // GRID)
PRODUCER = st.sampled_from(["a", "b", "c"])


class Lineage(RuleBasedStateMachine):
    """Producers with one request in flight each, of which some slices get lost on the way, and answers too."""

    @initialize(remembered=st.integers(1, 8))
    def begin(self, remembered: int) -> None:
        self.topic = Topic(remembered)
        self.next = dict.fromkeys("abc", 0)
        self.unanswered: dict[str, Request] = {}
        self.answered: dict[str, list[Request]] = {"a": [], "b": [], "c": []}
        self.ids: dict[tuple[str, int], Id] = {}

    @rule(producer=PRODUCER, gap=st.integers(0, 2), hashes=st.lists(HASH, min_size=1, max_size=12), data=st.data())
    def send(self, producer: str, gap: int, hashes: list[int], data: st.DataObject) -> None:
        """The next request, or the last one as long as it was not answered; any of its slices may be lost."""
        request = self.unanswered.get(producer) or Request(producer, self.next[producer] + gap, tuple(hashes))
        self.next[producer] = request.high + 1
        self.unanswered[producer] = request
        batch, slices = self.topic.slices(request)
        arrived = data.draw(st.lists(st.booleans(), min_size=len(slices), max_size=len(slices)))
        for one, there in zip(slices, arrived, strict=True):
            if there:
                self.arrive(request, batch, one)
        if all(arrived) and data.draw(st.booleans()):
            self.answered[producer].append(self.unanswered.pop(producer))

    @rule(producer=PRODUCER, data=st.data())
    def repeat(self, producer: str, data: st.DataObject) -> None:
        """An old request comes again: it has the ids that it had, or it is too old."""
        if not self.answered[producer]:
            return
        request = data.draw(st.sampled_from(self.answered[producer]))
        batch, slices = self.topic.slices(request)
        late = [r for r in self.answered[producer] + list(self.unanswered.values()) if r.low > request.high]
        for one in slices:
            verdict = self.topic.judge(request, one)
            assert not isinstance(verdict, New), "all of it was taken"
            if isinstance(verdict, OutOfOrder):
                assert len(late) >= self.topic.remembered, "it is one of those that are remembered"
                continue
            outcome = self.topic.take(request, one)
            assert not isinstance(outcome, OutOfOrder)
            self.note(request, self.topic.ids(batch, one, outcome))

    @rule(producer=PRODUCER, hashes=st.lists(HASH, min_size=2, max_size=12), data=st.data())
    def send_while_segments_change(self, producer: str, hashes: list[int], data: st.DataObject) -> None:
        """Of a request that is under way some slices come in time, some are lost, and some meet sealed segments."""
        request = self.unanswered.get(producer) or Request(producer, self.next[producer], tuple(hashes))
        self.next[producer] = request.high + 1
        self.unanswered[producer] = request
        batch, slices = self.topic.slices(request)
        fates = data.draw(st.lists(st.sampled_from("tlb"), min_size=len(slices), max_size=len(slices)))
        for one, fate in zip(slices, fates, strict=True):
            if fate == "t":
                self.arrive(request, batch, one)
        first = data.draw(st.integers(0, len(self.topic.open) - 1))
        last = data.draw(st.integers(first, len(self.topic.open) - 1))
        low = self.topic.records[self.topic.open[first]].low
        high = self.topic.records[self.topic.open[last]].high
        points = data.draw(st.sets(POINT, max_size=2))
        self.topic.replace(self.topic.open[first : last + 1], sorted(p for p in points if low < p < high))
        for one, fate in zip(slices, fates, strict=True):
            if fate == "b" and self.topic.records[one.segment].state == "open":
                self.arrive(request, batch, one)
        bounced = [
            p
            for p, f in zip(slices, fates, strict=True)
            if f == "b" and self.topic.records[p.segment].state == "sealed"
        ]
        if bounced:
            for one in split_again(self.topic.bounds, batch, bounced):
                if is_whole(self.topic.bounds, batch, one):
                    self.arrive(request, batch, one)

    def arrive(self, request: Request, batch: Batch, one: Slice) -> None:
        outcome = self.topic.take(request, one)
        assert not isinstance(outcome, OutOfOrder), "one request in flight is never out of order"
        self.note(request, self.topic.ids(batch, one, outcome))

    @rule(data=st.data(), points=st.sets(POINT, max_size=3))
    def split(self, data: st.DataObject, points: set[int]) -> None:
        """One segment gives way to several, or to one."""
        segment = data.draw(st.sampled_from(self.topic.open))
        inside = KeyRange(self.topic.records[segment].low + 1, self.topic.records[segment].high)
        self.topic.replace([segment], sorted(p for p in points if p in inside))

    @precondition(lambda self: hasattr(self, "topic") and len(self.topic.open) > 1)
    @rule(data=st.data(), points=st.sets(POINT, max_size=2))
    def merge(self, data: st.DataObject, points: set[int]) -> None:
        """Neighbours give way to one, or are cut anew."""
        first = data.draw(st.integers(0, len(self.topic.open) - 2))
        last = data.draw(st.integers(first + 1, min(first + 4, len(self.topic.open) - 1)))
        segments = self.topic.open[first : last + 1]
        low, high = self.topic.records[segments[0]].low, self.topic.records[segments[-1]].high
        self.topic.replace(segments, sorted(p for p in points if low < p < high))

    @rule(data=st.data())
    def recover(self, data: st.DataObject) -> None:
        self.topic.restart(data.draw(st.sampled_from(self.topic.open)))

    @invariant()
    def parts_tile_the_key_space(self) -> None:
        if hasattr(self, "topic"):
            records = [self.topic.records[n] for n in self.topic.open]
            assert tiles_key_space(KeyRange(r.low, r.high) for r in records)
            parts = [t.key_range for n in self.topic.open for t in self.topic.tables[n].parts]
            assert tiles_key_space(parts)
            assert [p.low for p in parts] == [low for r in records for low in r.parts]

    @invariant()
    def every_message_is_there_once(self) -> None:
        if hasattr(self, "topic"):
            there = [message for content in self.topic.contents.values() for message in content]
            assert len(there) == len(set(there)), "one is there twice"

    def note(self, request: Request, found: dict[int, Id]) -> None:
        for index, id in found.items():
            message = (request.producer, request.low + index)
            assert self.topic.contents[id[0]][id[1]] == message, f"{message} is not at {id}"
            assert self.ids.setdefault(message, id) == id


Lineage.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=50, deadline=None)
test_lineage = Lineage.TestCase


def test_rows_that_bounce_into_a_part_without_their_others_are_not_taken() -> None:
    """Two parts that know no producer grow together while a request to both is under way, and one slice is lost."""
    topic = Topic()
    left, right = topic.replace([0], [KEY_SPACE // 2])
    request = Request("p", 0, (1, KEY_SPACE - 5, 2, KEY_SPACE - 4))
    batch, slices = topic.slices(request)
    topic.replace([left, right], [])
    for lost in range(2):
        (again,) = split_again(topic.bounds, batch, [slices[lost]])
        assert not is_whole(topic.bounds, batch, again)
    (again,) = split_again(topic.bounds, batch, slices)
    assert is_whole(topic.bounds, batch, again)


def test_a_merge_keeps_apart_what_either_side_knows() -> None:
    topic = Topic()
    left, right = topic.replace([0], [KEY_SPACE // 2])
    request = Request("p", 0, (1, KEY_SPACE - 5))
    batch, slices = topic.slices(request)
    topic.take(request, slices[0])
    topic.replace([left, right], [])
    (again,) = split_again(topic.bounds, batch, [slices[1]])
    assert is_whole(topic.bounds, batch, again)
    assert topic.judge(request, again) == New()

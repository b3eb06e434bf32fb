"""What holds of every decision, whatever the segments, policies and brokers are."""

from collections import Counter
from dataclasses import dataclass
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from seaweedq.balancer.load import SegmentLoad, costs
from seaweedq.balancer.placement import Host, SegmentId, TopicId
from seaweedq.balancer.policy import ScalingPolicy
from seaweedq.balancer.scaling import MAX_PARTS, Gather, HotKey, Merge, Plan, Segment, Split, decide
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange

RATES = st.sampled_from([0.0, 0.0, 1.0, 20.0, 40.0, 90.0, 150.0, 700.0]) | st.floats(0, 1e4)
AVERAGES = st.tuples(RATES, RATES, RATES, RATES) | RATES.map(lambda rate: (rate,) * 4)
SECONDS = st.sampled_from([0.0, 1.0, 700.0, 1e5]) | st.floats(0, 1e5)
LOADS = st.none() | st.builds(
    SegmentLoad,
    AVERAGES,
    AVERAGES,
    st.just((0.0,) * 4) | AVERAGES,
    st.just((0.0,) * 4),
    SECONDS,
    st.just(()) | st.lists(st.floats(0, 9), min_size=64, max_size=64).map(tuple),
    st.none() | st.integers(0, KEY_SPACE - 1),
    st.sampled_from([0.0, 0.3, 0.6, 1.0]),
)


@dataclass
class Round:
    """One input."""

    segments: list[Segment]
    policies: dict[TopicId, ScalingPolicy]
    hosts: list[Host]
    limit: int

    def decided(self) -> list[Plan]:
        counted = costs({segment.id: segment.load for segment in self.segments if segment.load})
        return decide(self.segments, self.policies, counted, self.hosts, self.limit)

    def by_id(self) -> dict[SegmentId, Segment]:
        return {segment.id: segment for segment in self.segments}


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    hosts = [Host(name, draw(st.sampled_from("xy")), draw(st.integers(0, 5)) == 0) for name in names]
    segments: list[Segment] = []
    policies: dict[TopicId, ScalingPolicy] = {}
    for topic in [("t", 0), ("t", 1), ("u", 0)][: draw(st.integers(1, 3))]:
        points = draw(st.lists(st.integers(1, KEY_SPACE - 1) | st.integers(1, 20), unique=True, max_size=8))
        for number, key_range in enumerate(KeyRange(0, KEY_SPACE).cut(sorted(points))):
            owner, locked = draw(st.sampled_from([*names, names[0], "gone"])), draw(st.integers(0, 5)) == 0
            becomes = draw(st.sampled_from([0.5, 1.0, 4.0])) if locked else 1.0
            load = draw(LOADS)
            segments.append(Segment((*topic, number), key_range, owner, draw(SECONDS), load, locked, becomes))
        least = draw(st.integers(1, 9))
        policies[topic] = ScalingPolicy(100, 100, least, least + draw(st.integers(0, 40)), draw(st.floats(1, 1200)))
    return Round(segments, policies, hosts, draw(st.integers(0, 20)))


def touched(plan: Plan) -> list[SegmentId]:
    if isinstance(plan, Merge):
        return [plan.left, plan.right]
    return [plan.segment, plan.neighbour] if isinstance(plan, Gather) else [plan.segment]


@given(rounds())
def test_no_segment_is_in_two_plans_and_all_may_be_touched(given_round: Round) -> None:
    plans, segments = given_round.decided(), given_round.by_id()
    takers = {host.broker for host in given_round.hosts if not host.draining}
    ids = [each for plan in plans for each in touched(plan)]
    assert len(ids) == len(set(ids))
    assert sum(not isinstance(plan, HotKey) for plan in plans) <= given_round.limit
    for each in ids:
        assert segments[each].load is not None
        assert not segments[each].locked
        assert segments[each].owner in takers


@given(rounds())
def test_splits_tile_the_range_for_brokers_that_take_them(given_round: Round) -> None:
    segments, takers = given_round.by_id(), {host.broker for host in given_round.hosts if not host.draining}
    for plan in given_round.decided():
        if isinstance(plan, Split):
            pieces = segments[plan.segment].range.cut(plan.points)  # ValueError unless they rise within it
            assert 2 <= len(pieces) == len(plan.owners) <= MAX_PARTS
            assert set(plan.owners) <= takers


@given(rounds())
def test_only_neighbours_are_merged_and_owners_are_as_they_should_be(given_round: Round) -> None:
    segments = given_round.by_id()
    for plan in given_round.decided():
        if isinstance(plan, Merge):
            left, right = segments[plan.left], segments[plan.right]
            assert left.id[:2] == right.id[:2]
            assert left.range.high == right.range.low
            assert left.owner == right.owner
        if isinstance(plan, Gather):
            moved, other = segments[plan.segment], segments[plan.neighbour]
            assert moved.range.high == other.range.low or other.range.high == moved.range.low
            assert (plan.source, plan.target) == (moved.owner, other.owner)
            assert plan.source != plan.target


@given(rounds())
def test_max_and_min_segments_hold_whatever_becomes_of_what_is_under_way(given_round: Round) -> None:
    most, least = Counter[TopicId](), Counter[TopicId]()
    for segment in given_round.segments:
        most[segment.id[:2]] += max(1, segment.becomes)  # type: ignore[assignment]
        least[segment.id[:2]] += min(1, segment.becomes)  # type: ignore[assignment]
    for plan in given_round.decided():
        topic = touched(plan)[0][:2]
        if isinstance(plan, Split):
            most[topic] += len(plan.points)
            assert most[topic] <= given_round.policies[topic].max_segments
        elif not isinstance(plan, HotKey):
            least[topic] -= 1
            assert least[topic] >= given_round.policies[topic].min_segments


@given(rounds(), st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(given_round: Round, random: Random) -> None:
    mixed = Round(
        random.sample(given_round.segments, len(given_round.segments)),
        dict(reversed(given_round.policies.items())),
        given_round.hosts[::-1],
        given_round.limit,
    )
    assert mixed.decided() == given_round.decided()


@given(rounds())
def test_what_was_merged_or_split_is_not_at_once_undone(given_round: Round) -> None:
    """A successor is new: it has no load and no age, and is left alone."""
    fresh = [
        Segment(each.id, each.range, each.owner, 0.0, SegmentLoad(), each.locked, each.becomes)
        for each in given_round.segments
    ]
    assert Round(fresh, given_round.policies, given_round.hosts, given_round.limit).decided() == []

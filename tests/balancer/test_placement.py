"""What holds of every placement: owners for unassigned segments and for a few new ones, and moves."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.balancer.load import with_unknown
from seaweedq.balancer.placement import Host, Move, SegmentId, assign, moves, spread, successor_of

Owned = dict[SegmentId, str]
Loads = dict[SegmentId, float]

ANY_LOAD = st.floats(0, 1e12)
SEGMENTS = st.tuples(st.sampled_from(["cats", "dogs", "mice"]), st.integers(1, 2), st.integers(0, 30))
HOSTS = [Host(f"b{number}", f"z{number % 2}") for number in range(4)]


@dataclass
class Cluster:
    """One input of a round."""

    hosts: list[Host]
    owned: Owned
    homeless: list[SegmentId]
    loads: Loads

    def takers(self) -> set[str]:
        return {host.broker for host in self.hosts if not host.draining}


@st.composite
def clusters(draw: st.DrawFn, load: st.SearchStrategy[float] = ANY_LOAD) -> Cluster:
    """Any cluster, with idle and hot segments, draining brokers and some that are gone."""
    names = [f"b{number}" for number in range(draw(st.integers(0, 8)))]
    hosts = [Host(name, draw(st.sampled_from(["", "x", "y"])), draw(st.integers(0, 4)) == 0) for name in names]
    owned = draw(st.dictionaries(SEGMENTS, st.sampled_from([*names, "gone"]), max_size=60))
    homeless = draw(st.lists(SEGMENTS.filter(lambda segment: segment not in owned), unique=True, max_size=30))
    loads = draw(st.dictionaries(st.sampled_from([*owned, *homeless]), load)) if owned or homeless else {}
    return Cluster(hosts, owned, homeless, loads)


@st.composite
def busy_clusters(draw: st.DrawFn) -> Cluster:
    """Many segments of similar loads on few brokers, anyhow."""
    hosts = hosts_of(draw(st.integers(1, 6)))
    segments = segments_of(draw(st.integers(8, 16)) * len(hosts))
    random = Random(draw(st.integers(0, 1000)))
    narrow = random.sample(hosts, random.randint(1, len(hosts)))
    owned = {segment: random.choice(narrow).broker for segment in segments}
    return Cluster(hosts, owned, [], {segment: random.uniform(1, 3) for segment in segments})


def hosts_of(count: int, zones: int = 3) -> list[Host]:
    return [Host(f"b{number:03}", f"z{number % zones}") for number in range(count)]


def segments_of(count: int, topics: int = 7) -> list[SegmentId]:
    return [(f"t{number % topics}", 0, number // topics) for number in range(count)]


def after(owned: Mapping[SegmentId, str], decided: Iterable[Move]) -> Owned:
    """Who owns what once the moves were made, each of which must fit."""
    owned = dict(owned)
    for move in decided:
        assert owned[move.segment] == move.source != move.target
        owned[move.segment] = move.target
    return owned


def load_of(
    hosts: Iterable[Host], owned: Mapping[SegmentId, str], loads: Mapping[SegmentId, float]
) -> dict[str, float]:
    totals = {host.broker: 0.0 for host in hosts}
    for segment, broker in owned.items():
        totals[broker] += loads[segment]
    return totals


@given(clusters())
def test_each_homeless_segment_goes_to_a_host_that_takes_it(cluster: Cluster) -> None:
    given_out = assign(cluster.homeless, cluster.owned, cluster.loads, cluster.hosts)
    assert set(given_out) == (set(cluster.homeless) if cluster.takers() else set())
    assert set(given_out.values()) <= cluster.takers()


@given(clusters(), st.randoms(use_true_random=False), st.integers(0, 40))
def test_the_order_of_the_input_does_not_matter(cluster: Cluster, random: Random, limit: int) -> None:
    def mixed(items: Iterable[object]) -> list[object]:
        return random.sample(list(items), len(list(items)))

    owned, loads = dict(mixed(cluster.owned.items())), dict(mixed(cluster.loads.items()))
    homeless, hosts = mixed(cluster.homeless), mixed(cluster.hosts)
    assert assign(cluster.homeless, cluster.owned, cluster.loads, cluster.hosts) == assign(
        homeless, owned, loads, hosts
    )
    assert moves(cluster.owned, cluster.loads, cluster.hosts, limit) == moves(owned, loads, hosts, limit)


@given(busy_clusters())
def test_what_is_given_out_is_even_and_stays(cluster: Cluster) -> None:
    owned = assign(list(cluster.owned), {}, cluster.loads, cluster.hosts)
    totals = load_of(cluster.hosts, owned, cluster.loads).values()
    assert max(totals) - min(totals) <= max(cluster.loads.values()) * 1.01
    assert moves(owned, cluster.loads, cluster.hosts, 100) == []


def test_the_lightest_broker_comes_first() -> None:
    owned: Owned = {("t", 0, 0): "b000", ("t", 0, 1): "b001", ("t", 0, 2): "b002"}
    loads: Loads = {("t", 0, 0): 5.0, ("t", 0, 1): 1.0, ("t", 0, 2): 5.0, ("u", 0, 0): 3.0}
    assert assign([("u", 0, 0)], owned, loads, hosts_of(3)) == {("u", 0, 0): "b001"}


def test_a_dead_brokers_segments_are_spread_though_nobody_reports_them() -> None:
    """If they counted as idle, all would fit on the survivor that is a little lighter."""
    segments = [("t", 0, number) for number in range(600)]
    owned = {segment: f"b{number % 2:03}" for number, segment in enumerate(segments[:400])}
    reported = {segment: 1.1 if broker == "b001" else 1.0 for segment, broker in owned.items()}
    assert Counter(assign(segments[400:], owned, reported, hosts_of(2)).values()) == {"b000": 200}
    counted = with_unknown(reported, segments)
    given = Counter(assign(segments[400:], owned, counted, hosts_of(2)).values())
    assert given["b000"] + given["b001"] == 200
    assert 80 <= given["b001"] < given["b000"]


@pytest.mark.parametrize("zones", [1, 2, 3])
def test_a_topic_is_spread_over_brokers_and_zones(zones: int) -> None:
    hosts = sorted(hosts_of(30, zones), key=lambda host: host.zone)
    others = {("other", 0, number): host.broker for number, host in enumerate(hosts)}
    homeless: list[SegmentId] = [("t", 0, number) for number in range(6)]
    brokers = assign(homeless, others, {}, hosts).values()
    assert len(set(brokers)) == 6
    assert set(Counter(host.zone for host in hosts if host.broker in brokers).values()) == {6 // zones}


@pytest.mark.parametrize(("zones", "expected"), [("xxy", "c"), ("xxx", "b"), ("xyy", "b")])
def test_a_topic_that_is_there_already_counts_for_the_spread(zones: str, expected: str) -> None:
    hosts = [Host(name, zone) for name, zone in zip("abc", zones, strict=True)]
    owned: Owned = {("t", 0, 0): "a", ("u", 0, 0): "b", ("u", 0, 1): "c"}
    assert assign([("t", 0, 1)], owned, {}, hosts) == {("t", 0, 1): expected}


def test_another_zone_is_better_than_another_broker_of_the_same() -> None:
    hosts = [Host("a", "x"), Host("b", "x"), Host("c", "y")]
    owned: Owned = {("u", 0, 0): "a", ("t", 0, 0): "b", ("u", 0, 1): "c"}
    assert assign([("t", 0, 1)], owned, {}, hosts) == {("t", 0, 1): "c"}


def test_the_heaviest_segment_is_given_out_first() -> None:
    segments = segments_of(3)
    loads = dict(zip(segments, [1.0, 1.0, 2.0], strict=True))
    owned = assign(segments, {}, loads, hosts_of(2))
    assert owned[segments[0]] == owned[segments[1]] != owned[segments[2]]


@given(clusters(), st.integers(-1, 40))
def test_moves_fit_and_none_goes_to_a_draining_host(cluster: Cluster, limit: int) -> None:
    decided = moves(cluster.owned, cluster.loads, cluster.hosts, limit)
    after(cluster.owned, decided)
    assert len({move.segment for move in decided}) == len(decided) <= max(limit, 0)
    assert {move.target for move in decided} <= cluster.takers()
    assert "gone" not in {move.source for move in decided}


@given(clusters(st.integers(1, 50).map(float)) | busy_clusters())
def test_a_move_between_hosts_that_take_lowers_the_maximum_of_the_two(cluster: Cluster) -> None:
    loads = dict.fromkeys(cluster.owned, 25.0) | cluster.loads
    owned = {segment: broker for segment, broker in cluster.owned.items() if broker != "gone"}
    for move in moves(owned, loads, cluster.hosts, 100):
        totals = load_of(cluster.hosts, owned, loads)
        owned = after(owned, [move])
        if move.source in cluster.takers():
            now = load_of(cluster.hosts, owned, loads)
            assert max(now[move.source], now[move.target]) < totals[move.source] * 1.0005  # loads are rounded


@given(clusters(), st.sampled_from([0.0, 0.1, 0.2, 0.5]))
def test_once_the_moves_are_made_there_are_none(cluster: Cluster, tolerance: float) -> None:
    owned = after(cluster.owned, moves(cluster.owned, cluster.loads, cluster.hosts, 1000, tolerance))
    assert moves(owned, cluster.loads, cluster.hosts, 1000, tolerance) == []
    if cluster.takers():
        assert set(owned.values()) <= cluster.takers() | {"gone"}


@given(clusters(), st.integers(1, 5))
def test_rounds_of_few_moves_end_too(cluster: Cluster, limit: int) -> None:
    owned = dict(cluster.owned)
    for _ in range(500):
        if not (decided := moves(owned, cluster.loads, cluster.hosts, limit)):
            return
        owned = after(owned, decided)
    pytest.fail("it still moves segments after 500 rounds")


@given(busy_clusters())
def test_the_busiest_ends_within_the_tolerance_where_segments_are_small(cluster: Cluster) -> None:
    owned = after(cluster.owned, moves(cluster.owned, cluster.loads, cluster.hosts, 1000))
    totals = load_of(cluster.hosts, owned, cluster.loads)
    mean = sum(totals.values()) / len(totals)
    for host in totals:
        least = min(cluster.loads[segment] for segment, broker in owned.items() if broker == host)
        assert totals[host] <= max(1.201 * mean, min(totals.values()) + 1.001 * least)


@pytest.mark.parametrize("idle", [True, False])
@pytest.mark.parametrize("count", [4, 9, 40])
def test_a_broker_that_joins_gets_its_share_in_few_moves(count: int, idle: bool) -> None:
    segments, random = segments_of(count * 20), Random(count)
    loads = {} if idle else {segment: random.uniform(1, 3) for segment in segments}
    owned = assign(segments, {}, loads, hosts_of(count))
    hosts = hosts_of(count + 1)
    rounds = 0
    while decided := moves(owned, loads, hosts, 8):
        assert {move.target for move in decided} == {hosts[-1].broker}
        owned, rounds = after(owned, decided), rounds + 1
    share = load_of(hosts, owned, loads or dict.fromkeys(segments, 1.0))[hosts[-1].broker] * (count + 1)
    assert 0.75 <= share / sum((loads or dict.fromkeys(segments, 1.0)).values()) <= 1.1
    assert rounds <= 3


def test_a_broker_that_joins_does_not_get_one_topic() -> None:
    segments = segments_of(800, topics=20)
    hosts = hosts_of(41)
    decided = moves(assign(segments, {}, {}, hosts[:-1]), {}, hosts, 100)
    assert max(Counter(move.segment[0] for move in decided).values()) <= 4


def test_a_hot_segment_stays_and_the_others_are_even_without_it() -> None:
    segments, hosts = segments_of(100), hosts_of(10)
    loads = {segments[0]: 1000.0} | dict.fromkeys(segments[1:], 1.0)
    owned = {segment: hosts[number % 9].broker for number, segment in enumerate(segments)}
    decided = moves(owned, loads, hosts, 100)
    assert segments[0] not in {move.segment for move in decided}
    counts = Counter(after(owned, decided).values())
    assert 2 <= counts.pop(hosts[0].broker) <= 4
    assert len(counts) == 9
    assert max(counts.values()) <= 13


def test_a_hot_segment_does_not_make_the_others_look_uneven() -> None:
    segments, hosts = segments_of(111), hosts_of(11)
    loads = {segments[0]: 1000.0} | dict.fromkeys(segments[1:], 1.0)
    others = [host.broker for host in hosts[1:]]
    owned = {segment: others[number % 10] for number, segment in enumerate(segments)} | {segments[0]: "b000"}
    owned |= {segments[1]: others[2], segments[11]: others[3]}
    assert moves(owned, loads, hosts, 100) == []


def test_the_most_useful_move_comes_first() -> None:
    segments, hosts = segments_of(8), hosts_of(2)
    loads = dict(zip(segments, [9.0, 8.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], strict=True))
    assert moves(dict.fromkeys(segments, "b000"), loads, hosts, 1) == [Move(segments[0], "b000", "b001")]


def test_two_idle_segments_do_not_stay_together() -> None:
    segments = segments_of(2)
    assert len(moves(dict.fromkeys(segments, "b000"), {}, hosts_of(10), 5)) == 1


def test_a_draining_host_is_emptied_before_anything_else_moves() -> None:
    segments, hosts = segments_of(60), [Host("old", draining=True), Host("a"), Host("b")]
    owned = {segment: "old" if number < 20 else "a" for number, segment in enumerate(segments)}
    assert {move.source for move in moves(owned, {}, hosts, 20)} == {"old"}
    assert Counter(after(owned, moves(owned, {}, hosts, 100)).values()).keys() == {"a", "b"}


@given(st.text(), st.lists(st.sampled_from("abcdefgh"), unique=True))
def test_a_key_moves_only_where_its_own_host_goes(key: str, names: list[str]) -> None:
    hosts = [Host(name) for name in names]
    chosen = successor_of(key, hosts)
    assert (chosen is None) == (not hosts)
    for gone in hosts:
        for left in ([host for host in hosts if host != gone], [*hosts, Host(gone.broker, draining=True)][::-1]):
            left = [host for host in left if host != gone]
            assert (successor_of(key, left) == chosen) == (gone.broker != chosen)


def test_keys_are_spread_and_the_hash_is_the_same_everywhere() -> None:
    hosts = hosts_of(10)
    counts = Counter(successor_of(f"key-{number}", hosts) for number in range(5000))
    assert len(counts) == 10
    assert 400 <= min(counts.values()) <= max(counts.values()) <= 600
    assert [successor_of(key, hosts) for key in ("flights/audit", "flights/alerts", "é")] == ["b001", "b009", "b006"]


def new(*loads: float) -> dict[SegmentId, float]:
    return {("t", 0, -number): load for number, load in enumerate(loads, 1)}


@given(
    st.lists(st.floats(0, 1e12), max_size=40),
    st.dictionaries(st.sampled_from("abcde"), st.floats(0, 1e12)),
    st.lists(st.sampled_from("abcd"), unique=True),
)
def test_each_gets_one_that_takes_it_whatever_the_order(
    loads: list[float], totals: dict[str, float], names: list[str]
) -> None:
    hosts = [Host(name, draining=name == "c") for name in names]
    given_out = spread(new(*loads), {}, totals, hosts)
    takers = set(names) - {"c"}
    assert set(given_out) == (set(new(*loads)) if takers else set())
    assert set(given_out.values()) <= takers
    backwards = dict(reversed(new(*loads).items()))
    assert spread(backwards, {}, dict(reversed(totals.items())), hosts[::-1]) == given_out


def test_a_load_that_has_all_but_faded_is_none() -> None:
    assert spread(new(5e-324), {}, {"a": 1.0}, [Host("a")]) == {("t", 0, -1): "a"}


@pytest.mark.parametrize("count", [4, 8, 32])
def test_equal_parts_are_even_over_equal_brokers(count: int) -> None:
    owners = Counter(spread(new(*[5.0] * count), {}, {}, HOSTS).values())
    assert set(owners.values()) == {count // 4}


def test_a_busy_broker_gets_none_and_an_idle_one_most() -> None:
    owners = Counter(spread(new(*[1.0] * 6), {}, {"b0": 100.0, "b1": 4.0, "b2": 4.0}, HOSTS).values())
    assert owners["b0"] == 0
    assert owners["b3"] == 4


def test_the_topics_other_segments_and_zones_count() -> None:
    kin: dict[SegmentId, str] = {("t", 0, 0): "b0", ("t", 0, 1): "b1", ("t", 0, 2): "b2", ("u", 0, 0): "b3"}
    assert set(spread(new(1.0), kin, {}, HOSTS).values()) == {"b3"}
    assert set(spread(new(1.0), {("t", 0, 0): "b0"}, {}, HOSTS).values()) <= {"b1", "b3"}

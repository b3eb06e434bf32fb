"""The load of a segment: what its owner observes, how it is told, and what it counts as."""

import msgspec
import numpy as np
import pytest

from seaweedq.balancer.load import KNOWN_S, MESSAGE_BYTES, LoadMeter, SegmentLoad, costs, with_unknown
from seaweedq.segments.keyrange import tile

RANGE = tile(1)[0]
COOL_DOWN_S = 600.0


def metered(seconds: int, messages: int, size_bytes: int) -> LoadMeter:
    meter = LoadMeter(RANGE)
    for _ in range(seconds):
        meter.sample(np.array([5, 5, 2**30], np.int32), messages)
        meter.tick(messages, size_bytes, 1.0, COOL_DOWN_S)
    return meter


def test_the_report_goes_over_the_wire_whole() -> None:
    load = metered(30, 100, 5000).load()
    assert load.observed_s == 30
    assert load.corrected_messages_per_s == pytest.approx((100.0,) * 4)
    assert load.corrected_bytes_per_s == pytest.approx((5000.0,) * 4)
    assert load.hottest == 5
    assert load.hot_share == pytest.approx(2 / 3)
    assert load.bins[0] == pytest.approx(2 * load.bins[32])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(load), type=SegmentLoad) == load


def test_a_cool_segment_says_little() -> None:
    load = metered(30, 100, 5000).load(keys=False)
    assert (load.bins, load.hottest, load.hot_share) == ((), None, 0.0)
    assert len(msgspec.msgpack.encode(load)) < 200
    assert LoadMeter(RANGE).load() == SegmentLoad()


def test_keyless_rows_are_even() -> None:
    meter = LoadMeter(RANGE)
    meter.sample_keyless(64.0)
    assert meter.load().bins == (1.0,) * 64
    assert meter.load().hottest is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages_per_s": (1.0,) * 3},
        {"bytes_per_s": (float("nan"),) * 4},
        {"bytes_peaks": (float("inf"),) * 4},
        {"observed_s": -1.0},
        {"bins": (1.0,) * 65},
        {"hottest": 2**31 - 1},
        {"hot_share": 1.1},
    ],
)
def test_what_no_owner_can_say_is_not_decoded(wrong: dict[str, object]) -> None:
    told = msgspec.msgpack.encode(SegmentLoad(**wrong))  # type: ignore[arg-type]
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(told, type=SegmentLoad)


def test_a_move_forgets_nothing() -> None:
    whole, first, second = metered(90, 100, 5000), metered(50, 100, 5000), metered(40, 100, 5000)
    joined = second.load().following(first.load(), COOL_DOWN_S)
    assert joined.observed_s == 90
    for name in ("messages_per_s", "bytes_per_s", "messages_peaks", "bytes_peaks"):
        assert getattr(joined, name) == pytest.approx(getattr(whole.load(), name))


def test_a_message_costs_as_much_as_some_bytes() -> None:
    segment = ("t", 0, 1)
    assert costs({segment: metered(20, 0, 1000).load()})[segment] == pytest.approx(1000)
    assert costs({segment: metered(20, 10, 0).load()})[segment] == pytest.approx(10 * MESSAGE_BYTES)


def test_who_is_not_known_yet_counts_as_the_mean_of_its_topic() -> None:
    known = {("t", 0, number): metered(20, 0, size).load() for number, size in enumerate((100, 300))}
    barely = metered(int(KNOWN_S) - 1, 0, 10**6).load()
    fresh = {("t", 0, 7): SegmentLoad(), ("t", 0, 8): barely, ("u", 0, 0): SegmentLoad()}
    counted = costs(known | fresh)
    assert counted[("t", 0, 7)] == counted[("t", 0, 8)] == pytest.approx(200)
    assert counted[("u", 0, 0)] == 0
    assert counted.keys() == (known | fresh).keys()


def test_what_nobody_reports_counts_as_the_mean_of_its_topic_or_of_all() -> None:
    reported = {("t", 0, 0): 100.0, ("t", 0, 1): 300.0, ("t", 1, 0): 800.0}
    counted = with_unknown(reported, [("t", 0, 0), ("t", 0, 7), ("u", 0, 0)])
    assert counted == reported | {("t", 0, 7): 200.0, ("u", 0, 0): 400.0}
    assert with_unknown({}, [("u", 0, 0)]) == {("u", 0, 0): 0.0}

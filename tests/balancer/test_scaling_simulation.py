"""A topic for hours and days of simulated time: it makes room, folds up again, and does not go to and fro.

`pytest -s` shows how many splits, merges and moves each load takes.
"""

from math import pi, sin

import numpy as np
import pytest

from seaweedq.balancer.policy import ScalingPolicy
from tests.support.balancer.simulated import TARGET, World
from tests.support.tiers import later, soaked

pytestmark = pytest.mark.simulation

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


def keys(count: int = 20_000, spread: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Hashes and weights of keys that are not all alike."""
    random = np.random.default_rng(1)
    hashes = np.unique(random.integers(0, 2**31 - 1, count, dtype=np.int32))
    return hashes, random.lognormal(0, spread, len(hashes))


KEYS = keys()


def test_a_steady_load_below_the_target_changes_nothing() -> None:
    world = World(*KEYS, initial=4)
    world.run(4 * HOUR_S, 20, lambda now_s: 3.0)
    world.show("steady, 0.75 of the target each")
    assert world.done == []


def test_a_steady_load_above_it_is_split_once() -> None:
    world = World(*KEYS, initial=4)
    world.run(4 * HOUR_S, 20, lambda now_s: 6.0)
    world.show("steady, 1.5 times the target each")
    assert (world.count("split"), world.count("merge"), len(world.live)) == (4, 0, 8)
    assert world.count("move") <= 8
    world.settled(since_s=HOUR_S)


def test_a_ramp_up_and_down() -> None:
    world = World(*KEYS)
    world.run(2 * HOUR_S, 15, lambda now_s: 0.1 + 10 * now_s / HOUR_S)
    world.show("ramp, up to 20 times the target")
    assert 20 <= len(world.live) <= 40
    assert world.count("split") <= 40
    assert world.count("merge") == 0
    world.even()
    world.run(2 * HOUR_S, 15, lambda now_s: max(40 - 10 * now_s / HOUR_S, 0.1))
    world.run(HOUR_S, 30, lambda now_s: 0.1)
    world.show("ramp, and down again")
    assert len(world.live) == 1
    assert world.count("split") <= 40
    assert world.to_and_fro(HOUR_S) == 0


def test_a_spike_of_two_minutes() -> None:
    world = World(*KEYS)
    world.run(1800, 5, lambda now_s: 0.8)
    assert world.done == []
    world.run(120, 5, lambda now_s: 8.0)
    world.show("spike, 10 times for 2 minutes")
    first_s, what = world.done[0]
    assert (what, world.count("split")) == ("split", 1)
    assert first_s - 1800 <= 15
    world.even()
    world.run(2 * HOUR_S, 10, lambda now_s: 0.8)
    world.show("spike, two hours later")
    assert world.count("split") == 1
    assert len(world.live) == 2  # 0.8 is too much for a merge
    world.settled(since_s=1920 + HOUR_S)


@pytest.mark.long
def test_a_flood_that_stays_for_two_hours() -> None:
    world = World(*KEYS)
    world.run(600, 10, lambda now_s: 0.8)
    world.run(2 * HOUR_S, 10, lambda now_s: 20.0)
    world.show("flood, 20 times the target")
    assert world.count("split") <= 15
    assert 20 <= len(world.live) <= 32
    world.even()
    world.settled(since_s=600 + HOUR_S)
    world.run(4 * HOUR_S, 20, lambda now_s: 0.8)
    world.show("flood, four hours later")
    assert len(world.live) <= 3
    assert world.to_and_fro(HOUR_S) == 0


@pytest.mark.long
def test_day_and_night_for_a_week() -> None:
    world = World(*KEYS, initial=2, noise=0.2)
    per_day = []
    for _ in range(7):
        before = len(world.done)
        world.run(DAY_S, 120, lambda now_s: 6 - 5.5 * sin(2 * pi * now_s / DAY_S))
        day = [what for _, what in world.done[before:]]
        per_day.append((day.count("split"), day.count("merge")))
        world.even()
    world.show(f"week, from 0.5 to 11.5 times the target, splits and merges a day {per_day}")
    assert all(splits <= 24 and merges <= 24 for splits, merges in per_day)
    assert 12 <= world.most <= 30
    assert world.count("move") <= 7 * 60
    assert world.to_and_fro(HOUR_S) == 0


def test_one_hot_key_is_not_split() -> None:
    hashes, weights = keys(5000)
    weights[2000] = 9 * weights.sum()
    world = World(hashes, weights, initial=2)
    world.run(2 * HOUR_S, 10, lambda now_s: 6.0)
    world.show("one hot key, 0.9 of 6 times the target")
    assert world.done == []
    assert world.hot == {int(hashes[2000])}


def test_one_hot_key_among_much_else_gets_its_own_segment() -> None:
    hashes, weights = keys(5000)
    weights[2000] = weights.sum()
    world = World(hashes, weights, initial=2)
    world.run(2 * HOUR_S, 10, lambda now_s: 16.0)
    world.show("one hot key, 0.5 of 16 times the target")
    assert world.hot == {int(hashes[2000])}
    (alone,) = (each for each in world.live.values() if int(hashes[2000]) in each.range)
    assert world.shares()[alone.id] < 0.54
    others = [share for each, share in world.shares().items() if each != alone.id]
    assert max(others) <= 2 * sum(others) / len(others)
    assert world.count("split") <= 12
    world.settled(since_s=1.5 * HOUR_S)


def test_a_thousand_hot_keys_are_split_as_any() -> None:
    hashes, weights = keys(20_000)
    hot = np.random.default_rng(3).choice(len(hashes), 1000, replace=False)
    weights[hot] = 9 * weights.sum() / 1000
    world = World(hashes, weights, initial=2)
    world.run(2 * HOUR_S, 10, lambda now_s: 16.0)
    world.show("1,000 hot keys, 0.9 of 16 times the target")
    assert world.hot == set()
    assert 16 <= len(world.live) <= 32
    assert world.count("split") <= 20
    world.even()
    world.settled(since_s=1.5 * HOUR_S)


@pytest.mark.parametrize("rate", [0.5, 1.0, *map(later, (2.0, 5.0))])
def test_noise_at_a_threshold(rate: float) -> None:
    world = World(*KEYS, noise=0.5)
    world.run(HOUR_S, 10, lambda now_s: 2 * rate)
    world.run(6 * HOUR_S, 15, lambda now_s: rate)
    world.show(f"noise of a half around {rate:g} times the target, after twice that")
    assert world.count("split") <= 12
    assert world.count("merge") <= 12
    assert world.to_and_fro(6 * HOUR_S) == 0
    world.settled(since_s=3 * HOUR_S, moves=12)


@pytest.mark.parametrize(("cool_down_s", "every_s", "long_s"), [(600.0, 300.0, 15.0), soaked(3600.0, 3600.0, 120.0)])
def test_what_floods_again_within_the_cool_down_finds_its_segments(
    cool_down_s: float, every_s: float, long_s: float
) -> None:
    policy = ScalingPolicy(target_messages_per_s=TARGET, cool_down_s=cool_down_s)
    world = World(*KEYS, policy=policy)
    world.run(16 * every_s, 15, lambda now_s: 8.0 if now_s % every_s < long_s else 0.1)
    world.show(f"floods of {long_s:g} s every {every_s:g} s, cool-down {cool_down_s:g} s")
    assert world.count("split") <= 2
    assert world.to_and_fro(16 * every_s) == 0


def test_a_demo_makes_room_and_folds_within_minutes() -> None:
    world = World(*KEYS, policy=ScalingPolicy(target_messages_per_s=TARGET, cool_down_s=5.0), brokers=3)
    world.run(60, 2, lambda now_s: 0.8)
    world.run(60, 2, lambda now_s: 16.0)
    world.show("demo, a minute of 20 times")
    assert world.done[0][0] <= 60 + 15
    assert len(world.live) >= 6
    world.run(120, 2, lambda now_s: 0.8)
    world.show("demo, two minutes later")
    assert len(world.live) <= 3

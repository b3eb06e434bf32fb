"""The memory of bodies that are still coming: no order of arrivals passes its bounds, and somebody always gets on."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seaweedq.api.connections.memory import SLOW_BYTES_PER_S, STEP_BYTES, WINDOW_S, IncompleteBodies, IncompleteBody
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.errors import Overloaded
from tests.support.tiers import examples

MIB = 1 << 20
BUDGET, LARGEST = 16 * MIB, MIB
FAST = SLOW_BYTES_PER_S * WINDOW_S


@dataclass
class World:
    """Bodies on a clock of their own."""

    now_s: float = 0.0
    budget: Budget = field(default_factory=lambda: Budget(BUDGET))
    largest: int = LARGEST
    gone: list[IncompleteBody] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bodies = IncompleteBodies(self.budget, self.largest, lambda: self.now_s)

    def new(self, most_bytes: int | None = None) -> IncompleteBody:
        made = IncompleteBody(lambda: self.gone.append(made), most_bytes)
        return made

    def filled(self, size: int = STEP_BYTES) -> list[IncompleteBody]:
        """As many bodies of one size as there is room for."""
        made = [self.new() for _ in range(self.bodies.limit_bytes // size)]
        for body in made:
            self.bodies.add(body, size)
        return made


def test_what_has_not_come_holds_nothing() -> None:
    world = World()
    made = [world.new() for _ in range(10_000)]
    assert world.budget.held == 0
    for body in made[:4]:
        world.bodies.add(body, 1)
    assert world.budget.incomplete == 4 * STEP_BYTES
    for body in made:
        world.bodies.release(body)
        world.bodies.release(body)
    assert world.budget.held == len(world.bodies) == 0


def test_no_tail_is_flushed_for_them() -> None:
    world = World()
    world.budget.tails = BUDGET // 2
    world.filled()
    assert world.budget.excess == 0


@pytest.mark.parametrize(("largest", "limit"), [(MIB, 4 * MIB), (4 * MIB, 4 * MIB), (8 * MIB, 8 * MIB)])
def test_a_quarter_and_one_largest_body(largest: int, limit: int) -> None:
    assert World(largest=largest).bodies.limit_bytes == limit


def test_among_fast_ones_whoever_asks_goes_and_lets_go() -> None:
    world = World()
    made = world.filled()
    world.now_s = WINDOW_S
    for body in made:
        body.count(FAST, world.now_s)
    asks = made[3]
    with pytest.raises(Overloaded) as refused:
        world.bodies.add(asks, 2 * STEP_BYTES)
    assert refused.value.retry_after_s == 1
    assert (asks.held, asks.dismissed, world.gone) == (0, False, [])
    assert world.budget.incomplete == world.bodies.limit_bytes - STEP_BYTES


def test_the_slowest_of_the_slow_goes_first() -> None:
    world = World()
    made = world.filled()
    world.now_s = WINDOW_S + 2
    for n, body in enumerate(made):
        body.count(FAST if n > 9 else 100 + n, world.now_s)
    fresh = world.new()
    for gone in range(10):
        world.bodies.add(fresh, STEP_BYTES)
        assert world.gone == made[: gone + 1]
    with pytest.raises(Overloaded):
        world.bodies.add(fresh, STEP_BYTES)
    assert all(body.dismissed and not body.held for body in world.gone)


def test_who_asks_may_be_the_slowest() -> None:
    world = World()
    made = world.filled()
    world.now_s = WINDOW_S + 2
    for body in made[1:]:
        body.count(FAST, world.now_s)
    world.bodies.add(made[0], STEP_BYTES)
    assert world.gone == [made[0]]
    assert made[0].held == 0


def test_nobody_is_slow_before_the_window_is_over() -> None:
    world = World()
    world.filled()
    world.now_s = WINDOW_S - 0.1
    with pytest.raises(Overloaded):
        world.bodies.add(world.new(), 1)
    assert world.gone == []


def test_a_full_budget_makes_no_slow_one_go() -> None:
    world = World()
    slow = world.new()
    world.bodies.add(slow, 1)
    world.now_s = 60
    world.budget.tails = BUDGET
    with pytest.raises(Overloaded):
        world.bodies.add(world.new(), 1)
    assert world.gone == []


def test_the_last_one_is_never_refused() -> None:
    world = World()
    last = world.new()
    world.bodies.add(last, 1)
    world.budget.tails = BUDGET
    world.now_s = 60
    world.bodies.add(last, LARGEST)
    assert last.held >= LARGEST


def test_a_streamed_one_holds_what_is_on_its_way() -> None:
    world = World()
    streamed = world.new(3 * STEP_BYTES)
    for _ in range(1000):
        world.bodies.add(streamed, MIB)
    assert streamed.held == 3 * STEP_BYTES


@settings(max_examples=examples(300))
@given(st.data())
def test_any_order_of_arrivals(data: st.DataObject) -> None:
    world = World()
    coming: dict[IncompleteBody, int] = {}
    for _ in range(data.draw(st.integers(1, 80))):
        world.now_s += data.draw(st.sampled_from([0.0, 0.05, 1.0, WINDOW_S]))
        world.budget.tails = data.draw(st.sampled_from([0, 0, BUDGET // 2, BUDGET - MIB, BUDGET]))
        body = data.draw(st.sampled_from([*coming, None]))
        if body is None:
            coming[body := world.new()] = 0
        size = data.draw(st.integers(1, LARGEST - coming[body]))
        alone, before, gone = list(world.bodies._bodies) == [body], world.budget.held, len(world.gone)
        try:
            world.bodies.add(body, size)
            coming[body] += size
        except Overloaded:
            assert not alone, "the last one is never refused"
            assert body.held == 0
            del coming[body]
        for one in world.gone[gone:]:
            coming.pop(one, None)
        if body in coming and coming[body] >= LARGEST - 1:
            world.bodies.release(body)
            del coming[body]
        assert world.budget.incomplete == sum(one.held for one in coming)
        assert all(one.held >= size for one, size in coming.items() if not one.dismissed)
        if not alone:
            assert world.budget.incomplete <= world.bodies.limit_bytes
            assert world.budget.held <= max(before, BUDGET)
    for body in coming:
        world.bodies.release(body)
    assert world.budget.incomplete == len(world.bodies) == 0

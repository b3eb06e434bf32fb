"""Producers go on while segments split, merge, roll and move, and brokers die anywhere: whatever is acknowledged is
there once, where it was said to be, in the order of its key; changes come to an end; open ranges tile the key space.

Which steps come is hypothesis's; how they fall into one another is the event loop's, so an example need not fail twice.
It says what it did. `SEAWEEDQ_TEST_EXAMPLES=20` explores for some twenty minutes.
"""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyStrategyDefinition
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.support.reshape.judging import records_are_sound
from tests.support.reshape.upheaval import PLACES, Upheaval, points_within
from tests.support.tiers import examples

# Who is killed between two steps leaves coroutines behind that never began.
pytestmark = [pytest.mark.brokers, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


WHO = st.integers(0, 4)  # a producer
PAUSES = st.sampled_from([0.0, 0.0, 0.002, 0.01, 0.03])


class UpheavalMachine(RuleBasedStateMachine):
    """The steps of `upheaval.Upheaval`."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp())
        self.world: Upheaval

    @initialize(seed=st.integers(0, 2**32), segments=st.integers(1, 3), journal=st.sampled_from(["file", "object"]))
    def begin(self, seed: int, segments: int, journal: str) -> None:
        self.world = Upheaval(self.folder, seed, journal=journal)
        self.run(self.world.begin(segments))

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    def step(self, act: Any, pause_s: float) -> None:
        """Something is begun, and the loop runs on for a while."""

        async def steps() -> None:
            if asyncio.iscoroutine(done := act()):
                await done
            await asyncio.sleep(pause_s)

        self.run(steps())

    @rule(who=WHO, size=st.sampled_from([1, 1, 4, 9]), keyed=st.booleans(), pause_s=PAUSES)
    def publish(self, who: int, size: int, keyed: bool, pause_s: float) -> None:
        self.step(lambda: self.world.publish(self.world.producers[who], size, keyed), pause_s)

    @rule(whos=st.sets(WHO, min_size=2), keyed=st.booleans(), pause_s=PAUSES)
    def publish_at_once(self, whos: set[int], keyed: bool, pause_s: float) -> None:
        self.step(lambda: [self.world.publish(self.world.producers[who], 5, keyed) for who in whos], pause_s)

    @rule(who=WHO, back=st.integers(1, 4), pause_s=PAUSES)
    def repeat(self, who: int, back: int, pause_s: float) -> None:
        self.step(lambda: self.world.repeat(self.world.producers[who], back), pause_s)

    @rule(at=st.integers(0, 30), count=st.integers(0, 3), pause_s=PAUSES)
    def split(self, at: int, count: int, pause_s: float) -> None:
        """One segment at random points; without any it rolls."""
        self.step(lambda: self.world_replaces(at, 1, count), pause_s)

    @rule(at=st.integers(0, 30), width=st.integers(2, 3), count=st.integers(0, 1), gather=st.booleans(), pause_s=PAUSES)
    def merge(self, at: int, width: int, count: int, gather: bool, pause_s: float) -> None:
        """Neighbours, moved to one owner first where need be."""
        self.step(lambda: self.world_replaces(at, width, count, gather), pause_s)

    async def world_replaces(self, at: int, width: int, count: int, gather: bool = False) -> None:
        open_ = await self.world.open()
        segments = open_[at % len(open_) :][:width]
        if gather:
            await self.world.gather(segments)
        records = await self.world.records()  # behind what is open: a change may have ended in between
        if not all(number in records for number in segments):
            return
        low, high = records[segments[0]].low, records[segments[-1]].high
        self.world.plan(segments, points_within(low, high, self.world.rng, count))

    @rule(at=st.integers(0, 30), pause_s=PAUSES)
    def move(self, at: int, pause_s: float) -> None:
        async def moves() -> None:
            open_ = await self.world.open()
            if target := self.world.any_broker():
                self.world.move(open_[at % len(open_)], target)

        self.step(moves, pause_s)

    @rule(pause_s=PAUSES)
    def flush(self, pause_s: float) -> None:
        self.step(self.world.flush, pause_s)

    @rule()
    def crash(self) -> None:
        """One of those that live, unless it is the last."""
        if len(self.world.cluster.living) > 1 and (broker := self.world.any_broker()):
            self.step(lambda: self.world.crash(broker), 0)

    @rule(place=st.sampled_from(PLACES), turn=st.integers(1, 2))
    def die_there(self, place: str, turn: int) -> None:
        """One of them dies when it comes to a place."""
        if broker := self.world.any_broker():
            self.world.log.append(f"{broker.process.url} will die at {place}")
            self.world.cluster.die_at(broker, place, turn)

    @rule()
    def orphan(self) -> None:
        """One loses its lease, and goes on."""
        if len(self.world.cluster.living) > 1 and (broker := self.world.any_broker()):
            self.world.log.append(f"{broker.process.url} loses its lease")
            self.step(lambda: self.world.cluster.orphan(broker), 0)

    @rule()
    def revive(self) -> None:
        self.step(self.world.revive, 0)

    @rule(happens=st.booleans())
    def lose_an_answer(self, happens: bool) -> None:
        self.world.lose_an_answer(happens)

    @invariant()
    def records_are_sound(self) -> None:
        if hasattr(self, "world"):
            records_are_sound(self.run(self.world.records()))

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                note("\n".join(self.world.log))
                self.run(self.judged())
        finally:
            if hasattr(self, "world"):
                self.run(self.world.end())
            self.runner.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    async def judged(self) -> None:
        await self.world.heal()
        await self.world.judge()


BOUNDS = settings(
    max_examples=examples(25),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate] if examples(100) <= 200 else list(Phase),
    print_blob=True,
)


def test_upheaval() -> None:
    """Brokers go on beside the rules, so on a machine that stands still for a while the same draws lead elsewhere."""
    try:
        run_state_machine_as_test(UpheavalMachine, settings=BOUNDS)
    except FlakyStrategyDefinition:
        pytest.skip("the machine was too busy: the same draws led to other rules the second time")

"""The memory twin and the SQLite engine are the same machine: any sequence of steps, the same answers."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from seaweedq.coordination.interface import Compare, Delete, Put, WatchLost
from seaweedq.coordination.memory import MemoryEngine
from seaweedq.coordination.polling import Changes, Engine, PollingCoordination
from seaweedq.coordination.sqlite import Database
from tests.support.tiers import examples

LOG_LIMIT = 4
KEYS = st.sampled_from(["a", "a/1", "a/2", "b"])
LEASES = st.integers(0, 4)
REVISIONS = st.integers(0, 8)
WRITES = st.builds(Put, KEYS, st.binary(max_size=2), LEASES) | st.builds(Delete, KEYS)
STEPS = st.lists(
    st.tuples(st.just("get"), KEYS)
    | st.tuples(st.just("range"), st.sampled_from(["", "a", "a/", "c"]), KEYS, st.integers(1, 3))
    | st.tuples(
        st.just("commit"),
        st.lists(st.builds(Compare, KEYS, REVISIONS), max_size=1),
        st.lists(WRITES, max_size=3, unique_by=lambda write: write.key),
    )
    | st.tuples(st.just("changes"), st.sampled_from(["", "a/"]), REVISIONS)
    | st.tuples(st.just("grant"), st.sampled_from([1.0, 2.0, 5.0]))
    | st.tuples(st.just("renew"), LEASES)
    | st.tuples(st.just("revoke"), LEASES)
    | st.tuples(st.just("wait"), st.sampled_from([0.5, 1.0, 2.0])),
    max_size=25,
)


class Hands:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now_us(self) -> int:
        return 0

    def monotonic_s(self) -> float:
        return self.seconds


def answer(engine: Engine, name: str, *args: Any) -> Any:
    try:
        return getattr(engine, name)(*args), engine.revision()
    except WatchLost:
        return WatchLost


@settings(max_examples=examples(100), deadline=None)
@given(steps=STEPS)
def test_both_engines_give_the_same_answers(steps: list[tuple[Any, ...]]) -> None:
    hands = Hands()
    with tempfile.TemporaryDirectory() as folder:
        database = Database(Path(folder) / "file", hands, "boot", LOG_LIMIT, 1)
        memory = MemoryEngine(hands, LOG_LIMIT)
        try:
            for step in steps:
                if step[0] == "wait":
                    hands.seconds += step[1]
                else:
                    assert answer(memory, *step) == answer(database, *step), step
        finally:
            database.close()


class Counting(MemoryEngine):
    def __init__(self) -> None:
        super().__init__(Hands(), 100)  # type: ignore[arg-type]
        self.looked: list[str] = []

    def changes(self, prefix: str, revision: int) -> Changes:
        self.looked.append(prefix)
        return super().changes(prefix, revision)


class Direct(PollingCoordination):
    async def _run(self, step: Any, *args: Any, **kwargs: Any) -> Any:
        return step(*args, **kwargs)


async def test_a_commit_wakes_only_the_watches_of_its_keys() -> None:
    engine = Counting()
    coordination = Direct(engine, poll_s=3600)
    waiting = {prefix: asyncio.ensure_future(anext(coordination.watch(prefix, 0))) for prefix in ("a/", "b/")}
    for _ in range(10):
        await asyncio.sleep(0)  # both have looked, and wait
    engine.looked.clear()
    await coordination.commit([], [Put("a/1", b"")])
    assert [one.key for one in await waiting["a/"]] == ["a/1"]
    assert engine.looked == ["a/"]
    waiting["b/"].cancel()
    await asyncio.wait([waiting["b/"]])
    await coordination.close()

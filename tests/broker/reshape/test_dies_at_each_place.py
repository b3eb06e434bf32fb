"""The owner of segments that give way dies at each step, in a file and in an object journal; another one goes on, or
the same in its next life."""

from pathlib import Path

import pytest

from tests.support.brokers.in_process_cluster import until
from tests.support.reshape.scene import scene

# Who is killed between two steps leaves coroutines behind that never began.
pytestmark = [pytest.mark.brokers, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


SPLIT, MERGE, ROLL = ("split", 1, [2**29, 2**30]), ("merge", 2, []), ("roll", 1, [])
PLANNED = ["reshape.flushed", "reshape.commit", "entry.encode", "entry.append", "entry.appended", "flush.release"]
COMMITTED = ["reshape.committed", "reshape.held", "reshape.sealed", "reshape.replaced"]
CASES = [(place, change, "file") for place in (*PLANNED, *COMMITTED) for change in (SPLIT, MERGE)]
CASES += [(place, SPLIT, "object") for place in (*PLANNED, *COMMITTED)]
CASES += [
    ("reshape.committed", MERGE, "object"),
    ("reshape.committed", ROLL, "file"),
    ("reshape.sealed", ROLL, "object"),
]


@pytest.mark.parametrize(
    ("place", "change", "journal"), CASES, ids=[f"{place}-{change[0]}-{journal}" for place, change, journal in CASES]
)
async def test_the_owner_dies(tmp_path: Path, place: str, change: tuple[str, int, list[int]], journal: str) -> None:
    kind, count, points = change
    async with scene(tmp_path, count, journal=journal) as here:
        owner = await here.gathered(count)
        await here.go()
        here.cluster.die_at(owner, place)
        here.plan(range(count), points)
        await until(lambda: here.cluster.died == [place], f"nobody came to {place}")
        await here.crash(owner)
        await here.more(20)
        if kind != "merge" or place in COMMITTED:  # else it is undone where they come to two owners
            await here.until_sealed(*range(count))
        await here.settle()
        await here.more(20)
        await here.over()


@pytest.mark.parametrize("place", ["plan.write", "reshape.committed", "reshape.sealed", "entry.appended"])
async def test_all_die_and_begin_again(tmp_path: Path, place: str) -> None:
    async with scene(tmp_path, 2) as here:
        owner = await here.gathered(2)
        await here.go()
        here.cluster.die_at(owner, place)
        here.do(owner, here.replace(owner, [0, 1], [5, 2**30]))
        await until(lambda: here.cluster.died == [place], f"nobody came to {place}")
        for broker in list(here.cluster.lives):
            await here.crash(broker)
        await here.revive()
        await here.more(20)
        if place != "plan.write":
            await here.until_sealed(0, 1)
        await here.over()


async def test_a_merge_whose_segments_come_to_two_owners_goes_on_at_one(tmp_path: Path) -> None:
    """The owner of many segments dies with a committed merge: they are shared out among the others."""
    async with scene(tmp_path, 9, count=4) as here:
        owner = await here.gathered(9)
        await here.go()
        here.cluster.die_at(owner, "reshape.committed")
        here.plan(range(9), [])
        await until(lambda: here.cluster.died)
        await here.crash(owner)
        await here.until_sealed(*range(9))
        await here.more(10)
        await here.over()

"""Attempts at owners: an answer never says that nothing was stored once an earlier attempt may have given rows to a
journal; publishes that wait read coordination together; the rest of a torn request is not taken for all of it.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from seaweedq.broker.publish.local_append import untaken
from seaweedq.broker.publish.remote_append import REFRESH_S, RemoteAppender
from seaweedq.concurrency.deadline import Deadline
from seaweedq.errors import JournalUnavailable, NotOwner, Unavailable
from seaweedq.segments.keyrange import KEY_SPACE, hash_key
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process import Gate, make_topic, running
from tests.support.brokers.in_process_cluster import until
from tests.support.reshape.scene import Scene, scene


@pytest.mark.parametrize("lost", [False, True])
async def test_a_last_attempt_without_effect_does_not_speak_for_a_lost_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        tries = 0
        deadline = Deadline(cast(Any, SimpleNamespace(monotonic_s=lambda: 0.2 * tries)), 0.5)

        async def append(*arguments: Any) -> None:
            nonlocal tries
            tries += 1
            if lost and tries == 1:
                raise Unavailable("the owner did not answer")
            raise NotOwner(untaken(deadline).detail)

        monkeypatch.setattr(RemoteAppender, "_append_at_owner", append)
        remote = privates.remote(inside.publisher(broker))
        rows, none = cast(Any, SimpleNamespace(segment=0, indexes=[0])), cast(Any, None)
        (failed,) = cast(Any, await privates.append_slice(remote)(topic, rows, none, none, False, deadline))
        assert tries > 1
        assert ("nothing was stored" in failed.error.detail) is not lost
        assert ("is unknown" in failed.error.detail) is lost


async def test_many_publishes_that_wait_look_once_together(tmp_path: Path, monkeypatch: Any) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker, segments=4)
        looks: list[int] = []

        async def gone(*arguments: Any) -> None:
            raise NotOwner("its broker has gone")

        async def refresh(name: str, segment: int) -> None:
            looks.append(segment)

        monkeypatch.setattr(RemoteAppender, "_append_at_owner", gone)
        monkeypatch.setattr(inside.catalog(broker), "refresh", refresh)
        remote, clock = privates.remote(inside.publisher(broker)), broker.process.clock
        assert isinstance(remote, RemoteAppender)
        slices = [cast(Any, SimpleNamespace(segment=n % 4, indexes=[n])) for n in range(40)]
        none = cast(Any, None)
        deadline = Deadline(clock, 4 * REFRESH_S)
        waiting = (privates.append_slice(remote)(topic, one, none, none, False, deadline) for one in slices)
        for (failed,) in cast(Any, await asyncio.gather(*waiting)):
            assert isinstance(failed.error, NotOwner)
        assert 1 <= len(looks) <= 5


# Who is killed between two steps leaves coroutines behind that never began.
pytestmark = [pytest.mark.brokers, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


PATH = "/v1/topics/t/messages"
LEFT = [key for n in range(40) if hash_key(key := f"k{n}") < KEY_SPACE // 2][:3]
RIGHT = [key for n in range(40) if hash_key(key := f"k{n}") >= KEY_SPACE // 2][:3]
BODY = {"messages": [{"key": key, "value": key} for pair in zip(LEFT, RIGHT, strict=True) for key in pair]}
HEADERS = {"Producer-Id": "p", "Producer-Sequence": "0"}


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene(tmp_path, 2, count=2) as made:
        yield made


async def test_what_is_left_of_a_torn_request_is_not_taken_for_all_of_it(
    here: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both parts know no producer and have grown together: one half must not pass for the request."""
    one, two = await here.owner(0), await here.owner(1)
    assert one is not two
    gate, tries = Gate(), privates.remote(inside.publisher(one))._append_at_owner

    async def held(*arguments: Any) -> Any:
        if gate.open.is_set():
            return await tries(*arguments)
        await gate()
        raise NotOwner("the answer of one who has it no more")

    monkeypatch.setattr(privates.remote(inside.publisher(one)), "_append_at_owner", held)
    written = inside.journal(one).append

    async def fails(frames: Any) -> int:
        inside.journal(one).append = written  # type: ignore[method-assign]
        raise JournalUnavailable("for once")

    inside.journal(one).append = fails  # type: ignore[method-assign]
    async with here.cluster.client(one) as http:
        asking = asyncio.create_task(http.post(PATH, json=BODY, headers=HEADERS))
        async with asyncio.timeout(30):
            await gate.reached.wait()
        assert await inside.mover(one).move(here.known(one), 0, two.id)
        await until(lambda: inside.catalog(two).segments(here.known(two))[0].owner == two.id)
        await inside.planner(two).plan(here.known(two), [0, 1])
        await here.until_sealed(0, 1)
        await until(lambda: 2 in inside.catalog(one).segments(here.known(one)))
        gate.open.set()
        answer = await asking
        assert answer.status_code == 503, answer.text
        answer = await http.post(PATH, json=BODY, headers=HEADERS)
        assert answer.status_code == 200, answer.text
        ids = answer.json()["ids"]
        assert sorted(ids) == [f"2-{n}" for n in range(6)]
        await inside.planner(two).plan(here.known(two), [2])
        await here.until_sealed(2)
        again = await http.post(PATH, json=BODY, headers=HEADERS)
        assert (again.json()["ids"], again.json()["duplicate"]) == (ids, True)

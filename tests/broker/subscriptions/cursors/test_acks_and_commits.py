"""An ack and the commit that holds it: when the ack counts, what pins the commit, and when nobody may be told."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from seaweedq.errors import JournalUnavailable, NotReady
from seaweedq.segments.frames import Frame
from tests.support.brokers import inside
from tests.support.brokers.in_process import ack, make_topic, offsets, publish, pull, running, subscribe


async def test_an_ack_that_became_durable_without_a_lease_counts_and_is_not_answered(tmp_path: Path) -> None:
    async with running(tmp_path, checkpoint_s=600) as broker:
        dispatcher, commit = inside.dispatcher(broker), inside.group_commit(broker)
        topic = await make_topic(broker)
        await publish(broker, topic, "a", "b")
        await subscribe(broker, topic)
        assert offsets(await pull(dispatcher, topic, "s", None, 1, 0)) == [0]
        commit._may_acknowledge = lambda: False
        with pytest.raises(NotReady, match="lease"):
            await ack(dispatcher, topic, "s", {0: [0]}, None)
        commit._may_acknowledge = lambda: True
        delivery = (await dispatcher.open(topic, "s")).cursor(0).delivery
        assert delivery.window.acked_to == 1
        assert dispatcher.pin == commit.committed, "its commit stays until a checkpoint has the ack"
        await dispatcher.checkpoint()
        assert dispatcher.pin is None


async def test_an_ack_that_did_not_become_durable_is_delivered_again_and_pins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, checkpoint_s=600) as broker:
        dispatcher, journal = inside.dispatcher(broker), inside.journal(broker)
        topic = await make_topic(broker)
        await publish(broker, topic, "a")
        await subscribe(broker, topic)
        assert offsets(await pull(dispatcher, topic, "s", None, 1, 0)) == [0]

        async def full(frames: Sequence[Frame]) -> int:
            raise JournalUnavailable("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(journal, "append", full)
            with pytest.raises(JournalUnavailable):
                await ack(dispatcher, topic, "s", {0: [0]}, None)
        assert dispatcher.pin is None
        assert offsets(await pull(dispatcher, topic, "s", None, 1, 0)) == [0]


async def test_no_step_of_the_loop_sees_a_commit_that_holds_an_ack_and_is_not_pinned(tmp_path: Path) -> None:
    async with running(tmp_path, checkpoint_s=600) as broker:
        dispatcher, commit = inside.dispatcher(broker), inside.group_commit(broker)
        topic = await make_topic(broker)
        await publish(broker, topic, *map(str, range(20)))
        await subscribe(broker, topic)
        await pull(dispatcher, topic, "s", None, 20, 0)
        before = commit.committed
        looks: list[tuple[int, Any]] = []

        async def look_at_each_step() -> None:
            while True:
                looks.append((commit.committed, dispatcher.pin))
                await asyncio.sleep(0)

        looking = asyncio.create_task(look_at_each_step())
        for offset in range(20):
            await ack(dispatcher, topic, "s", {0: [offset]}, None)
        looking.cancel()
        assert commit.committed == before + 20
        assert all(pin == before + 1 for committed, pin in looks if committed > before)

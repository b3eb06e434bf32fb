"""Whoever asks for the lag while a pull is under way takes no cursor back: what is done stays so."""

import asyncio
from pathlib import Path

import pytest

from seaweedq.broker.log.reader import Reader
from seaweedq.broker.subscriptions.cursor_store import TakeOver
from seaweedq.broker.subscriptions.leases import Leases
from seaweedq.journal.file_journal import FileJournal
from tests.support.brokers import inside
from tests.support.brokers.in_process import Gate
from tests.support.brokers.in_process_cluster import in_loop
from tests.support.brokers.reshaped import at, make, opened, replace
from tests.support.brokers.subscribing import ack, create, lag, publish, pull

pytestmark = pytest.mark.brokers


async def test_a_segment_that_is_done_during_a_pull_does_not_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_loop(tmp_path, 1) as together, at(together, together.brokers[0]) as http:
        (broker,) = together.brokers
        await make(broker, 2)
        await create(http)
        await publish(http, 0)
        old, kept = opened(broker)
        await replace(together, [old])
        subscription = await inside.dispatcher(broker).open(inside.topic(broker, "t"), "s")
        theirs = [message["id"] for message in await pull(http) if message["segment"] == old]
        await publish(http, 1)

        durable, reading = Gate(), Gate()
        append, read = FileJournal.append, Reader.read

        async def appends(self: FileJournal, frames: list) -> int:
            await durable()
            return await append(self, frames)

        async def reads(self: Reader, segment, *what: int):
            if segment.id == kept and what[1] > 1:  # the lag reads one row
                await reading()
            return await read(self, segment, *what)

        monkeypatch.setattr(FileJournal, "append", appends)
        monkeypatch.setattr(Reader, "read", reads)
        acking = asyncio.create_task(ack(http, theirs))
        await durable.reached.wait()
        subscription._turn = [*subscription.frontier.open].index(kept) - 1  # it is looked at first
        pulling = asyncio.create_task(pull(http))
        await reading.reached.wait()
        durable.open.set()  # all of the old segment is acked while the other one is read
        await acking
        assert old not in {one["segment"] for one in await lag(http)}
        await inside.dispatcher(broker).checkpoint()
        reading.open.set()
        assert old not in {message["segment"] for message in await pulling}, "it has come again"
        await inside.dispatcher(broker).checkpoint()
        cursors, _ = await inside.dispatcher(broker)._cursors.read(
            subscription.topic, "s", TakeOver(subscription.record, Leases(), 0)
        )
        assert cursors[old].delivery.window.acked_to > 0

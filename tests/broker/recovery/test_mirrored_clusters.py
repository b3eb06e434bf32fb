"""Brokers with mirrored journals while the store is away, and beside brokers with journals of another kind."""

from pathlib import Path
from typing import Any

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.errors import StoreUnavailable
from seaweedq.journal.mirrored_journal import MirroredJournal
from seaweedq.journal.object_journal import ObjectJournal
from tests.support.brokers import inside
from tests.support.brokers.in_process import make_topic, publish
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.reshaped import at

pytestmark = pytest.mark.brokers
MIB = 1024 * 1024
MIRRORED: dict[str, Any] = {"journal": "mirrored", "mirror_patience_s": 5.0}
MESSAGES = "/v1/topics/t/messages"


async def given(together: InLoop, owner: Broker, mirrors: int) -> None:
    """Makes a topic, whose segment this broker owns, and whose messages it sends to so many mirrors."""
    maker = together.brokers[0]
    await make_topic(maker)
    if owner is not maker:
        await inside.mover(maker).move(inside.topic(maker, "t"), 0, owner.id)
        await until(lambda: inside.catalog(owner).get("t") is not None)
        topic = inside.topic(owner, "t")
        await until(lambda: inside.catalog(owner).segment(topic, 0).record.owner == owner.id)
    await until(lambda: len(inside.journal(owner).mirrors) == mirrors)


async def test_without_the_store_publishes_go_on_until_memory_is_full(tmp_path: Path) -> None:
    bounds = {"memory_budget_bytes": 64 * MIB, "max_request_bytes": 4 * MIB}
    async with in_loop(tmp_path, **MIRRORED, **bounds) as together:
        owner = together.brokers[0]
        await given(together, owner, 1)
        async with at(together, owner) as http:
            assert (await http.post(MESSAGES, json={"value": "first"})).status_code == 200

            def refuse(moment: str, name: str) -> None:
                raise StoreUnavailable("as told")

            together.store.faults, taken = refuse, 0
            body = {"messages": 6 * [{"value": MIB // 2 * "x"}]}
            while (answer := await http.post(MESSAGES, json=body)).status_code == 200:
                taken += 6
            assert taken * MIB // 2 > 48 * MIB
            assert (answer.status_code, f"memory_budget_bytes={64 * MIB}" in answer.json()["detail"]) == (503, True)
            together.store.faults = lambda moment, name: None
            await until(lambda: inside.budget(owner).tails < 32 * MIB)
            ids = (await http.post(MESSAGES, json={"value": "last"})).json()["ids"]
            assert ids == [f"0-{taken + 1}"]


async def test_kinds_of_journals_live_together_and_all_may_be_mirrors(tmp_path: Path) -> None:
    async with in_loop(tmp_path, journal="object") as together:
        together.settings |= MIRRORED
        owner = await together.begin()
        await together.see()
        await given(together, owner, 2)
        await publish(owner, inside.topic(owner, "t"), "1", "2", "3")
        kinds = [type(inside.journal(broker)) for broker in together.brokers]
        assert kinds == [ObjectJournal, ObjectJournal, MirroredJournal]
        await together.crash(owner)
        other = together.brokers[1]
        await until(lambda: inside.catalog(other).segment(inside.topic(other, "t"), 0).record.owner != owner.id)
        async with at(together, other) as http:
            found = (await http.get("/v1/topics/t/segments/0/messages")).json()["messages"]
        assert [one["value"] for one in found] == [1, 2, 3]

"""A value that cannot be read, of each kind of key, in a running cluster: that thing alone answers 503, all brokers
live, all else works, and the thing works again once a newer broker has written the record back."""

import logging
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.records import (
    BrokerRecord,
)
from seaweedq.coordination.versioned import UNREADABLE_RECORDS, Versioned
from seaweedq.levels import DRAFT
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop
from tests.support.brokers.reshaped import at
from tests.support.tiers import later
from tests.support.unreadable import of_access, of_cluster, of_subscriptions, of_topics, of_uploads
from tests.support.unreadable.world import Case, World, worlds

VALUES = (b'{"needs_level": 99, "draft": %d}' % DRAFT, b'[{"low": "x"}]', b"\x00not JSON")
CASES: dict[keys.KeyKind[Any], Case] = {
    **of_cluster.CASES,
    **of_topics.CASES,
    **of_subscriptions.CASES,
    **of_uploads.CASES,
    **of_access.CASES,
}


@pytest.fixture(autouse=True)
def nothing_met() -> None:
    UNREADABLE_RECORDS._met.clear()


def proven(world: World, record: Any) -> Any:
    """The record, which of a broker shows that it knows the cluster's secret."""
    if not isinstance(record, BrokerRecord):
        return record
    return replace(record, proofs=inside.keyring(world.living[0]).keys.prove("b9.x", record))


def test_every_kind_has_a_case() -> None:
    assert CASES.keys() == set(keys.CATALOGUE)


@pytest.mark.brokers
@pytest.mark.parametrize("value", VALUES, ids=["of a later level", "damaged", "no JSON"])
async def test_a_principal_or_token_that_cannot_be_read_can_be_deleted(tmp_path: Path, value: bytes) -> None:
    async with in_loop(tmp_path, 1) as together:
        (broker,) = together.brokers
        principal, token = keys.PRINCIPALS.key("p"), keys.TOKENS.key("0" * 16)
        await together.coordination.commit([], [Put(principal, value), Put(token, value)])
        async with at(together, broker) as http:
            for path in (f"/v1/tokens/{'0' * 16}", "/v1/principals/p"):
                assert (await http.delete(path)).status_code == 204
                assert (await http.delete(path)).status_code == 404
            assert (await http.put("/v1/principals/p", json={"grants": []})).status_code == 201
        newest = await broker.context.backups.newest(1)
        assert newest
        assert principal in newest.state.keys
        assert token not in newest.state.keys
        await UNREADABLE_RECORDS.refresh(together.coordination)
        assert not UNREADABLE_RECORDS


ALIKE = {
    keys.CREATIONS,
    keys.COUNTERS,
    keys.UPLOADS,
    keys.IMPORTS,
    keys.WRITES,
    keys.SCHEMAS,
    keys.GROWTH,
    keys.RETENTION,
    keys.REWINDS,
    keys.TOMBSTONES,
    keys.URL_SECRET,
}  # read on request alone


@pytest.mark.brokers
@pytest.mark.parametrize("values", [VALUES[:1], later(VALUES[1:])], ids=["of a later level", "damaged"])
@pytest.mark.parametrize(
    "kind", [later(kind) if kind in ALIKE else kind for kind in keys.CATALOGUE], ids=lambda kind: kind.name
)
async def test_what_cannot_be_read_is_refused_alone(
    tmp_path: Path, kind: keys.KeyKind[Any], values: tuple[bytes, ...], caplog: pytest.LogCaptureFixture
) -> None:
    case = CASES[kind]
    async with worlds(tmp_path) as world:
        await case.prepare(world)
        key = case.key(world)
        for value in values:
            caplog.clear()
            there = await world.coordination.get(key)
            is_there = kind is keys.RETENTION and there  # a number that falls is a sign that coordination went back
            record = None if is_there else proven(world, case.record)
            good = Put(key, kind.encode(Versioned.new(record)) if record else there.value)
            with caplog.at_level(logging.ERROR):
                await world.coordination.commit([], [Put(key, value)])
                await world.others_work()
                await case.broken(world)
                if value == VALUES[0] and kind is not keys.CLUSTER:
                    await world.restart(world.living[0])
                    await world.others_work()
                    await case.broken(world)
                await world.others_work()
            assert (await world.coordination.get(key)).value == value, "nobody here writes in its place"
            met = [one for one in caplog.messages if f"this broker cannot read the record {key} (" in one]
            assert len(met) == case.noticed
            async with world.http() as http:
                metrics = await world.ask(http, "GET", "/metrics", 200)
            assert f'seaweedq_unreadable_records{{kind="{kind.name}"}} {float(case.noticed)}' in metrics
            await world.coordination.commit([], [good])
            await case.whole(world)
            await world.others_work()
            await UNREADABLE_RECORDS.refresh(world.coordination)
            assert not UNREADABLE_RECORDS
        if case.record:
            await case.remove(world)

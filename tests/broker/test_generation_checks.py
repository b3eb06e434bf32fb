"""Nothing is deleted once another generation has begun: a broker over an old coordination looks before each pass."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.cluster.periodic_tasks import UploadSweep
from seaweedq.broker.uploads import rules
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.records import Counter, TopicConfig, UploadRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import Fenced
from seaweedq.storage.generations import Generation, create_generation
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop

pytestmark = pytest.mark.brokers


async def round_begins(broker: Broker) -> None:
    await inside.retention(broker).rounds.begin()


async def topic_is_deleted(broker: Broker) -> None:
    await inside.deletion(broker).delete(inside.topic(broker, "t"))


async def dead_ids_are_swept(broker: Broker) -> None:
    await inside.topic_admin(broker).sweep()


def sweep_of_uploads(broker: Broker) -> UploadSweep:
    leading, payloads = inside.election(broker).leader_compare, broker.process.store.payloads
    check = broker.generations.check
    return UploadSweep(inside.catalog(broker), broker.coordination, payloads, broker.process.clock, 0, leading, check)


async def uploads_are_swept(broker: Broker) -> None:
    await sweep_of_uploads(broker).records()


async def payloads_are_swept(broker: Broker) -> None:
    await sweep_of_uploads(broker).folders()


WORK = [round_begins, topic_is_deleted, dead_ids_are_swept, uploads_are_swept, payloads_are_swept]
UPLOAD = "20200101-0-00000000000000000000000000000001"


async def prepare(broker: Broker) -> None:
    """A topic with a dead id and a file of it, an upload that has expired, and a payload of a topic that is gone."""
    coordination, store = broker.coordination, broker.process.store
    await inside.topic_admin(broker).create("t", TopicConfig())
    counters = [Put(keys.COUNTERS.key(name), keys.COUNTERS.encode(Versioned.new(Counter(9)))) for name in ("t", "gone")]
    await coordination.commit([], counters)
    await store.create("topics/t/segment=7/00000000-0000000000000000.parquet", b"late")
    topic = inside.topic(broker, "t")
    incarnation = topic.record.incarnation
    upload = rules.upload_id(1_000_000, incarnation, "a" * 32)
    record = UploadRecord(rules.object_name("t", upload), 1, "text/plain", None, 1_000_000, 1_000_001)
    put = Put(keys.UPLOADS.key("t", incarnation, upload), keys.UPLOADS.encode(Versioned.new(record)))
    await coordination.commit([], [put])
    await store.create(record.name, b"x")
    await store.create(f"_payloads/gone/20200101/{UPLOAD}", b"payload")


@pytest.mark.parametrize(
    "work", [round_begins, topic_is_deleted, dead_ids_are_swept, uploads_are_swept, payloads_are_swept]
)
async def test_nothing_is_deleted_once_another_generation_has_begun(
    tmp_path: Path, work: Callable[[Broker], Awaitable[None]]
) -> None:
    async with in_loop(tmp_path, 1, snapshot_s=3600.0) as together:
        (broker,) = together.brokers
        await prepare(broker)
        await create_generation(together.store, Generation(2, "of a rebuild"))
        before = {name for name in together.store.objects if not name.startswith("_journals/")}
        with pytest.raises(Fenced, match="the store has generation 2 of coordination"):
            await work(broker)
        assert before <= together.store.objects.keys()
        assert broker.lost.is_set()
        assert not inside.membership(broker).valid()

"""A file that lands in a topic's folder after the topic went: readers of the directory see it only for a while."""

from seaweedq.broker.cluster.periodic_tasks import LATE_S, LateFiles
from seaweedq.coordination.records.topics import TopicConfig
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop

LATE = "topics/t/segment=0/00000001-0000000000000007.parquet"


class Clock:
    now_s = 0.0

    def monotonic_s(self) -> float:
        """Seconds."""
        return self.now_s


async def test_a_late_file_of_a_dead_topic_does_not_stay_in_the_one_that_has_its_name(tmp_path):
    async with in_loop(tmp_path, 1) as together:
        (broker,) = together.brokers
        topics, catalog, clock = inside.topic_admin(broker), inside.catalog(broker), Clock()
        late = LateFiles(catalog, topics.sweep, clock)
        for name in ("t", "other"):
            await topics.create(name, TopicConfig())
        await late.look()
        await inside.deletion(broker).delete(catalog.topic("t"))
        await topics.create("t", TopicConfig())
        await late.look()
        await together.store.create(LATE, b"as of a broker that was cut off")
        clock.now_s += LATE_S - 1
        await late.look()
        (left,) = await together.store.list("topics/t/")
        assert left.startswith("topics/t/segment=1/")  # the empty file of the new topic
        assert len(await together.store.list("topics/other/")) == 1


async def test_names_are_swept_for_a_while_and_only_those_whose_topic_went(tmp_path):
    swept, clock = [], Clock()

    async def sweep(names):
        swept.append(sorted(names))

    async with in_loop(tmp_path, 1) as together:
        (broker,) = together.brokers
        late = LateFiles(inside.catalog(broker), sweep, clock)
        for name in ("t", "other"):
            await inside.topic_admin(broker).create(name, TopicConfig())
        await late.look()
        assert not swept
        await inside.deletion(broker).delete(inside.topic(broker, "t"))
        for _ in range(3):
            await late.look()
            clock.now_s += LATE_S / 2
    assert swept == [["t"], ["t"]]

"""The catalog: whatever order changes come in, and however often, the newest revision of each key decides."""

from hypothesis import given
from hypothesis import strategies as st

from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change
from seaweedq.coordination.records import SegmentRecord, TopicConfig, TopicRecord
from seaweedq.coordination.versioned import Versioned

CONFIG = TopicConfig(format="json", schema=None, key_field=None, initial_segments=1)


def topic_value(incarnation: int, state: str) -> bytes:
    return keys.TOPICS.encode(
        Versioned.new(TopicRecord(incarnation=incarnation, state=state, config=CONFIG, created_us=0))
    )


def segment_value(owner: str) -> bytes:
    return keys.SEGMENTS.encode(Versioned.new(SegmentRecord(0, 10, "open", (), (), owner, None, 0)))


STATES = st.none() | st.tuples(st.integers(0, 2), st.sampled_from(["active", "deleting"]))
OWNERS = st.none() | st.sampled_from(["a", "b"])


@st.composite
def histories(draw: st.DrawFn) -> list[Change]:
    """Changes of one topic and three segments, revisions rising."""
    found = []
    for revision in range(1, draw(st.integers(1, 15)) + 1):
        if draw(st.booleans()):
            value = draw(STATES)
            found.append(Change(keys.TOPICS.key("t"), topic_value(*value) if value else None, revision))
        else:
            key = keys.SEGMENTS.key("t", draw(st.integers(0, 1)), draw(st.integers(0, 2)))
            owner = draw(OWNERS)
            found.append(Change(key, segment_value(owner) if owner else None, revision))
    return found


class Closed:
    def __init__(self) -> None:
        self.topics: list[Topic] = []

    def __call__(self, topic: Topic) -> None:
        self.topics.append(topic)


def view(catalog: Catalog) -> object:
    topic = catalog.get("t")
    if topic is None:
        return None
    segments = {number: catalog.segment(topic, number) for number in catalog.segments(topic)}
    return topic.record, topic.revision, segments


@given(histories(), st.data())
def test_order_and_repeats_do_not_matter(history: list[Change], data: st.DataObject) -> None:
    straight, mixed = Catalog(None, Closed()), Catalog(None, Closed())
    straight.apply(history)
    for change in data.draw(st.permutations(history + history[: len(history) // 2])):
        mixed.apply([change])
    assert view(mixed) == view(straight)


@given(histories())
def test_the_routing_is_made_anew_when_a_segment_changed(history: list[Change]) -> None:
    catalog = Catalog(None, Closed())
    for change in history:
        topic = catalog.get("t")
        if topic:
            topic.routing = ([], None)
        before = dict(catalog.records(topic)) if topic else {}
        catalog.apply([change])
        if topic and catalog.records(topic) != before:
            assert topic.routing is None


@given(histories())
def test_whoever_holds_a_topic_that_goes_is_told(history: list[Change]) -> None:
    closed = Closed()
    catalog = Catalog(None, closed)
    for change in history:
        before = catalog.get("t")
        incarnation = before.record.incarnation if before else None
        told = len(closed.topics)
        catalog.apply([change])
        after = catalog.get("t")
        if before and (after is None or after.record.incarnation != incarnation or after.record.state == "deleting"):
            if change.key.startswith("topics/"):
                assert closed.topics[told:] == [before]
                assert after is None or (after is before) == (after.record.incarnation == incarnation)
        else:
            assert len(closed.topics) == told

"""Members of a record that this version does not know: every write keeps them, and they go with their object."""

import json
from typing import Any

import msgspec
import pytest

from seaweedq.coordination import keys
from seaweedq.coordination.interface import Entry
from seaweedq.coordination.records import (
    FlushPolicy,
    ImportedSegment,
    ImportRecord,
    Intent,
    SegmentRecord,
    Successor,
    TopicConfig,
    TopicRecord,
)
from seaweedq.coordination.versioned import NOTHING, Versioned

INTENT = Intent(5, "planned", (0,), (Successor(5, 0, 10), Successor(6, 10, 20)))
SEGMENT = SegmentRecord(0, 20, "open", (), (), "b", None, 1, intent=INTENT)
TOPIC = TopicRecord(3, "active", TopicConfig(scaling={"enabled": True}), 7)


def stored(kind: keys.KeyKind[Any], record: Any, change: Any) -> Versioned[Any]:
    """The record as it is read where a later version has changed its JSON."""
    document = msgspec.to_builtins(record)
    change(document)
    held = kind.read(Entry("k", json.dumps(document).encode(), 9))
    assert isinstance(held, Versioned)
    assert (held.record, held.revision) == (record, 9)
    return held


def written(kind: keys.KeyKind[Any], held: Versioned[Any]) -> Any:
    return json.loads(kind.encode(held))


def test_a_record_of_this_version_has_nothing_unknown() -> None:
    for kind, record in ((keys.SEGMENTS, SEGMENT), (keys.TOPICS, TOPIC)):
        held = kind.read(Entry("k", kind.encode(Versioned.new(record)), 1))
        assert held == Versioned(record, 1, NOTHING)
        assert (
            stored(kind, record, lambda document: document.update(dict(reversed(document.items())))).unknown == NOTHING
        )


def test_a_member_that_an_earlier_version_did_not_write_is_not_unknown() -> None:
    assert stored(keys.SEGMENTS, SEGMENT, lambda document: document.pop("cuts")).unknown == NOTHING


def test_unknown_members_survive_a_change_of_all_others() -> None:
    held = stored(
        keys.TOPICS, TOPIC, lambda d: (d.update(new={"a": [1, {"b": 2}]}), d["config"]["flush"].update(new=1))
    )
    config = msgspec.structs.replace(TOPIC.config, flush=FlushPolicy(max_age_s=5.0), scaling={})
    found = written(keys.TOPICS, held.replace(config=config))
    assert found["new"] == {"a": [1, {"b": 2}]}
    assert found["config"]["flush"] == {"max_bytes": None, "min_bytes": None, "max_age_s": 5.0, "new": 1}
    assert found["config"]["scaling"] == {}, "what users set is known as a whole"


def test_members_of_items_are_found_again_by_identity() -> None:
    def change(document: Any) -> None:
        document["intent"].update(new=1)
        document["intent"]["successors"][1].update(new=2)

    held = stored(keys.SEGMENTS, SEGMENT, change)
    turned = msgspec.structs.replace(INTENT, state="committed", successors=INTENT.successors[::-1])
    intent = written(keys.SEGMENTS, held.replace(intent=turned))["intent"]
    assert (intent["state"], intent["new"]) == ("committed", 1)
    assert [(one["id"], one.get("new")) for one in intent["successors"]] == [(6, 2), (5, None)]


@pytest.mark.parametrize("instead", [None, Intent(7, "planned", (0,), (Successor(7, 0, 20),))])
def test_members_go_with_the_object_that_they_were_in(instead: Intent | None) -> None:
    held = stored(keys.SEGMENTS, SEGMENT, lambda document: (document["intent"].update(new=1), document.update(more=2)))
    later = held.replace(intent=instead).stored(10)
    assert later.replace(intent=INTENT).unknown.inside == {}, "they do not come back with another object"
    found = written(keys.SEGMENTS, later)
    assert found["more"] == 2
    assert found["intent"] == json.loads(msgspec.json.encode(instead))


def test_the_items_of_an_import_are_those_of_its_segments() -> None:
    record = ImportRecord("arrow", False, "n", 1, "s", 0, 0, 1, 1, "b", segments=(ImportedSegment(3, 0, 1, 2),))
    held = stored(keys.IMPORTS, record, lambda document: document["segments"][0].update(new=1))
    more = (ImportedSegment(2, 0, 0, 1), ImportedSegment(3, 0, 4, 5))
    found = written(keys.IMPORTS, held.replace(segments=more))["segments"]
    assert [(one["segment"], one["count"], one.get("new")) for one in found] == [(2, 1, None), (3, 5, 1)]

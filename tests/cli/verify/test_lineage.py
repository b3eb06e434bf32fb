"""Segments that gave way to others: sound lineages pass, and what can not be of one is found."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seaweedq.segments.audit import Bounds, SegmentAudit, map_findings
from seaweedq.segments.entry import EntryName, Seal
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange
from tests.support.segments.sound_topic import CLUSTER, SoundTopic

Verify = Callable[..., tuple[int, str]]
LEFT, RIGHT, ALL = KeyRange(0, 1000), KeyRange(1000, KEY_SPACE), KeyRange(0, KEY_SPACE)


def seal(**successors: KeyRange) -> Seal:
    """A seal for `_1=range, ...`."""
    ids = tuple(int(name.removeprefix("_")) for name in successors)
    return Seal(ids, tuple((keys.low, keys.high) for keys in successors.values()))


@pytest.fixture
def topic(tmp_path: Path) -> SoundTopic:
    """0 gave way to 1 and 2, which were merged into 3; that was rolled: 4, which has no files yet."""
    topic = SoundTopic(tmp_path / "store")
    topic.write(0, 30, 20, seal=seal(_1=LEFT, _2=RIGHT))
    topic.write(10, 0, segment=1, keys=LEFT, seal=seal(_3=ALL))
    topic.write(0, segment=2, keys=RIGHT, seal=seal(_3=ALL))
    topic.write(5, 0, segment=3, seal=seal(_4=ALL))
    return topic


def found(verify: Verify, *expected: str) -> None:
    code, printed = verify()
    assert code == 1, printed
    for each in expected:
        assert each in printed


def test_a_sound_lineage_passes(topic: SoundTopic, verify: Verify) -> None:
    code, printed = verify()
    assert code == 0, printed
    topic.write(7, segment=4)
    assert verify()[0] == 0


def test_what_retention_has_taken_is_not_missed(topic: SoundTopic, verify: Verify) -> None:
    shutil.rmtree(topic.files(0)[0].parent)
    topic.files(1)[0].unlink()
    code, printed = verify()
    assert code == 0, printed


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_a_seal_that_is_lost_is_found(topic: SoundTopic, verify: Verify, lost: int) -> None:
    topic.write(7, segment=4)
    topic.files(lost)[-1].unlink()
    found(verify, f"segment={lost}/: ends without a seal, but the later segment")


def test_a_seal_whose_successors_have_not_all_keys_is_found(topic: SoundTopic, verify: Verify) -> None:
    for bad in (
        seal(_5=LEFT),
        seal(_5=LEFT, _6=KeyRange(999, KEY_SPACE)),
        seal(_5=ALL, _6=RIGHT),
        seal(_2=ALL),
        Seal((), ()),
    ):
        shutil.rmtree(topic.root / "topics/flights/segment=4", ignore_errors=True)
        topic.write(7, segment=4, seal=bad)
        found(verify, f"segment=4/: has the key range [0, {KEY_SPACE}), but its seal names the successors")


def test_a_successor_with_other_keys_than_the_seal_says_is_found(topic: SoundTopic, verify: Verify) -> None:
    topic.write(7, segment=4, keys=RIGHT)
    stated = f"the seal of segment 3 states [0, {KEY_SPACE})"
    found(verify, f"segment=4/: has the key range [1000, {KEY_SPACE}), but {stated}")


SOUND = Bounds(0, KEY_SPACE, 0, 5, 5, "sealed", (1, 2), (4,))


@pytest.mark.parametrize(
    ("bounds", "problem"),
    [
        (SOUND, None),
        (replace(SOUND, state="open"), None),  # sealed after it was asked for, and before it was listed
        (replace(SOUND, state="open", successors=(), end_offset=9), None),  # its record is not written yet
        (replace(SOUND, successors=(4, 6)), "has the successors [4] in the files, but [4, 6] according to the broker"),
        (
            replace(SOUND, state="open", end_offset=6),
            "is sealed at offset 5 in the files, but at 6 according to the broker",
        ),
    ],
)
def test_a_seal_is_held_against_what_the_broker_says(topic: SoundTopic, bounds: Bounds, problem: str | None) -> None:
    audit = audited(topic, 3)
    audit.finish(bounds)
    assert [one.what for one in audit.findings] == ([problem] if problem else [])


def test_a_seal_that_only_the_broker_has_is_found(topic: SoundTopic) -> None:
    topic.write(7, segment=4)
    audit = audited(topic, 4)
    audit.finish(replace(SOUND, flushed_offset=7, end_offset=7, successors=(5,)))
    assert [one.what for one in audit.findings] == ["has no seal in the files, but is sealed according to the broker"]


def audited(topic: SoundTopic, segment: int) -> SegmentAudit:
    """The audit of a segment, before it is held against anything."""
    audit = SegmentAudit("flights", segment, CLUSTER)
    files = topic.files(segment)
    for path in files:
        with path.open("rb") as file:
            for _ in audit.entry(EntryName.parse(path.name), file, path == files[-1]):
                pass
    return audit


def bounds(keys: KeyRange, state: str = "open", **more: Any) -> Bounds:
    return Bounds(keys.low, keys.high, 0, 0, 0, state, **more)


MAP = {
    0: bounds(ALL, "sealed", successors=(1, 2)),
    1: bounds(LEFT, predecessors=(0,)),
    2: bounds(RIGHT, predecessors=(0,)),
}


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, None),
        ({0: None}, None),
        ({1: bounds(LEFT)}, "segment=0/: has the successor 1 according to the broker, but not the other way round"),
        ({0: bounds(ALL, "sealed", successors=(1,))}, "segment=2/: has the predecessor 0 according to the broker, but"),
        ({0: bounds(ALL, "sealed", successors=(1, 2, 3))}, "segment=0/: has the successor 3"),
        ({2: None}, "flights/: has open segments, according to the broker, that do not cover every key exactly once"),
        ({3: bounds(LEFT)}, "that do not cover every key exactly once"),
        (
            {1: bounds(LEFT, predecessors=(0,), successors=(2,))},
            "segment=1/: is open according to the broker, but has the successors",
        ),
    ],
)
def test_a_map_that_can_not_be_is_found(changed: dict[int, Bounds | None], problem: str | None) -> None:
    known = {number: one for number, one in {**MAP, **changed}.items() if one}
    said = [f"{one.where}: {one.what}" for one in map_findings("flights", known)]
    assert any(problem in one for one in said) if problem else not said

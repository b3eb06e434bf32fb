"""The lines in which `seaweedq cluster rebuild` says what was done, or would be."""

import pytest

from seaweedq.cli.cluster import rebuild_lines

ANSWER = {
    "generation": 2,
    "source": "snapshot",
    "state_generation": 1,
    "state_number": 7,
    "state_revision": 90,
    "keys": 1412,
    "journals": ["a.1"],
    "left_out": [],
    "hindering": {},
    "damaged": [],
    "unverified": [],
    "topics": [],
    "may_be_lost": ["links"],
}
TOPIC = {
    "topic": "t",
    "segments_ended": 1,
    "segments_begun": 2,
    "segments_closed": 0,
    "uploads_kept": 0,
    "imports_moved": 0,
    "damage": [],
}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "state: snapshot, generation 1, number 7, revision 90"),
        ({"source": "nothing"}, "state: nothing: everything comes from the store"),
        ({}, "journal of a.1: will be replayed"),
        ({"hindering": {"b.2": "no lock"}}, "journal of b.2: CANNOT BE READ: no lock"),
        ({"damaged": ["x"]}, "backup x: damaged, not used"),
        ({"unverified": ["x"]}, "backup x: made with another secret, so it grants no permissions"),
        ({"topics": [TOPIC]}, "topic t: 1 segments sealed since, 2 segments created since"),
        ({"topics": [{**TOPIC, "segments_ended": 0, "segments_begun": 0, "damage": ["no file"]}]}, "topic t: no file"),
        ({}, "may be lost: links"),
    ],
)
def test_lines(changes: dict[str, object], line: str) -> None:
    assert line in rebuild_lines({**ANSWER, **changes})


def test_the_last_line_says_what_was_done() -> None:
    assert rebuild_lines(ANSWER)[-1] == "rebuilt: coordination has generation 2, and 1,412 keys"
    planned = rebuild_lines({**ANSWER, "generation": 0})
    assert planned[-1] == "nothing was changed; a rebuild would write 1,412 keys"

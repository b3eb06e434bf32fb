"""Whether a segment without a record is gone, or was forgotten by a coordination that went back."""

import pytest

from seaweedq.broker.topics.forgotten import may_have_been
from seaweedq.coordination.records import Intent, SegmentRecord, Successor
from seaweedq.segments.keyrange import KEY_SPACE

PLANNED = Intent(7, "planned", (3,), (Successor(7, 0, KEY_SPACE),))


@pytest.mark.parametrize(
    ("number", "may"),
    [
        (2, True),  # retention has removed it
        (7, False),  # it is planned, and not made yet
        (8, True),  # the plan of it was undone, or it is gone as well
        (9, False),  # nobody has that id
    ],
)
def test_what_was_never_made(number: int, may: bool) -> None:
    record = SegmentRecord(0, KEY_SPACE, "open", (), (), None, None, 1, intent=PLANNED)
    assert may_have_been(number, 9, [record]) is may

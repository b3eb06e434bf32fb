"""The drawings of docs/internals/states.md and the code agree. `Held.close` adds that no in-process broker of the
suite makes a step that is not drawn."""

import typing
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import pytest

from seaweedq.broker.imports.records import NEXT
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change
from seaweedq.coordination.records import (
    ImportRecord,
    Intent,
    JournalRecord,
    SegmentRecord,
    SubscriptionRecord,
    UploadRecord,
    WriteRecord,
)
from seaweedq.coordination.versioned import Versioned
from tests.support.brokers.drawn_states import DRAWN, END, Step, check_steps, steps


def states(record: type[msgspec.Struct]) -> set[str]:
    """The values that a record's `state` may have."""
    annotation = typing.get_type_hints(record)["state"]
    assert typing.get_origin(annotation) is Literal
    return set(typing.get_args(annotation))


def drawn_states(kind: str) -> set[str]:
    return {state for step in DRAWN[kind] for state in step} - {END}


@pytest.mark.parametrize(
    ("kind", "in_code"),
    [
        ("Segment", states(SegmentRecord) | states(Intent)),
        ("Journal", {"kept", "recovered"}),
        ("Subscription", states(SubscriptionRecord)),
        ("Upload", states(UploadRecord)),
        ("Import", states(ImportRecord)),
        ("Write", states(WriteRecord)),
    ],
)
def test_every_state_that_a_record_can_have_is_drawn(kind: str, in_code: set[str]) -> None:
    assert drawn_states(kind) == in_code


@pytest.mark.parametrize("kind", DRAWN)
def test_every_state_begins_and_ends(kind: str) -> None:
    assert any(before == END for before, _ in DRAWN[kind])
    for state in drawn_states(kind):
        assert {after for before, after in DRAWN[kind] if before == state}, f"{state} has no way out"
        assert {before for before, after in DRAWN[kind] if after == state}, f"{state} has no way in"


def test_an_imports_steps_are_those_of_its_table() -> None:
    table = {(before, after) for before, nexts in NEXT.items() for after in nexts}
    assert {step for step in DRAWN["Import"] if END not in step} == table
    begins_anew = {("done", "checking"), ("failed", "checking")}
    assert {step for step in DRAWN["Write"] if END not in step} == table | begins_anew


def test_a_step_that_is_not_drawn_is_found() -> None:
    key = keys.UPLOADS.key("t", 0, "20260131-0-" + "0" * 32)
    record = UploadRecord("n", 1, "text/plain", None, 0, 0)
    removed = keys.UPLOADS.encode(Versioned.new(msgspec.structs.replace(record, state="removed")))
    history = [(Change(key, removed, 1),), (Change(key, keys.UPLOADS.encode(Versioned.new(record)), 2),)]
    assert steps(history)["Upload"] == {(END, "removed"), ("removed", "open")}
    with pytest.raises(AssertionError, match=r"does not draw .*\('removed', 'open'\)"):
        check_steps(history)


def test_a_record_that_stays_in_its_state_makes_no_step() -> None:
    key, record = keys.JOURNALS.key("b"), JournalRecord("file", "p")
    kept = keys.JOURNALS.encode(Versioned.new(record))
    done = keys.JOURNALS.encode(Versioned.new(msgspec.structs.replace(record, recovered=True)))
    history: Sequence[Any] = [(Change(key, value, n),) for n, value in enumerate((kept, kept, done, None), 1)]
    made: set[Step] = {(END, "kept"), ("kept", "recovered"), ("recovered", END)}
    assert steps(history)["Journal"] == made == DRAWN["Journal"]

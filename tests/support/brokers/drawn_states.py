"""The states and steps that docs/internals/states.md draws, and the check that a history of coordination makes no
other step."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change, Entry
from seaweedq.coordination.records import SegmentRecord
from seaweedq.coordination.versioned import Unreadable
from tests.support.paths import ROOT

END = "[*]"
Step = tuple[str, str]


@dataclass(frozen=True)
class Kind:
    """A drawn kind of record: its key, and the state that a record is in."""

    key: keys.KeyKind[Any]
    state: Any


KINDS = {
    "Segment": Kind(keys.SEGMENTS, lambda record: segment_state(record)),
    "Journal": Kind(keys.JOURNALS, lambda record: "recovered" if record.recovered else "kept"),
    "Subscription": Kind(keys.SUBSCRIPTIONS, lambda record: record.state),
    "Upload": Kind(keys.UPLOADS, lambda record: record.state),
    "Import": Kind(keys.IMPORTS, lambda record: record.state),
    "Write": Kind(keys.WRITES, lambda record: record.state),
}


def segment_state(record: SegmentRecord) -> str:
    """The state of a segment: that of its intent where it has one."""
    return record.intent.state if record.intent else record.state


def drawn(kind: str) -> set[Step]:
    """The steps of a diagram, from state to state; `[*]` is before the record and after it."""
    page = (ROOT / "docs" / "internals" / "states.md").read_text()
    diagram = page.split(f"## {kind}\n", 1)[1].split("```mermaid", 1)[1].split("```", 1)[0]
    steps = re.findall(r"^ *(\S+) --> (\w+|\[\*\])(?=:)", diagram, re.MULTILINE)
    assert len(steps) == diagram.count("-->")
    return set(steps)


DRAWN = {kind: drawn(kind) for kind in KINDS}


def steps(history: Sequence[Sequence[Change]]) -> dict[str, set[Step]]:
    """The steps that records made in a history of coordination, by kind; staying in a state is none.

    Where the history's beginning was forgotten, a record that is seen for the first time makes no step.
    """
    states: dict[str, str] = {}
    is_whole = not history or history[0][0].revision == 1
    found: dict[str, set[Step]] = {kind: set() for kind in KINDS}
    for change in (change for changes in history for change in changes):
        for name, kind in KINDS.items():
            if not change.key.startswith(kind.key.prefix()):
                continue
            found_there = kind.key.read(Entry(change.key, change.value, 0)) if change.value is not None else None
            if isinstance(found_there, Unreadable):
                continue  # a test's own: it writes the record back
            before = states.pop(change.key, END if is_whole else "")
            after = kind.state(found_there.record) if found_there else END
            if after != END:
                states[change.key] = after
            if before and before != after:
                found[name].add((before, after))
    return found


def check_steps(history: Sequence[Sequence[Change]]) -> None:
    """Raises AssertionError for a step that is not drawn."""
    for kind, made in steps(history).items():
        assert made <= DRAWN[kind], f"{kind}: docs/internals/states.md does not draw {sorted(made - DRAWN[kind])}"

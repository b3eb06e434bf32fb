"""Every interleaving of X, the network, X's recovery, its clean-up and a move, in small worlds: the design holds, and
breaks with any one rule left out."""

from dataclasses import replace

import pytest

from tests.support.model.exploring import Explored, explore
from tests.support.model.recovery_steps import steps
from tests.support.model.recovery_world import LINES, RULES, SEAL, Bounds, World, rows_in
from tests.support.tiers import later, marked, soaked

LIMIT = 400_000
LOSSES = {"state what was acknowledged", "miss what was acknowledged", "ask the key"}  # rules for what a store loses
MARKS = {"journal the mark", "name the entry"}  # rules for the zero-row entries of idle segments


FAILS = Bounds(messages=1, window=1, crashes=0, fails=True)


def fault(w: World) -> str | None:
    """What must never be."""
    sequences = [sequence for (sequence, _), _ in w.chain]
    rows = rows_in(w.chain)
    messages = [message for _, message in rows]
    if len(set(messages)) < len(messages):
        return f"a message twice: {rows}"
    if sequences != list(range(len(sequences))) or [offset for offset, _ in rows] != list(range(len(rows))):
        return f"the chain is not dense: {sequences} {rows}"
    if SEAL in messages[:-1]:
        return f"rows behind the seal: {rows}"
    for name, s in (("Y", w.y), ("Z", w.z)):
        if s.opened_at is not None and not s.flushed and s.opened_at[0] in sequences:
            return f"the place of {name}'s flush was taken by one that had lost the segment"
    if w.y.acked and w.z.acked:
        return "two owners have taken messages"
    if w.recovered and not w.x.acked <= set(messages):
        return f"acknowledged and lost: {sorted(w.x.acked - set(messages))}"
    if not w.losses and any(recoverer.step == "damaged" for recoverer in w.recoverers):
        return "a recovery tells of damage where nothing was lost"
    return None


def search(bounds: Bounds) -> Explored:
    """Every interleaving, breadth first."""
    return explore(World(), lambda w: ((what, True, after) for what, after in steps(w, bounds)), fault, limit=LIMIT)


@pytest.mark.parametrize(
    "bounds",
    [
        later(Bounds(crashes=0)),
        Bounds(messages=1),
        later(Bounds(messages=1, recoverers=2, crashes=0)),
        Bounds(messages=1, twice=True, crashes=0),
        Bounds(messages=1, window=1, losses=1, crashes=0),
        later(Bounds(window=1, losses=1, crashes=0)),
        later(Bounds(messages=1, recoverers=2, losses=1, crashes=0)),
        later(Bounds(messages=1, window=1, marks=True, crashes=0)),
        soaked(Bounds(messages=1, window=1, marks=True)),
        FAILS,
        soaked(replace(FAILS, recoverers=2)),
        soaked(replace(FAILS, messages=2)),
    ],
    ids=[
        "two messages",
        "a recoverer crashes",
        "two recoverers",
        "puts land twice",
        "a slot is lost",
        "a slot of several is lost",
        "a slot is lost before two recoverers",
        "an idle segment marks",
        "a recoverer of a mark crashes",
        "a commit fails",
        "a commit fails before two recoverers",
        "a commit of two messages fails",
    ],
)
def test_the_design_holds(bounds: Bounds) -> None:
    found = search(bounds)
    assert found.fault is None, " -> ".join(found.path)
    assert found.states > 1000, "hardly anything happened"


@pytest.mark.parametrize("rule", [marked(rule, "long") if rule == "name the entry" else rule for rule in RULES])
def test_a_rule_that_is_left_out_breaks_it(rule: str) -> None:
    bounds = Bounds(left_out=rule, crashes=0, losses=int(rule in LOSSES))
    if rule in MARKS:
        bounds = replace(bounds, messages=1, recoverers=2, marks=True)
    found = search(bounds)
    assert found.fault, "nothing depends on this rule"
    print(f"{found.fault}\n  {' -> '.join(found.path)}")


@pytest.mark.parametrize("line", LINES)
def test_behind_a_line_that_is_left_out_holds_the_second_one(line: str) -> None:
    found = search(replace(FAILS, lines=frozenset({line})))
    assert found.fault is None, " -> ".join(found.path)


@pytest.mark.parametrize("second", [line for line in LINES if line != "cut off what failed"])
def test_without_both_lines_it_breaks(second: str) -> None:
    found = search(replace(FAILS, lines=frozenset({"cut off what failed", second})))
    assert found.fault, "one of them is not needed"

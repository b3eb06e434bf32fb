"""Every interleaving of splits, rolls and merges in small worlds: the design holds, and breaks with a rule left out."""

from functools import partial

import pytest

from tests.support.model.exploring import explore
from tests.support.model.split_checks import fault, is_complete
from tests.support.model.split_cluster import steps
from tests.support.model.split_model import main, search
from tests.support.model.split_world import (
    EITHER,
    NOWHERE,
    RULES,
    SPARE,
    Bounds,
    Entry,
    Intent,
    Place,
    Record,
    World,
    start_of,
    with_at,
    with_entry,
    with_record,
)
from tests.support.tiers import later

ROLL, MERGE = Bounds(messages=1), Bounds(old=2, messages=0, brokers=3)
WHERE = {  # else ROLL
    "plan what is not locked": ROLL._replace(plans=2),
    "commit the plan it saw": ROLL._replace(plans=2),
    "undo what two owners have": MERGE,
    "commit all at once": MERGE,
    "seal all, then the transaction": MERGE._replace(messages=1),
    "give to the first": MERGE,
    "the first stays": MERGE,
    "who loses to rows stops": Bounds(),
    "recover what it still owns": Bounds(failures=True, moves=True),
    "nothing behind a seal": Bounds(failures=True),
    "recovery inherits the table": Bounds(),
    "the seal stays for its heirs": ROLL._replace(retention=True),
}
WHAT = {  # else "acknowledged and lost"
    "plan what is not locked": "sealed for plan 1, and its record says",
    "undo what is planned": "sealed for plan 1, and its record says",
    "commit first": "sealed for plan 1, and its record says",
    "commit the plan it saw": "sealed for plan 1, and its record says",
    "undo what two owners have": "wedged",
    "commit all at once": "wedged",
    "look for a seal": "something behind the seal",
    "the loser reads": "wedged",
    "seal with the table": "a message at two places",
    "inherit the table": "a message at two places",
    "give to the first": "wedged",
    "the first stays": "goes on for ever",
    "hand over what it still owns": "open beside its successors",
    "recover what it still owns": "two messages at one place",
    "nothing behind a seal": "something behind the seal",
    "recovered rows are known": "a message at two places",
    "recovery inherits the table": "a message at two places",
    "the seal stays for its heirs": "wedged",
}
PAIRS = [  # either rule is enough
    ("commit what it owns", "commit while alive"),
    ("successors to the living", "records behind the fence"),
    ("successors to the living", "look again"),
]


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(retention=True),
        Bounds(new=2),
        later(Bounds(old=2, brokers=3)),
        later(Bounds(old=2, messages=1, brokers=3, moves=True)),
        later(Bounds(failures=True, moves=True)),
        later(Bounds(messages=1, plans=2, failures=True, moves=True)),
        Bounds(messages=1, brokers=3, deaths=2),
        later(Bounds(old=2, messages=0, brokers=3, deaths=2)),
        Bounds(messages=1, recoveries=2),
    ],
    ids=[
        "roll",
        "split",
        "merge",
        "merge and moves",
        "commits fail and segments move",
        "a second plan",
        "two brokers die",
        "two brokers die in a merge",
        "two recoveries at once",
    ],
)
def test_the_design_holds(bounds: Bounds) -> None:
    found = search(bounds)
    assert found.fault is None, " -> ".join(found.path)
    assert found.states > 2000, "hardly anything happened"


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_is_left_out_breaks_it(rule: str) -> None:
    found = search(WHERE.get(rule, ROLL)._replace(left_out=frozenset([rule])))
    assert WHAT.get(rule, "acknowledged and lost") in str(found.fault), "nothing, or something else, depends on it"
    print(f"{found.fault}\n  {' -> '.join(found.path)}")


@pytest.mark.parametrize("rules", PAIRS, ids=" + ".join)
def test_one_of_two_rules_has_to_be_there(rules: tuple[str, str]) -> None:
    found = search(ROLL._replace(moves=True, left_out=frozenset(rules)))
    assert found.fault, "nothing depends on these rules"
    assert {rule for pair in PAIRS for rule in pair} == EITHER.keys()


@pytest.mark.parametrize("bounds", [ROLL._replace(plans=2, moves=True), MERGE], ids=["roll", "merge"])
@pytest.mark.parametrize("kept", [0, 1])
def test_it_holds_without_what_is_spare_and_with_one_rule_of_two(kept: int, bounds: Bounds) -> None:
    left_out = EITHER.keys() - {pair[kept] for pair in PAIRS} | SPARE.keys()
    found = search(bounds._replace(left_out=frozenset(left_out)))
    assert found.fault is None, " -> ".join(found.path)


@pytest.mark.parametrize("rule", [*EITHER, *SPARE])
def test_a_spare_rule_makes_a_difference(rule: str) -> None:
    bounds = ROLL._replace(plans=2, moves=True)
    without = bounds._replace(left_out=frozenset([rule]))

    def difference(w: World) -> str | None:
        return "found" if set(steps(w, bounds)) != set(steps(w, without)) else None

    assert explore(start_of(bounds), partial(steps, b=bounds), difference).fault


def acked(w: World, *places: Place) -> World:
    return w._replace(journals=with_at(w.journals, 0, frozenset(places)))


def written(w: World, segment: int, *entries: Entry) -> World:
    for entry in entries:
        w, _ = with_entry(w, segment, entry)
    return w


START = start_of(Bounds(new=2))
COMMITTED = with_record(START, 0, Record(0, Intent(1, True)))
SEALED = written(COMMITTED, 0, Entry(0, 0, (), NOWHERE, 1))
M0, M1 = Entry(0, 0, (0,), NOWHERE), Entry(1, 1, (1,), NOWHERE)


@pytest.mark.parametrize(
    ("world", "what"),
    [
        (written(START, 0, M1), "is not dense"),
        (written(START, 0, M0, Entry(0, 1, (1,), NOWHERE)), "is not dense"),
        (written(SEALED, 0, Entry(1, 0, (), NOWHERE)), "something behind the seal"),
        (written(START, 0, Entry(0, 0, (), NOWHERE, 1)), "sealed for plan 1"),
        (START._replace(records=(Record(None, ended=1), Record(0, begun=1), Record(0, begun=2))), "two sets"),
        (with_record(START, 1, Record(0, begun=1)), "open beside its successors"),
        (COMMITTED._replace(commits=(Place(0, 1, 0), None)), "takes before the seal"),
        (written(START, 0, M0, M1._replace(messages=(0,))), "a message twice"),
        (acked(written(START, 0, M0), Place(0, 0, 1)), "a message at two places"),
        (acked(written(START, 0, M0), Place(1, 0, 0)), "two messages at one place"),
        (acked(SEALED, Place(0, 0, 0)), "acknowledged and lost"),
        (acked(START, Place(0, 0, 0))._replace(recovered=frozenset([0])), "acknowledged and lost"),
        (with_record(acked(START, Place(0, 0, 0)), 0, Record(1)), "acknowledged and lost"),
    ],
    ids=str,
)
def test_each_check_can_fail(world: World, what: str) -> None:
    assert what in str(fault(world, Bounds(new=2)))


def test_what_is_begun_is_not_complete() -> None:
    bounds = Bounds(messages=0)
    assert is_complete(start_of(bounds), bounds)
    assert not is_complete(start_of(bounds), Bounds(messages=1))
    assert not is_complete(with_record(start_of(bounds), 0, Record(0, Intent(1, False))), bounds)
    assert not is_complete(with_record(start_of(bounds), 0, Record(1)), bounds)
    assert not is_complete(start_of(bounds)._replace(alive=frozenset([1])), bounds)


def test_nothing_that_may_fail_to_happen_is_counted_on() -> None:
    bounds = Bounds(failures=True, moves=True, retention=True)
    dead = start_of(bounds)._replace(alive=frozenset([1]), commits=(Place(0, 0, 0), None))
    bound = [what for what, is_bound, _ in steps(dead, bounds) if is_bound]
    assert bound == ["R0 begins with X"]


def test_a_world_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--messages", "1"]) == 0
    assert "holds" in capsys.readouterr().out
    assert main(["--messages", "1", "--without", "hold"]) == 1
    assert "X seals 0 for plan 1\nX takes 0 in 0" in capsys.readouterr().out

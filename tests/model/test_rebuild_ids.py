"""A roll that coordination has forgotten, in small worlds: no id has two contents, and none of its messages is lost."""

from functools import partial

import pytest

from tests.support.model.exploring import Explored, explore
from tests.support.model.rebuild_ids import RULES, Bounds, World, fault, steps

ROLLS = Bounds(rolls=True)
FILES = Bounds(unnoticed=True, files=True)
WHERE = {"gap of ids": ROLLS, "rows without a record": FILES._replace(away=2)}  # else FILES, with the machine back
WHAT = {"gap of ids": "two contents", "rows without a record": "lost: X's journal is done"}  # else damage


def search(b: Bounds) -> Explored:
    """Every interleaving, breadth first."""
    return explore(World(), lambda w: ((what, True, after) for what, after in steps(w, b)), partial(fault, b=b))


@pytest.mark.parametrize(
    "bounds",
    [ROLLS, ROLLS._replace(files=True), FILES, FILES._replace(away=1), FILES._replace(away=2)],
    ids=["rolls", "rolls with files", "no sign", "a machine is away", "a machine stays away"],
)
def test_the_design_holds(bounds: Bounds) -> None:
    found = search(bounds)
    assert found.fault is None, " -> ".join(found.path)
    assert found.states > 500, "hardly anything happened"


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_is_left_out_breaks_it(rule: str) -> None:
    found = search(WHERE.get(rule, FILES._replace(away=1))._replace(left_out=frozenset([rule])))
    assert WHAT.get(rule, "damage") in str(found.fault), "nothing, or something else, depends on it"
    print(f"{found.fault}\n  {' -> '.join(found.path)}")


def test_without_a_sign_an_id_may_be_given_out_again() -> None:
    """Where no sign shows a return, the counter is as it was: a seal that nobody has opened may name the next id."""
    assert "two contents" in str(search(ROLLS._replace(unnoticed=True)).fault)

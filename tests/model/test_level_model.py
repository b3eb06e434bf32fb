"""Every interleaving of two rises of the level with brokers that join: it holds, and breaks with any rule left out."""

from functools import partial

import pytest

from tests.support.model.exploring import explore
from tests.support.model.level_world import RULES, Riser, World, fault, is_complete, steps
from tests.support.tiers import later

LIMIT = 400_000
WHAT = {
    "refuse": "was known not to read it",
    "mark first": "the store does not name the level",
    "announce first": "a broker is a member",
    "read behind the announcement": "a broker is a member",
    "announce what was read": "the level fell",
    "write what was read": "the level fell",
    "join under the record": "a broker is a member",
}


@pytest.mark.parametrize(
    "risers", [(Riser(2), Riser(0)), later((Riser(2), Riser(3), Riser(0)))], ids=["one request", "two requests"]
)
def test_the_design_holds_and_every_rise_comes_to_its_end(risers: tuple[Riser, ...]) -> None:
    found = explore(World(risers=risers), steps, fault, is_complete, LIMIT)
    assert found.fault is None, " -> ".join(found.path)
    assert found.states > 500, "hardly anything happened"


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_is_left_out_breaks_it(rule: str) -> None:
    found = explore(World(), partial(steps, left_out=rule), fault, limit=LIMIT)
    assert WHAT.get(rule, "a blind broker acts") in str(found.fault), "nothing, or something else, depends on it"
    print(f"{found.fault}\n  {' -> '.join(found.path)}")

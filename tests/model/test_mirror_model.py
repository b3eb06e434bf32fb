"""Every interleaving of the owner of a mirrored journal, its mirrors, changes of the set and recoveries, in small
worlds: the design holds, and breaks with any one rule left out."""

import pytest

from tests.support.model.exploring import Explored, explore
from tests.support.model.mirror_steps import is_stuck, steps
from tests.support.model.mirror_world import RULES, Bounds, World, fault, start_of
from tests.support.tiers import later, soaked

LIMIT = 1_500_000
USUAL = Bounds()
LOST = Bounds(mirrors=1, start=1, changes=0, accepts=True)
FOUND_IN = {
    "behind the one before": Bounds(commits=2, crashes=0, changes=0),
    "let go of written files": Bounds(crashes=0, changes=0, flushes=True),
    "one copy counts": Bounds(crashes=0, changes=0, recoverers=2),
    "fence the slots": Bounds(mirrors=1, start=1, changes=1, crashes=0),
    "no number twice": Bounds(crashes=0, changes=0),
    "let go of acknowledged slots": Bounds(crashes=0, changes=0),
    "unknown, never empty": Bounds(mirrors=1, start=1, changes=0),
    "drop when told": Bounds(mirrors=3, changes=1),
    "a lossy copy says so": LOST._replace(recoverers=2),
    "end before it is given": LOST,
    "lower the cursor": LOST,
    "a new epoch": LOST,
    "renew the topic": LOST._replace(seeks=True),
}


def search(bounds: Bounds) -> Explored:
    """Every interleaving, breadth first."""

    def found(w: World) -> str | None:
        return fault(w) or ("stuck, though nothing is lost" if is_stuck(w, bounds) else None)

    start = start_of(bounds)
    return explore(start, lambda w: ((what, True, after) for what, after in steps(w, bounds)), found, limit=LIMIT)


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(crashes=1, changes=0),
        Bounds(mirrors=1, start=1, changes=0, flushes=True),
        Bounds(mirrors=1, start=0, commits=1, changes=2),
        later(Bounds(mirrors=2, start=1)),
        soaked(Bounds(crashes=1, changes=1)),
        later(Bounds(mirrors=1, start=1, commits=2, changes=1)),
        soaked(Bounds(mirrors=1, start=1, changes=1, recoverers=2)),
        later(Bounds(commits=2, crashes=0, changes=0, flushes=True)),
        LOST,
        soaked(LOST._replace(commits=2, flushes=True)),
        later(LOST._replace(recoverers=2, crashes=2)),
        later(LOST._replace(changes=1)),
        later(LOST._replace(seeks=True)),
    ],
    ids=[
        "two mirrors, a crash",
        "one mirror, files",
        "a mirror joins and is dropped",
        "one mirror is replaced, a crash",
        "two mirrors, a change, a crash",
        "one mirror, two commits, a change",
        "two recoveries, a change, a crash",
        "two mirrors, two commits, files",
        "a loss",
        "a loss, two commits, files",
        "a loss, two recoveries, two crashes",
        "a loss, a change",
        "a loss, a seek",
    ],
)
def test_the_design_holds(bounds: Bounds) -> None:
    found = search(bounds)
    assert found.fault is None, f"{found.fault}: " + " -> ".join(found.path)
    assert found.states > 1000, "hardly anything happened"


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_is_left_out_breaks_it(rule: str) -> None:
    found = search(FOUND_IN.get(rule, USUAL)._replace(without=rule))
    assert found.fault, "nothing depends on this rule"
    print(f"{found.fault}\n  {' -> '.join(found.path)}")

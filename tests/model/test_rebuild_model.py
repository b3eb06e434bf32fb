"""Coordination goes back at any moment, in small worlds: nothing acknowledged is lost, and each rule is needed."""

import pytest

from tests.support.model.rebuild_model import main, search
from tests.support.model.rebuild_world import RULES, Bounds, Journal, World, fault, lost, start_of
from tests.support.tiers import later

pytestmark = pytest.mark.default
MOVE = Bounds((0, 1, 1), moves=True, unnoticed=True)
SEAL = Bounds((1, 0, 1), seals=True)
STOP = Bounds((2, 0, 1), stops=True, unnoticed=True)
REFERENCE = Bounds((1, 0, 0), uploads=True, unnoticed=True)
WHERE = {
    "first entry": SEAL._replace(unnoticed=True),
    "done": STOP,
    "revisions in slots": REFERENCE,
    "objects are published": REFERENCE,
    "look before a deletion": REFERENCE._replace(messages=(0, 0, 1)),
}  # else MOVE
WHAT = {  # else "damage"
    "first entry": "behind the seal",
    "done": "slots are missing",
    "look at the start": "lost: Y's journal is done",
    "second look": "lost: Y's journal is done",
    "all needed journals": "lost: Y's journal is done",
    "revisions in slots": "names is deleted",
    "objects are published": "names is deleted",
    "look before a deletion": "names is deleted",
    "generation": "an id has two contents",
}


@pytest.mark.parametrize(
    "bounds",
    [
        MOVE._replace(messages=(1, 1, 1)),
        later(MOVE._replace(snapshots=1)),
        REFERENCE._replace(snapshots=1, messages=(1, 0, 1)),
        SEAL._replace(unnoticed=True),
        SEAL._replace(crashes=1),
        STOP,
        STOP._replace(messages=(1, 0, 1), uploads=True),
        Bounds((1, 0, 1), crashes=2, unnoticed=True),
        later(MOVE._replace(crashes=1)),
        later(SEAL._replace(moves=True, messages=(1, 1, 1), unnoticed=True)),
    ],
    ids=[
        "a move",
        "a move and a snapshot",
        "a payload",
        "a seal",
        "a seal, and a rebuild that dies",
        "a clean stop",
        "a payload and a clean stop",
        "two rebuilds that die",
        "a move, and a rebuild that dies",
        "a move and a seal",
    ],
)
def test_the_design_holds(bounds: Bounds) -> None:
    found = search(bounds)
    assert found.fault is None, " -> ".join(found.path)
    assert found.states > 2000, "hardly anything happened"


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_is_left_out_breaks_it(rule: str) -> None:
    found = search(WHERE.get(rule, MOVE)._replace(left_out=frozenset([rule])))
    assert WHAT.get(rule, "damage") in str(found.fault), "nothing, or something else, depends on it"
    print(f"{found.fault}\n  {' -> '.join(found.path)}")


@pytest.mark.parametrize("rule", ["owner by term", "notice"])
def test_terms_make_of_a_loss_damage(rule: str) -> None:
    world = MOVE._replace(messages=(1, 1, 1), left_out=frozenset([rule]))
    assert search(world, lost).fault is None, "the second line does not hold"
    assert "lost" in str(search(world._replace(left_out=world.left_out | {"term"}), lost).fault), "it is not needed"


def test_terms_never_tell_of_damage_while_the_rules_hold() -> None:
    assert search(MOVE._replace(left_out=frozenset(["term"]))).fault is None


def test_a_journal_in_files_whose_machine_is_away_shows_no_sign() -> None:
    """What moved to it since the copy is another's by then: damage is told of when the machine comes back."""
    found = search(MOVE._replace(away=True))
    assert "damage" in str(found.fault)
    assert search(MOVE._replace(away=True), lost).fault is None


START = start_of(Bounds())
ROW = (0, "X0")
ACKED = START._replace(acked=frozenset([("X", ROW)]))
X = START.chain[0]


@pytest.mark.parametrize(
    ("world", "what"),
    [
        (START._replace(chain=(X._replace(rows=((1, "X0"),)),)), "is not dense"),
        (START._replace(chain=(X._replace(is_seal=True), X)), "behind a seal"),
        (START._replace(damage="slots are missing"), "damage"),
        (ACKED._replace(journals=(("X", Journal(done=(1, 1))),)), "in no file"),
        (ACKED._replace(acked=ACKED.acked | {("Y", (0, "Y0"))}), "two contents"),
        (ACKED._replace(chain=(X._replace(rows=((0, "Y0"),)),)), "two contents"),
        (ACKED._replace(chain=(X._replace(is_seal=True),)), "behind the seal"),
        (START._replace(acked=frozenset([("X", (0, "reference of X0"))]), payload=False), "is deleted"),
    ],
)
def test_each_check_can_fail(world: World, what: str) -> None:
    assert what in str(fault(world))
    assert fault(START) is None
    assert fault(ACKED) is None


def test_a_world_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--messages", "1", "0", "0"]) == 0
    assert "holds" in capsys.readouterr().out
    assert main(["--moves", "--unnoticed", "--without", "second look"]) == 1
    assert "the sweep ends Y's journal\nlost" in capsys.readouterr().out

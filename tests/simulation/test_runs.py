"""Whole simulated runs: nothing is lost, doubled or out of order, a seed decides all of it, and mutants are found."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.plan import BROKERS, UNPROMISED, Fault, Plan
from tests.support.paths import ROOT
from tests.support.tiers import later, soaked

pytestmark = [pytest.mark.process, pytest.mark.brokers]

PLANS = Path(__file__).parent / "plans"
KEPT = sorted(PLANS.glob("*.json"))
MUTANTS = sorted((PLANS / "mutants").glob("*.json"))


def run(*options: str, mutant: str = "", **environment: str) -> tuple[int, str]:
    """Ends a run in a process of its own: its status, and what it has printed."""
    module = ["tests.simulation.prove", "--as", mutant] if mutant else ["tests.simulation.run"]
    command = [sys.executable, "-m", *module, "--no-shrink", *options]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_some_seeds() -> None:
    status, printed = run("--seeds", "2", "--minutes", "0.7")
    assert status == 0, printed
    assert "2 runs, 0 failed" in printed


@pytest.mark.long
def test_fresh_seeds() -> None:
    """Others each time; a failure prints the seed, and `make simulate SEED=...` runs it again."""
    seed = str(int.from_bytes(os.urandom(4)))
    status, printed = run("--seed", seed, "--seeds", "4", "--minutes", "2")
    assert status == 0, printed


@pytest.mark.long
def test_a_typed_topic_whose_schema_changes() -> None:
    """Publishers of two versions, imports, dead letters, splits, and faults at the steps of a change."""
    status, printed = run("--seed", "30100", "--seeds", "3", "--minutes", "1", "--typed")
    assert status == 0, printed


@pytest.mark.long
def test_a_seed_decides_all_of_it() -> None:
    """Whatever the order of hashes."""
    found = [run("--seed", "24", "--seeds", "2", "--minutes", "0.5", PYTHONHASHSEED=order)[1] for order in "120"]
    digests = [sorted(line.split()[-1] for line in one.splitlines() if line.startswith("seed ")) for one in found]
    assert digests[0] == digests[1] == digests[2]
    assert len(digests[0]) == 2


@pytest.mark.long
def test_a_seed_decides_all_of_it_also_twice_in_one_process() -> None:
    status, printed = run("--seed", "24", "--seeds", "2", "--minutes", "0.5", "--twice")
    assert status == 0, printed


@pytest.mark.long
def test_a_fault_that_does_not_come_changes_nothing(tmp_path: Path) -> None:
    plan, digests = Plan(1, 8.0, publishers=2, consumers=("keyed",), faults=(Fault("kill", 4.0, 1.0, 1),)), set()
    for faults in ((), (Fault("kill", 2.0, 1.0, -1, place="slot.put", turn=10_000), Fault("clock", 99.0, 1.0))):
        (tmp_path / "plan.json").write_text(replace(plan, faults=plan.faults + faults).to_json())
        status, printed = run("--plan", str(tmp_path / "plan.json"))
        assert status == 0, printed
        digests.add(printed.splitlines()[0].split()[-1])
    assert len(digests) == 1


@pytest.mark.long
def test_a_rolling_restart_keeps_no_publisher_waiting(tmp_path: Path) -> None:
    """With mirrored journals, each answer is known and comes at once."""
    faults = tuple(Fault("restart", 8.0 + 7 * number, 2.0, number) for number in range(BROKERS))
    quiet = {"consumers": (), "readers": 0, "reshapes": False}
    plan = Plan(1, 30.0, "mirrored", BROKERS, publishers=4, calls_per_s=8.0, faults=faults, **quiet)
    (tmp_path / "plan.json").write_text(plan.to_json())
    status, printed = run("--plan", str(tmp_path / "plan.json"))
    assert status == 0, printed
    found = re.search(r"the slowest ([0-9.]+) s, (\d+) publishes unknown", printed)
    assert found, printed
    assert (float(found[1]) < 0.1, found[2]) == (True, "0"), printed


@pytest.mark.long
@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_plan_that_failed_once(path: Path) -> None:
    status, printed = run("--plan", str(path), "--json")
    assert status == 0, printed
    took = json.loads(printed.splitlines()[-1])["took"]
    assert sum(took.values()) == len(Plan.from_json(path.read_text()).faults), took


@pytest.mark.parametrize(
    "path", [later(path) if n % 3 == 0 else soaked(path) for n, path in enumerate(MUTANTS)], ids=lambda path: path.stem
)
def test_a_shrunk_plan_tells_a_mutant_from_the_code(path: Path) -> None:
    status, printed = run("--plan", str(path))
    assert status == 0, printed
    status, printed = run("--plan", str(path), mutant=path.stem)
    assert status == 1, printed
    assert "1 runs, 1 failed" in printed


@pytest.mark.long
def test_what_nobody_promises_to_survive_is_told() -> None:
    """Listings that lag, wrong 404s, objects that are lost, leases that end early."""
    kinds = ",".join(("kill", "outlawed", *UNPROMISED))
    status, printed = run("--seed", "24", "--seeds", "2", "--minutes", "0.5", "--faults", kinds)
    assert status == 0, printed


@pytest.mark.long
def test_a_plan_is_run_from_its_file(tmp_path: Path) -> None:
    faults = (Fault("kill", 2.0, 1.0, 1), Fault("pause", 3.0, 6.0, -1, place="slot.stored"))
    plan = Plan(1, 8.0, publishers=2, consumers=("keyed",), readers=0, faults=faults)
    (tmp_path / "plan.json").write_text(plan.to_json())
    status, printed = run("--plan", str(tmp_path / "plan.json"), "--json")
    assert status == 0, printed
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    assert found["took"] == {"kill": 1, "pause": 1}

"""`python -m tests.simulation.run`: simulated runs by seed, each in a process of its own; a failure is shrunk."""

import argparse
import json
import logging
import multiprocessing
import os
import platform
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.simulation.plan import EVERY, KNOWN, Plan, draw, shrunk
from tests.simulation.world import Endless, Outcome, simulate
from tests.support.paths import ROOT

LONGEST_S = 300.0  # of CPU, for one run
TOLD = 80  # lines of a timeline
TRIES = 45  # runs by which a plan is shrunk


def _run(plan: Plan, log: bool = False) -> Outcome:
    if log:
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")

    def end(*_: Any) -> None:
        raise Endless(f"no end within {LONGEST_S:g} s of CPU")

    signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
    return simulate(plan, log)


def _run_twice(plan: Plan) -> Outcome:
    first, again = _run(plan), _run(plan)
    if again.digest != first.digest:
        again.wrong.append(f"the same seed has two histories, {first.digest} and {again.digest}")
    return again


def apart(plan: Plan) -> Outcome:
    """Runs a plan in a process of its own."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(_run, (plan,))


def smaller(outcome: Outcome) -> Outcome:
    """The run of the shrunk plan of one that failed, which fails again; else that run once more."""
    came = replace(outcome.plan, faults=tuple(outcome.plan.faults[at] for at in outcome.came))
    begun = came if apart(came).wrong else outcome.plan
    return apart(shrunk(begun, lambda plan: bool(apart(plan).wrong), TRIES))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--minutes", type=float, default=2.0, help="simulated, of each")
    parser.add_argument("--gap", type=float, default=6.0, help="simulated seconds between two faults")
    parser.add_argument("--faults", default=",".join(EVERY), help="kinds, with commas between them")
    parser.add_argument("--returns", action="store_true", help="coordination goes back in each")
    journals = ("", "object", "file", "mirrored")
    parser.add_argument("--journal", default="", choices=journals, help="this one in each, and none is drawn")
    parser.add_argument("--typed", action="store_true", help="a typed topic whose schema changes, in each")
    parser.add_argument("--plan", type=Path, help="a kept plan in place of seeds")
    parser.add_argument("--log", action="store_true", help="the brokers' logs, of one seed")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--first", action="store_true", help="end with the first failure")
    parser.add_argument("--twice", action="store_true", help="each in one process, whose histories are compared")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time")
    parser.add_argument("--cpu-s", type=float, default=float("inf"), help="begin no run once so much CPU is spent")
    parser.add_argument("--json", action="store_true", help="the first failure, shrunk, as the last line")
    chosen = parser.parse_args()
    kinds = tuple(filter(None, chosen.faults.split(",")))
    if strange := set(kinds) - KNOWN:
        parser.error(f"there are no faults of the kinds {sorted(strange)}; there are {', '.join(sorted(KNOWN))}")
    if chosen.plan:
        plans = [Plan.from_json(chosen.plan.read_text())]
        places = {one.place for one in plans[0].faults if one.place and not one.place.startswith("disk.")}
        if strange := places - fail_points():
            parser.error(f"there are no fail points {sorted(strange)}")
    else:
        seeds = range(chosen.seed, chosen.seed + chosen.seeds)
        drawn = kinds, chosen.returns, chosen.journal, chosen.typed
        plans = [draw(seed, chosen.minutes * 60, chosen.gap, *drawn) for seed in seeds]
    if chosen.log:
        outcome = _run(plans[0], True)
        tell(outcome)
        sys.stdout.flush()
        os._exit(bool(outcome.wrong))  # the tasks of the dead would clean up
    failed: list[Outcome] = []
    reached: Counter[str] = Counter()
    took: Counter[str] = Counter()
    cpu_s, runs = 0.0, 0
    commit()  # a process that begins beside the pool waits for ever if a worker, forked meanwhile, has its pipe
    with multiprocessing.get_context("fork").Pool(chosen.jobs, maxtasksperchild=1) as pool:
        for outcome in pool.imap_unordered(_run_twice if chosen.twice else _run, plans):
            tell(outcome)
            reached.update(outcome.reached)
            took.update(outcome.faults)
            cpu_s, runs = cpu_s + outcome.cpu_s, runs + 1
            failed += [outcome] if outcome.wrong else []
            if (failed and chosen.first) or cpu_s > chosen.cpu_s:
                break
        else:  # `terminate` alone may wait for ever for a process that has just begun in place of an ended one
            pool.close()
            pool.join()
    print(f"{runs} runs, {len(failed)} failed, {cpu_s:.0f} s of CPU")
    tell_counts("faults that came", took, set(kinds) if not chosen.plan else ())
    tell_counts("fail points reached", reached, fail_points() if not chosen.plan else ())
    small = None
    if failed and not chosen.no_shrink:
        small = smaller(failed[0])
        print(f"shrunk:\n{small.plan.to_json()}\n" + "\n".join(small.plan.lines()))
        tell(small)
    if chosen.json:
        found = {"wrong": failed[0].wrong[:3] if failed else [], "runs": runs, "cpu_s": cpu_s, "took": dict(took)}
        if small:
            found |= {"again": small.wrong[:3], "plan": small.plan.to_json(), "faults": small.plan.summary()}
        print(json.dumps(found))
    return bool(failed)


def tell_counts(what: str, counts: Counter[str], wanted: Collection[str]) -> None:
    """How often something was reached, and what never was."""
    print(f"{what}: {', '.join(f'{name} {count}' for name, count in sorted(counts.items()))}")
    if missed := sorted(set(wanted) - counts.keys()):
        print(f"  and never: {', '.join(missed)}")


def fail_points() -> set[str]:
    """All of the package; those of the runner of files are an import's, and a write's."""
    sources = [path.read_text() for path in (ROOT / "seaweedq").rglob("*.py")]
    named = {place for source in sources for place in re.findall(r'\breach\("([a-z.]+)"\)', source)}
    steps = {step for source in sources for step in re.findall(r'\b_reach\("([a-z]+)"\)', source)}
    return named | {f"{kind}.{step}" for kind in ("import", "write") for step in steps}


@cache
def commit() -> str:
    """The commit of the code, with a + if it was changed."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip() or "unknown"


def tell(outcome: Outcome) -> None:
    """One line, and what is wrong; of a failure also what became of the lives, and when."""
    speed = outcome.simulated_s / outcome.cpu_s if outcome.cpu_s else 0
    print(
        f"seed {outcome.plan.seed}: {'WRONG' if outcome.wrong else 'good'}, {outcome.acknowledged} messages, "
        f"the slowest {outcome.slowest_s:.2f} s, {outcome.unknown} publishes unknown, "
        f"{outcome.delivered} delivered, {outcome.starts} starts, {len(outcome.plan.faults)} faults, "
        f"{outcome.simulated_s:.0f} s in {outcome.cpu_s:.1f} s of CPU ({speed:.0f} times), {outcome.digest[:12]}",
        flush=True,
    )
    for text in outcome.wrong[:20]:
        print(f"  {text[:600]}")
    for text in outcome.loud[:20]:
        print(f"  told: {text[:600]}")
    if outcome.wrong:
        plan = outcome.plan
        print(f"  commit {commit()}, Python {platform.python_version()}, a {plan.journal} journal, knobs {plan.knobs}")
        print("\n".join(outcome.timeline[-TOLD:]), flush=True)


if __name__ == "__main__":
    sys.exit(main())

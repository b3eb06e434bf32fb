"""`python -m tests.simulation.run`: simulated runs by seed, each in a process of its own; a failure is shrunk."""

import argparse
import json
import logging
import multiprocessing
import os
import sys
from collections import Counter
from pathlib import Path

from tests.simulation.plan import KINDS, Plan, draw, shrunk
from tests.simulation.world import Outcome, simulate


def _run(plan: Plan, log: bool = False) -> Outcome:
    logging.basicConfig(level=logging.INFO if log else logging.CRITICAL, format="%(name)s: %(message)s")
    return simulate(plan)


def apart(plan: Plan) -> Outcome:
    """Runs a plan in a process of its own."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(_run, (plan,))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--minutes", type=float, default=2.0, help="simulated, of each")
    parser.add_argument("--gap", type=float, default=6.0, help="simulated seconds between two faults")
    parser.add_argument("--faults", default=",".join(dict.fromkeys(KINDS)), help="kinds, with commas between them")
    parser.add_argument("--plan", type=Path, help="a kept plan in place of seeds")
    parser.add_argument("--log", action="store_true", help="the brokers' logs, of one seed")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--first", action="store_true", help="end with the first failure")
    parser.add_argument("--json", action="store_true", help="the first failure, shrunk, as the last line")
    chosen = parser.parse_args()
    kinds = tuple(filter(None, chosen.faults.split(",")))
    if chosen.plan:
        plans = [Plan.from_json(chosen.plan.read_text())]
    else:
        seeds = range(chosen.seed, chosen.seed + chosen.seeds)
        plans = [draw(seed, chosen.minutes * 60, chosen.gap, kinds) for seed in seeds]
    if chosen.log:
        tell(_run(plans[0], True))
        os._exit(0)  # the tasks of the dead would clean up
    failed: list[Outcome] = []
    reached: Counter[str] = Counter()
    took: Counter[str] = Counter()
    cpu_s, runs = 0.0, 0
    with multiprocessing.get_context("fork").Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        for outcome in pool.imap_unordered(_run, plans):
            tell(outcome)
            reached.update(outcome.reached)
            took.update(outcome.faults)
            cpu_s, runs = cpu_s + outcome.cpu_s, runs + 1
            failed += [outcome] if outcome.wrong else []
            if failed and chosen.first:
                break
    print(
        f"{runs} runs, {len(failed)} failed, {cpu_s:.0f} s of CPU; faults that came: {dict(took)}; "
        f"fail points reached: {dict(reached)}"
    )
    small = None
    for outcome in [] if chosen.no_shrink else failed[:1]:
        small = shrunk(outcome.plan, lambda plan: bool(apart(plan).wrong), 40)
        print(f"shrunk:\n{small.to_json()}\n" + "\n".join(small.lines()))
        tell(apart(small))
    if chosen.json:
        wrong = failed[0].wrong if failed else []
        kinds_left = [f"{fault.kind} at {fault.place or 'a moment'}" for fault in small.faults] if small else []
        print(json.dumps({"wrong": wrong, "runs": runs, "cpu_s": cpu_s, "faults": kinds_left, "took": dict(took)}))
    return bool(failed)


def tell(outcome: Outcome) -> None:
    """One line, and what is wrong."""
    speed = outcome.simulated_s / outcome.cpu_s if outcome.cpu_s else 0
    print(
        f"seed {outcome.plan.seed}: {'WRONG' if outcome.wrong else 'good'}, {outcome.acknowledged} messages, "
        f"{outcome.delivered} delivered, {outcome.starts} starts, {len(outcome.plan.faults)} faults, "
        f"{outcome.simulated_s:.0f} s in {outcome.cpu_s:.1f} s of CPU ({speed:.0f} times), {outcome.digest[:12]}",
        flush=True,
    )
    for text in outcome.wrong[:20]:
        print(f"  {text[:600]}")


if __name__ == "__main__":
    sys.exit(main())

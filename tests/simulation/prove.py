"""`python -m tests.simulation.prove`: in which seed the simulation finds each mutant of `tests/mutants`, and by what.

A mutant is the real code with one rule left out. One that is not found within so many seeds needs an aimed fault.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutants.catalogue import everything
from tests.mutants.run import Copy
from tests.support.paths import ROOT

NAMES = (
    "recovery-puts-no-fence",
    "fence-is-not-looked-at-again",
    "leader-gives-before-the-replay-ends",
    "slot-acknowledged-out-of-order",
    "slots-deleted-before-it-is-stated",
    "rows-are-dropped-before-the-chain-has-them",
    "replay-takes-acks-of-old-epochs",
    "replay-skips-rows-by-offset-alone",
    "replay-doubles-what-the-chain-has",
    "seal-before-commits-are-quiet",
    "seal-while-publishes-go-on",
    "quiet-waits-for-nothing",
    "acknowledged-without-a-lease",
    "broker-serves-behind-its-lease",
    "ack-counts-before-the-journal-has-it",
    "commits-are-answered-out-of-order",
    "repeat-is-appended-again",
    "pending-request-is-judged-new",
    "old-sequence-is-taken-for-new",
    "successors-forget-producers",
    "ordered-delivers-beside-a-lease",
    "leader-takes-from-the-living",
    "foreign-slot-is-taken-for-ones-own",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which mutants; without: {', '.join(NAMES)}")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=2.0)
    chosen = parser.parse_args()
    missed = 0
    known = {mutant.name: mutant for mutant in everything()}
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        for name in chosen.names or NAMES:
            mutant = known[name]
            (original,) = mutant.places()
            path = copy.folder / original.relative_to(ROOT)
            path.write_text(original.read_text().replace(mutant.old, mutant.new))
            command = [sys.executable, "-m", "tests.simulation.run", "--seeds", str(chosen.seeds), "--first", "--json"]
            command += ["--minutes", str(chosen.minutes)]
            environment = os.environ | {"PYTHONPATH": str(copy.folder), "PYTHONDONTWRITEBYTECODE": "1"}
            done = subprocess.run(command, cwd=copy.folder, env=environment, capture_output=True, text=True)
            path.write_text(original.read_text())
            try:
                found = json.loads(done.stdout.splitlines()[-1])
            except (IndexError, ValueError):
                found = {"wrong": [f"no end: {done.stderr[-500:]}"], "runs": 0, "cpu_s": 0, "faults": []}
            missed += not found["wrong"]
            said = found["wrong"][0][:120] if found["wrong"] else "NOT FOUND"
            print(
                f"| {name} | {found['runs']} | {found['cpu_s']:.0f} s | {', '.join(found['faults'])} | {said} |",
                flush=True,
            )
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())

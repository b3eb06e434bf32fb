"""`python -m tests.simulation.prove`: in which seed the simulation finds each mutant of `tests/mutants`, and by what.

A mutant is the real code with one rule left out. One that is not found within so many seeds needs an aimed fault.
`python -m tests.simulation.prove --as NAME ...` is `tests.simulation.run` over the code with that mutant.
"""

import argparse
import json
import subprocess
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import decode_source
from pathlib import Path
from types import CodeType
from typing import Any

from tests.mutants.catalogue import Mutant, everything
from tests.support.paths import ROOT

NAMES = (
    "recovery-puts-no-fence",
    "fence-is-not-looked-at-again",
    "leader-gives-before-the-replay-ends",
    "slot-acknowledged-out-of-order",
    "slots-deleted-before-it-is-stated",
    "commits-are-released-before-the-flush",
    "rows-are-dropped-before-the-chain-has-them",
    "journal-is-recovered-before-its-replay",
    "checkpoint-compares-nothing",
    "checkpoint-keeps-few-runs",
    "replay-takes-acks-of-old-epochs",
    "replay-skips-rows-by-offset-alone",
    "replay-doubles-what-the-chain-has",
    "move-settles-nothing",
    "move-flushes-once",
    "seal-before-commits-are-quiet",
    "seal-while-publishes-go-on",
    "quiet-waits-for-nothing",
    "acknowledged-without-a-lease",
    "broker-serves-behind-its-lease",
    "dispatcher-of-a-revoked-broker-is-replaced-at-once",
    "forward-goes-again-under-a-new-identity",
    "lost-answer-of-a-move-is-a-no",
    "lost-answer-is-a-no",
    "ack-counts-before-the-journal-has-it",
    "commits-are-answered-out-of-order",
    "repeat-is-appended-again",
    "pending-request-is-judged-new",
    "old-sequence-is-taken-for-new",
    "successors-forget-producers",
    "ordered-delivers-beside-a-lease",
    "leader-takes-from-the-living",
    "foreign-slot-is-taken-for-ones-own",
    "who-comes-back-gets-later-messages",
    "letters-go-out-before-the-cursor-names-them",
    "free-segment-goes-to-who-has-gone",
)
OF_RETURNS = (
    "snapshot-is-no-sign",
    "change-is-no-sign",
    "done-is-no-sign",
    "journal-without-a-key-is-no-sign",
    "later-revision-is-no-sign",
    "leader-compares-no-terms",
    "a-revision-may-fall",
    "first-commit-is-answered-unchecked",
    "rebuild-reads-journals-unfenced",
    "owner-of-the-state-is-believed",
    "needed-journal-stays-recovered",
    "older-state-is-taken",
    "half-replaced-coordination-is-taken",
    "generation-begins-without-an-entry",
    "nothing-is-put-behind-a-dead-owner",
    "no-gap-of-ids",
    "framed-ids-are-forgotten",
    "seal-without-an-intent-is-ignored",
    "acks-of-rows-that-are-gone-count",
    "topic-is-answered-before-the-store-has-it",
)
"""Those of lost coordination, for plans in which it goes back."""
OF_MIRRORS = (
    "mirror-takes-what-it-does-not-know-for-empty",
    "holding-that-left-the-set-is-enough",
    "call-without-an-answer-is-held",
    "one-mirror-is-enough",
    "new-set-counts-while-it-is-in-doubt",
    "set-changes-before-it-has-all",
    "recovery-closes-no-set",
    "fenced-holding-takes-commits",
    "recovery-puts-no-fence",
    "copy-is-named-before-it-is-stored",
    "each-recovery-replays-its-own-copy",
    "mirrors-let-go-of-slots-under-way",
    "mirror-drops-what-no-set-names",
    "commit-that-was-sent-is-refused",
    "unknown-mirrored-journal-is-empty",
    "lost-journals-segments-go-on",
    "lost-rows-stay-acked",
    "dispatcher-goes-on-above-the-end",
    "lossy-copy-counts-as-whole",
)
"""Those of a mirrored journal, rules 1 to 12 in order and those of a loss, for plans that have it."""
EVERY = tuple(dict.fromkeys((*NAMES, *OF_RETURNS, *OF_MIRRORS)))
SLIPS = ("NameError", "AttributeError", "TypeError", "UnboundLocalError", "ImportError", "SyntaxError")


class _Loader(SourceFileLoader):
    """Loads the module that has the mutant."""

    mutant: Mutant

    def get_code(self, fullname: str) -> CodeType:
        text = decode_source(self.get_data(self.path)).replace(self.mutant.old, self.mutant.new)
        return compile(text, self.path, "exec", dont_inherit=True)


def mutate(mutant: Mutant) -> None:
    """Has this process import the code with a mutant; nothing of `seaweedq` was imported before."""
    (place,) = mutant.places()
    module = ".".join(place.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    assert module not in sys.modules

    class Finder(PathFinder):
        @classmethod
        def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
            spec = super().find_spec(fullname, path, target) if fullname == module else None
            if spec and spec.origin:
                spec.loader = loader = _Loader(fullname, spec.origin)
                loader.mutant = mutant
            return spec

    sys.meta_path.insert(0, Finder)


def run_as(name: str, options: list[str]) -> int:
    """`tests.simulation.run` over the code with a mutant."""
    mutate(next(mutant for mutant in everything() if mutant.name == name))
    from tests.simulation import run

    sys.argv[1:] = options
    return run.main()


def main() -> int:
    if sys.argv[1:2] == ["--as"]:
        return run_as(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which mutants; without: {', '.join(EVERY)}")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--cpu-s", type=float, default=480.0, help="of CPU for each mutant, the shrinking left out")
    parser.add_argument("--plans", type=Path, help="a folder for the shrunk plans")
    chosen = parser.parse_args()
    missed = 0
    for name in chosen.names or EVERY:
        command = [sys.executable, "-m", "tests.simulation.prove", "--as", name, "--first", "--json", "--jobs", "1"]
        command += ["--seeds", str(chosen.seeds), "--seed", str(chosen.seed), "--minutes", str(chosen.minutes)]
        command += ["--cpu-s", str(chosen.cpu_s), *(["--returns"] if name in OF_RETURNS else [])]
        command += ["--journal", "mirrored"] if name in OF_MIRRORS else []
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        try:
            found = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            found = {"wrong": [f"no end: {done.stderr[-500:]}"], "runs": 0, "cpu_s": 0}
        missed += not found["wrong"]
        print(row(name, found), flush=True)
        if chosen.plans and found.get("again"):
            (chosen.plans / f"{name}.json").write_text(found["plan"] + "\n")
    return bool(missed)


def row(name: str, found: dict[str, Any]) -> str:
    """A line of the table: mutant, seeds and CPU time to the first failure, the faults that are left of it, and what
    the judge says."""
    wrong = " ".join((found["wrong"] or ["NOT FOUND"])[0].split()).replace("|", "/")[:160]
    slip = next((f"a slip of the mutant: {one}; " for one in SLIPS if one in " ".join(found["wrong"])), "")
    left = ", ".join(found["faults"]) or "no fault" if found.get("again") else "not shrunk"
    return f"| {name} | {found['runs']} | {found['cpu_s']:.0f} s | {left} | {slip}{wrong} |"


if __name__ == "__main__":
    sys.exit(main())

"""Runs the tests that find each mutant, over a copy of the project that has it.

`python -m tests.mutants.run [NAME ...]` ends with 1 if a mutant is found by none of its tests.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.catalogue import Mutant, everything
from tests.support.paths import ROOT

LONGEST_S = 300
TIMEOUT = ("--timeout", "60")  # seconds a test: a mutant may wait for ever
NO_TEST_RAN = {2, 3, 4, 5}  # pytest's exit status of an interruption, an error of its own, a wrong call, no test


class Copy:
    """A copy of the project's files in `folder`, whose package can have one mutant at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)
        if (ROOT / ".venv").exists():
            (folder / ".venv").symlink_to((ROOT / ".venv").resolve())

    def failing(self, mutant: Mutant, tests: list[str], options: list[str] | None = None) -> str | None:
        """The end of the run of some tests where they find the mutant, else None."""
        (original,) = mutant.places()
        path = self.folder / original.relative_to(ROOT)
        path.write_text(original.read_text().replace(mutant.old, mutant.new))
        try:
            return self._failing(tests, options or [])
        finally:
            path.write_text(original.read_text())

    def _failing(self, tests: list[str], options: list[str]) -> str | None:
        environment = os.environ | {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TIMEOUT, *options, *tests]
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=LONGEST_S
            )
        except subprocess.TimeoutExpired:
            return f"no end within {LONGEST_S} s"
        if done.returncode in NO_TEST_RAN:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout[-2000:] if done.returncode else None


def run(mutants: list[Mutant], workers: int) -> list[str]:
    """The names of the mutants that their tests do not find."""

    def found(part: int) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            copy = Copy(Path(folder))
            missed = []
            for mutant in mutants[part::workers]:
                is_found = copy.failing(mutant, list(mutant.tests)) is not None
                print(f"{'found' if is_found else 'NOT FOUND':10} {mutant.name}: {mutant.rule}", flush=True)
                missed += [] if is_found else [mutant.name]
            return missed

    with ThreadPoolExecutor(workers) as pool:
        return [name for part in pool.map(found, range(workers)) for name in part]


def main() -> int:
    """Runs the mutants that are named, or all that some test finds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="which mutants; all without")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    known = {mutant.name: mutant for mutant in everything()}
    if unknown := set(given.names) - known.keys():
        parser.error(f"no mutant is called {', '.join(sorted(unknown))}")
    mutants = [mutant for mutant in known.values() if mutant.name in given.names or (not given.names and mutant.tests)]
    missed = run(mutants, given.workers)
    print(f"{len(mutants) - len(missed)} of {len(mutants)} mutants were found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

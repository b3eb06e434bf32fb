"""CPU of each stage of an Arrow publish in this process, nanoseconds a message, for requests of several sizes."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.result import Result
from benchmarks.turns import HERE, Tree, in_turns, lowest

ROUNDS = 5
ALLOCATOR = {"ARROW_DEFAULT_MEMORY_POOL": "system"}  # as in `serve`
PROGRAM = """
import runpy, sys, seaweedq
sys.path.insert(0, {!r})
runpy.run_module("benchmarks.stage_times", run_name="__main__")
"""


def measure(folder: Path) -> Iterator[Result]:
    """A process of each tree in turns."""

    def once(tree: Tree) -> Mapping[str, float]:
        command = [sys.executable, "-P", "-c", PROGRAM.format(str(HERE)), str(folder)]
        done = subprocess.run(command, env=tree.environment() | ALLOCATOR, check=True, stdout=subprocess.PIPE)
        found: Mapping[str, float] = json.loads(done.stdout)
        return found

    note = f"user and system time; bytes of 100 B with keys into four segments, an entry each; best of {ROUNDS} rounds"
    yield from lowest("stages", "ns/msg", in_turns(ROUNDS, once), note)

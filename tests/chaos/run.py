"""`make chaos SECONDS=…`: a run with a seed, its progress and its figures. Exit status 1 for any violation.

Run from the root of the repository: python -m tests.chaos.run --seconds 300 --seed 7
"""

import argparse
import logging
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tests.support.chaos.chaos import Options, Report, run, summary
from tests.support.chaos.clocks import ABSENT, library
from tests.support.chaos.faults import ALL, ALL_AT_ONCE
from tests.support.chaos.figures import quantile
from tests.support.chaos.nemesis import Nemesis, plan
from tests.support.chaos_clients.fleet import OTHERS
from tests.support.processes.s3_service import SERVERS

SHOWN = 8  # violations of a rule
ONE_LIFE = "etcd answers after 1.2 s, its leader is killed again and again, and no broker may lose its life for it"

JOURNALS, KINDS = ("object", "file", "mirrored"), "file: on small disks; mirrored: no fault loses all memory at once"


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long faults happen")
    parser.add_argument("--seed", type=int, default=None, help="what the plan is drawn from; without it, any")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--lease-s", type=float, default=3.0)
    parser.add_argument("--faults", default="", help="only those whose names begin so, separated by commas")
    parser.add_argument("--store", default="moto", choices=SERVERS)
    parser.add_argument("--each", type=int, default=0, help="for as long as each fault takes to be planned so often")
    parser.add_argument("--load", type=int, default=0, help="processes that keep the processors busy meanwhile")
    parser.add_argument("--clients", default=",".join(OTHERS), help="those beside the usual ones, by commas")
    parser.add_argument("--etcds", type=int, default=1, choices=(1, 3), help="members of etcd")
    parser.add_argument("--journal", default="object", choices=JOURNALS, help=KINDS)
    parser.add_argument("--one-life", action="store_true", help=ONE_LIFE)
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    wanted = ("kill leader of etcd",) if given.one_life else tuple(given.faults.split(","))
    left_out = ALL_AT_ONCE if given.journal == "mirrored" else ()
    faults = [fault for fault in ALL if fault.name.startswith(wanted) and fault.name not in left_out]
    seconds = given.seconds
    while min(Counter(one.fault.name for one in plan(seed, seconds, given.lease_s, faults)).values()) < given.each:
        seconds += 30
    clients = [name for name in given.clients.split(",") if name]
    options = Options(
        *(seed, seconds, given.brokers, given.lease_s, faults, given.store),
        *(clients, given.etcds, given.journal, given.one_life),
    )
    if library() is None:
        print(ABSENT)
    folder = Path(tempfile.mkdtemp(prefix="seaweedq-chaos-"))
    console = Console()
    console.print(
        f"seed {seed}, {seconds:g} s of faults, {given.brokers} brokers; history and logs in {folder}",
        soft_wrap=True,
    )
    logging.getLogger("seaweedq").setLevel(logging.CRITICAL)  # what clients log of failing handlers is expected
    with Progress(TextColumn("{task.description:40}"), BarColumn(), TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("start", total=seconds)

        def watch(at: float, nemesis: Nemesis) -> None:
            progress.update(task, completed=at, description=f"{len(nemesis.done)}: {', '.join(nemesis.done[-1:])}")

        with busy(given.load):
            report = run(options, folder, watch)
    _show(report, console)
    if report.violations:
        console.print(f"kept: {folder}; again: make chaos SECONDS={seconds:g} SEED={seed}")
        return 1
    shutil.rmtree(folder)
    return 0


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that compute for ever."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def _show(report: Report, console: Console) -> None:
    for name, count in sorted(Counter(report.done).items()):
        console.print(f"{count:4} {name}")
    console.print(summary(report), highlight=False)
    for name, waits in report.waits.items():
        console.print(
            f"{name}, to the next acknowledged publish: p50 {quantile(waits, 0.5):.2f} s, max {max(waits):.2f} s "
            f"of {len(waits)}",
            soft_wrap=True,
        )
    shown: Counter[str] = Counter()
    for violation in report.violations:
        shown[violation.rule] += 1
        if shown[violation.rule] <= SHOWN:
            console.print(
                f"VIOLATION {violation.rule}: {violation.text}", markup=False, highlight=False, soft_wrap=True
            )
    console.print(f"seed {report.seed}: {len(report.violations)} violations {dict(shown) or ''}")


if __name__ == "__main__":
    sys.exit(main())

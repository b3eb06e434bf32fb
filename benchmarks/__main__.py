"""Run benchmarks by name and print their table."""

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import msgspec

from benchmarks import turns
from benchmarks.result import Result, line, table

NAMES = (
    "arrow", "ndjson", "singles", "latency", "streams", "redelivery", "pull", "leases", "waiting", "memory", "restart",
    "topics", "bodies", "journal", "spark_read", "object_journal", "journal_budget", "journal_files", "placement",
    "scaling_decisions", "cluster_batches", "rebuild", "mirrored_journal", "read_cache", "grpc_calls",
    "failover", "failover_minio", "cluster_latency", "cluster_join", "cluster_requests", "rolling_restart",
    "forwarding", "imports", "split_pause", "split_flood", "split_pause_s3", "split_spike", "split_throughput",
    "access", "access_tls", "traces", "neighbours", "by_reference", "stages", "arrow_small", "send", "schemas", "kafka",
    "spark_topic", "spark_planning", "spark_stream", "spark_compact", "spark_audit", "spark_write",
)  # fmt: skip
TOGETHER = {
    "splitting": [name for name in NAMES if name.startswith("split_")],
    "spark": [name for name in NAMES if name.startswith("spark_")],
}


def main() -> None:
    """Parse, measure, print."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: what is under measurement ends with it
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = ", ".join((*NAMES, *TOGETHER))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {known}; all without one")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--folder", type=Path, default=Path(), help="where to work; on a real disk, not in memory (default: here)"
    )
    parser.add_argument(
        "--base",
        type=Path,
        help="another checkout (a tree of `git worktree`), measured in turns with this by stages, arrow_small, send",
    )
    given = parser.parse_args()
    turns.BASE += [given.base] if given.base else []
    if unknown := set(given.names) - set(NAMES) - set(TOGETHER):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {known}")
    results: list[Result] = []
    try:
        for name in [one for each in given.names or NAMES for one in TOGETHER.get(each, [each])]:
            print(f"{name} ...", end=" ", file=sys.stderr, flush=True)
            measure: Callable[[Path], Iterator[Result]] = import_module(f"benchmarks.{name}").measure
            with tempfile.TemporaryDirectory(prefix=".bench-", dir=given.folder, ignore_cleanup_errors=True) as folder:
                for result in measure(Path(folder)):
                    results.append(result)
                    print(f"\n  {line(result)}", end=" ", file=sys.stderr, flush=True)
    finally:  # also what was measured before one failed, or was ended
        print(file=sys.stderr)
        print(msgspec.json.encode(results).decode() if given.json else table(results), flush=True)


if __name__ == "__main__":
    main()

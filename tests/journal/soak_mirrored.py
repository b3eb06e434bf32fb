"""A mirrored journal among real processes: each place at which an owner, a mirror or a recovery may die, an owner that
stops or is cut off together with a mirror, rolling restarts, also to an object journal and back, and a mirror that is
slow for ten minutes."""

import os
import random
import threading
import time
from bisect import bisect
from functools import partial
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from benchmarks import cluster_processes
from benchmarks.metrics import metrics_of
from benchmarks.rolling_restart import rolled, timeline
from tests.support.chaos.cluster import Cluster, Member
from tests.support.chaos.mirrored import (
    MIRROR,
    OWNER,
    RECOVERER,
    again,
    done_under_load,
    killed_at,
    left_with_a_mirror,
    rolled_to,
    stopped_past_its_lease,
)

SLOW_S = float(os.environ.get("SEAWEEDQ_TEST_SLOW_S", "600"))
PAUSED_S, RUNNING_S = 0.35, 0.1  # of the slow mirror, in turns: below the patience of owners
MIRROR_BYTES, UNRELEASED_BYTES = 8 * 1024 * 1024, 1024 * 1024
REQUESTS, REQUEST_BYTES = 4, 256 * 1024  # under way at a time
FLUSH_S = 2.0  # of a flush, from the bound on, on a busy machine: publishes go on meanwhile
ROUNDS = 10  # so many times what may be in memory is published at least: without the bounds, there would be more
RESTARTS = 5
PAUSE_S = 30.0  # without any answer: publishes go on
RSS_BYTES = 500 * 1024 * 1024
pytestmark = [pytest.mark.process, pytest.mark.service, pytest.mark.soak]


@pytest.mark.parametrize("places", [OWNER, MIRROR, RECOVERER], ids=["owner", "mirror", "recoverer"])
def test_killed_at_each_place(tmp_path: Path, places: tuple[str, ...]) -> None:
    found, answered = done_under_load(tmp_path, [partial(killed_at, place) for place in places])
    assert found == []
    assert answered > 100


def test_stopped_cut_off_and_rolled_to_an_object_journal_and_back(tmp_path: Path) -> None:
    rolls = [partial(rolled_to, kind) for kind in ("mirrored", "object", "mirrored")]
    found, answered = done_under_load(tmp_path, [stopped_past_its_lease, left_with_a_mirror, *rolls])
    assert found == []
    assert answered > 100


@pytest.mark.timeout(900)
def test_rolling_restarts_fail_no_publish(tmp_path: Path) -> None:
    with cluster_processes.Cluster(tmp_path, options=("--journal", "mirrored")) as cluster:
        load, _ = rolled(cluster, 6, RESTARTS)
    print(
        f"{sum(map(len, load.took_s.values()))} publishes, the longest of {max(map(load.worst_s, load.took_s)):.2f} s"
    )
    assert not load.errors, "\n".join(timeline(load, cluster.brokers))


@pytest.mark.timeout(SLOW_S + 300)
def test_a_mirror_that_reads_slowly_costs_bounded_memory(tmp_path: Path) -> None:
    """Clients publish as fast as they are answered."""
    with Cluster(tmp_path, random.Random(1), lease_s=10, journal="mirrored") as cluster:
        for member in cluster.members:  # with less memory for mirrors
            member.process.arguments = (*member.process.arguments, "--mirror-memory-bytes", str(MIRROR_BYTES))
            again(member)
        slow, *others = cluster.members
        with httpx.Client(timeout=30, trust_env=False) as http:
            http.put(f"{slow.process.url}/v1/topics/t", json={"initial_segments": 6}).raise_for_status()
        over, answers_s = threading.Event(), [time.monotonic()]

        def publish(number: int) -> None:
            body = {"messages": [{"key": f"k{number}", "value": "x" * REQUEST_BYTES}]}
            with httpx.Client(timeout=30, trust_env=False) as http:
                while not over.is_set():
                    url = others[number % 2].process.url
                    if http.post(f"{url}/v1/topics/t/messages", json=body).status_code == 200:
                        answers_s.append(time.monotonic())

        def stumble() -> None:
            while not over.wait(RUNNING_S):
                slow.pause()
                time.sleep(PAUSED_S)
                slow.resume()

        threads = [threading.Thread(target=publish, args=(n,)) for n in range(REQUESTS)]
        threads.append(threading.Thread(target=stumble))
        for thread in threads:
            thread.start()
        held, kept, used = 0.0, 0.0, 0
        try:
            end = time.monotonic() + SLOW_S
            while time.monotonic() < end:
                time.sleep(1)
                for member in cluster.members:
                    found = metrics_of(member.process.url)
                    held = max(held, found["seaweedq_mirror_bytes"])
                    kept = max(kept, found["seaweedq_journal_unreleased_bytes"])
                    used = max(used, rss_bytes(member))
        finally:
            over.set()
            for thread in threads:
                thread.join()
        answered = len(answers_s) - 1
        answers_s.sort()
        pause_s = max(later - before for before, later in pairwise([*answers_s, time.monotonic()]))
        print(f"{answered} answered; at most {held:g} held for others, {kept:g} unreleased, {used} resident")
        print(f"the longest time without an answer was {pause_s:.1f} s")
        busiest = max(bisect(answers_s, at_s + FLUSH_S) - number for number, at_s in enumerate(answers_s))
        print(f"{busiest} answers in the busiest {FLUSH_S:g} s")
        assert answered * REQUEST_BYTES > ROUNDS * (MIRROR_BYTES + UNRELEASED_BYTES)
        assert pause_s < PAUSE_S
        assert 0 < held <= MIRROR_BYTES
        assert kept <= UNRELEASED_BYTES + 1.1 * (REQUESTS + busiest) * REQUEST_BYTES
        assert used <= RSS_BYTES


def rss_bytes(member: Member) -> int:
    """The resident memory of a broker's process."""
    assert member.process.process
    status = Path(f"/proc/{member.process.process.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))

"""A cluster that goes from one version to another and back under load, and the judgement of its history.

Each broker is restarted and killed while both versions are there. At last the cluster's level rises.
"""

import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import httpx

from tests.support.chaos.chaos import complaints, heal, judge
from tests.support.chaos.cluster import Cluster, Member
from tests.support.chaos_clients.fleet import Fleet, Lister
from tests.support.history.checker import Violation
from tests.support.history.history import Event, History
from tests.support.history.load import create

STOP_S = 20.0


@dataclass(frozen=True)
class Versions:
    """The trees of both versions, None for this one; how many brokers, publishers of each kind, and for how many
    seconds at least they are mixed."""

    before: Path | None
    after: Path | None
    brokers: int = 3
    publishers: int = 2
    seconds: float = 0
    lease_s: float = 2.0


@dataclass(frozen=True)
class Outcome:
    """What came of it: violations, the longest time in which a producer was not answered, that of the slowest start,
    messages, and the levels before and behind the rise."""

    violations: Sequence[Violation]
    longest_s: float
    slowest_start_s: float
    messages: int
    mixed_s: float
    levels: tuple[int, int]


def upgraded(folder: Path, wanted: Versions) -> Outcome:
    """Do it. `folder` gets the history, and the brokers' logs and data."""
    with (
        History(folder / "history.jsonl") as history,
        Cluster(folder, random.Random(1), wanted.brokers, wanted.lease_s, tree=wanted.before) as cluster,
    ):
        create(cluster.urls[0], segments=2 * wanted.brokers)
        lister = Lister(cluster.reader())
        fleet = Fleet(cluster.urls, history, 1, wanted.publishers)
        lister.start()
        starts: list[float] = []
        with fleet:
            mixed_s = mix(cluster, wanted, starts)
            starts += [restart(member, wanted.after) for member in cluster.members]
            levels = rise(cluster)
            heal(cluster, fleet, history)
            fleet.give_up()
        lister.wait()
        found = [*judge(cluster, history, lister, harmless=()), *fleet.strange, *complaints(cluster)]
        published = sum(event.op == "publish" and event.type == "ok" for event in history.events)
        return Outcome(found, longest_wait_s(history.events), max(starts), published, mixed_s, levels)


def mix(cluster: Cluster, wanted: Versions, starts: list[float]) -> float:
    """One broker of the later version more, until one of the earlier is left; each is killed and restarted; then back
    to none. Returns the seconds, and adds those of each start to `starts`."""
    began, changing = time.monotonic(), cluster.members[:-1]
    for member in changing:
        starts.append(restart(member, wanted.after))
        starts += map(kill, cluster.members)
        starts += [restart(other, other.process.tree) for other in cluster.members]
    while time.monotonic() - began < wanted.seconds:
        starts += map(kill, cluster.members)
    starts += [restart(member, wanted.before) for member in changing]
    return time.monotonic() - began


def restart(member: Member, tree: Path | None) -> float:
    """In order, as a rolling restart does, with that version. Returns the seconds of the start."""
    member.process.terminate(STOP_S)
    member.process.tree = tree
    return member.process.start()


def kill(member: Member) -> float:
    """SIGKILL, and start again as it was. Returns the seconds of the start."""
    member.process.kill()
    return member.process.start()


def rise(cluster: Cluster) -> tuple[int, int]:
    """The level before and behind its rise to all that the brokers read."""
    with httpx.Client(base_url=cluster.urls[0], timeout=30, trust_env=False) as http:
        before = http.get("/v1/cluster").json()
        answer = http.post("/v1/cluster/level", json={})
        assert answer.status_code == 200, answer.text
        assert answer.json()["level"] == before["level_possible"]
        return before["level"], answer.json()["level"]


def longest_wait_s(events: Sequence[Event]) -> float:
    """The longest time between two acknowledgements of one producer."""
    answered: dict[str | None, list[float]] = defaultdict(list)
    for event in events:
        if event.op == "publish" and event.type == "ok":
            answered[event.producer].append(event.t)
    return max(later - earlier for times in answered.values() for earlier, later in pairwise(times))

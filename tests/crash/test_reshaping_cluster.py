"""Three real brokers over etcd and S3, with object journals: the owner of a segment that gives way is killed, or
stopped past its lease, at each step of a split and of a merge; clients of all kinds go on over all brokers."""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import httpx
import pytest

from tests.support.chaos.chaos import complaints, heal, judge
from tests.support.chaos.cluster import Cluster, Member, waited
from tests.support.chaos_clients.fleet import Fleet, Lister
from tests.support.history.history import History
from tests.support.history.load import create
from tests.support.tiers import later, soaked

PLACES = (
    *("plan.write", "reshape.flushed", "reshape.commit", "reshape.committed"),
    *("reshape.held", "reshape.sealed", "reshape.replaced"),
)
# Each place once, killed or stopped in turn, and the rest of both in the longest tier.
TAKEN = [(place, ("kill", "stop")[number % 2]) for number, place in enumerate(PLACES)]
LEFT = [(place, ("stop", "kill")[number % 2]) for number, place in enumerate(PLACES)]
pytestmark = [pytest.mark.process, pytest.mark.service]
LEASE_S, WITHIN_S = 2.0, 40.0
SEGMENTS = "/v1/topics/t/segments"


class Stage:
    """The cluster, and the clients that go on from the first test to the last."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        self.cluster = cluster
        self.history = history
        self.members = cycle(cluster.members)
        self.lister = Lister(cluster.reader())
        self.fleet = Fleet(cluster.urls, history, 1)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("stage")
    with Cluster(folder, random.Random(0), 3, LEASE_S) as cluster, History(folder / "history.jsonl") as history:
        create(cluster.urls[0], segments=3)
        stage = Stage(cluster, history)
        stage.lister.start()
        with stage.fleet:
            yield stage
            assert_as_told(stage)


@pytest.mark.parametrize(("place", "how"), [later(*each) for each in TAKEN] + [soaked(*each) for each in LEFT])
def test_an_owner_at_each_place(stage: Stage, place: str, how: str) -> None:
    kind = "merge" if (PLACES.index(place) + (how == "stop")) % 2 else "split"
    hit(stage.cluster, next(stage.members), f"{place}:1:{how}", kind)
    assert stage.fleet.strange == []


@pytest.mark.parametrize(
    "place", [*map(later, ("reshape.flushed", "reshape.held")), *map(soaked, ("reshape.committed", "reshape.sealed"))]
)
def test_an_owner_is_told_to_stop_amid_a_change(stage: Stage, place: str) -> None:
    """SIGTERM comes when it is at the place: it drains, ends in order, and comes back."""
    cluster, member = stage.cluster, next(stage.members)
    bring_to(member, f"{place}:1:stop", "split")
    member.tell_to_stop()
    member.resume()
    assert member.process.wait_gone(WITHIN_S) == 0
    assert waited(lambda: not owns(cluster, member.id), WITHIN_S), f"nobody took over from {member.id} at {place}"
    come_back(cluster, member, place)
    assert stage.fleet.strange == []


def assert_as_told(stage: Stage) -> None:
    """The judgement behind all tests of the module."""
    heal(stage.cluster, stage.fleet, stage.history)
    stage.fleet.give_up()
    stage.lister.wait()
    found = judge(stage.cluster, stage.history, stage.lister, harmless=())
    assert [*found, *stage.fleet.strange, *complaints(stage.cluster)] == []
    assert any(e.op == "publish" and e.type == "ok" for e in stage.history.events)


def hit(cluster: Cluster, member: Member, place: str, kind: str) -> None:
    """This one comes to the place while it carries a change out; others take over; it comes back; the change ends."""
    bring_to(member, place, kind)
    before = member.id
    assert waited(lambda: not owns(cluster, before), WITHIN_S), f"nobody took over from {before} at {place}"
    come_back(cluster, member, place)


def bring_to(member: Member, place: str, kind: str) -> None:
    """Start it anew, and have it carry changes out until it dies or stops at the place."""
    member.kill()
    member.process.start(wait=False, env={"SEAWEEDQ_FAIL_AT": place})
    member.process.wait_ready()
    enough = threading.Event()
    asking = threading.Thread(target=change, args=(member, kind, enough), daemon=True)
    asking.start()
    reached = waited(lambda: member.state() in ("T", ""), WITHIN_S)
    enough.set()
    assert reached, f"{member.name} did not come to {place}"


def come_back(cluster: Cluster, member: Member, place: str) -> None:
    """It goes on, or is started anew, and what was begun comes to its end."""
    member.revive()
    assert waited(member.process.ready, WITHIN_S), f"{member.name} did not come back from {place}"
    assert waited(lambda: not cluster.locked(), WITHIN_S), f"{cluster.locked()} stay locked after {place}"


def owns(cluster: Cluster, broker: str) -> bool:
    """Whether it is named an owner."""
    return broker in {record["owner"] for record in cluster.records().values()}


def change(member: Member, kind: str, enough: threading.Event) -> None:
    """Have a segment of this one split, or two merged, which are moved to it before; asked of it, until it dies."""
    with httpx.Client(base_url=member.process.url, timeout=10, trust_env=False) as http:
        while not enough.is_set():
            try:
                opened = [s for s in http.get(SEGMENTS).json()["segments"] if s["state"] == "open"]
                _change(http, member, kind, sorted(opened, key=lambda s: s["low"]))
            except (httpx.TransportError, LookupError, ValueError):  # as it is to be; or a 503
                time.sleep(0.1)


def _change(http: httpx.Client, member: Member, kind: str, opened: Sequence[dict[str, Any]]) -> None:
    first = opened[0]
    if first["owner"] != member.id:
        http.post(f"{SEGMENTS}/{first['id']}/move", json={"to": member.id})
    elif kind == "split" or len(opened) == 1:
        http.post(f"{SEGMENTS}/{first['id']}/split", json={"parts": 2})
    else:
        http.post(f"{SEGMENTS}/{first['id']}/merge", json={"with": opened[1]["id"]})

"""Real brokers on one machine, with file journals: one is killed at each step of a split and started again; of three,
owners are stopped there past their leases, and go on. Publishers go on over all of them."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import cycle
from pathlib import Path

import httpx
import pytest

from tests.support.chaos_clients.fleet import RoamingPublisher
from tests.support.history.checker import check
from tests.support.history.final_read import flush, in_files, over_http, segments
from tests.support.history.history import History
from tests.support.history.judged import Run
from tests.support.history.load import Load, create, until
from tests.support.processes.broker_process import BrokerProcess, free_ports
from tests.support.processes.together import BROKERS, Together, gone
from tests.support.tiers import later, soaked

pytestmark = pytest.mark.process

LEASE_S, WITHIN_S = 2.0, 60.0
PLACES = (
    *("plan.write", "reshape.flushed", "reshape.commit", "reshape.committed"),
    *("reshape.held", "reshape.sealed", "reshape.replaced"),
)
KILLED_AT = [
    (place, kind) if place == "reshape.committed" else later(place, kind)
    for place, kind in zip(PLACES, cycle(["split", "merge"]), strict=False)
]
STOPPED_AT = [
    "reshape.held",
    later("reshape.sealed"),
    *map(soaked, ("reshape.flushed", "reshape.commit", "reshape.committed")),
]
SEGMENTS = "/v1/topics/t/segments"


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History(tmp_path / "history.jsonl") as history:
        yield history


def change(url: str, kind: str) -> None:
    """Have the first open segment split, or merged with the next one; whoever is asked may die of it."""
    with suppress(httpx.TransportError), httpx.Client(base_url=url, timeout=WITHIN_S, trust_env=False) as http:
        found = sorted(segments(url).items(), key=lambda each: each[1].low)
        first, second, *_ = [number for number, segment in found if segment.end is None]
        body = {"with": second} if kind == "merge" else {"parts": 3}
        http.post(f"{SEGMENTS}/{first}/{kind}", json=body)


@pytest.mark.parametrize(("place", "kind"), KILLED_AT)
def test_one_broker_is_killed_amid_a_change(
    broker_process: Callable[..., BrokerProcess], history: History, place: str, kind: str
) -> None:
    broker = broker_process("--checkpoint-s", "1", env={"SEAWEEDQ_FAIL_AT": place})
    create(broker.url, segments=3)
    with Load(broker.url, history, seed=0) as load:
        until(lambda: all(p.next > 20 for p in load.publishers), WITHIN_S)
        asking = threading.Thread(target=change, args=(broker.url, kind))
        asking.start()
        until(lambda: not broker.alive, WITHIN_S, f"the end at {place}")
        asking.join()
        listing = in_files(broker.store)
        broker.start(env={"SEAWEEDQ_FAIL_AT": ""})
        if place != "plan.write":
            until(lambda: any(one.end is not None for one in segments(broker.url).values()), WITHIN_S, "the change")
        after = {p: p.next for p in load.publishers}
        until(lambda: all(p.next > after[p] + 20 for p in load.publishers), WITHIN_S, "publishes after the change")
        load.settle()
    flush(broker.url)
    shown = segments(broker.url)
    assert check(Run(history.events, over_http(broker.url), in_files(broker.store), [listing], segments=shown)) == []


@pytest.mark.long
@pytest.mark.parametrize("place", STOPPED_AT)
def test_owners_of_three_brokers_stop_amid_a_change_and_go_on(
    broker_process: Callable[..., BrokerProcess], history: History, place: str
) -> None:
    """Each that comes to the place stands still there for longer than its lease."""
    process = broker_process(
        *("--brokers", str(BROKERS), "--lease-s", str(LEASE_S)),
        port=free_ports(BROKERS),
        env={"SEAWEEDQ_FAIL_AT": f"{place}:1:stop"},
    )
    together = Together(process)
    together.wait_ready()
    create(together.urls[0], segments=4)
    publishers = [
        RoamingPublisher(f"{kind}-{n}", together.urls, history, n, idempotent=kind == "sure")
        for n, kind in enumerate(("sure", "plain", "sure", "plain"))
    ]
    pids = [together.pid(n) for n in range(BROKERS)]
    woken = Woken(together)
    try:
        for client in (*publishers, woken):
            client.start()
        for kind in ("split", "merge"):
            change(together.urls[0], kind)
        until(lambda: woken.seen, WITHIN_S, f"somebody who stops at {place}")
        until(lambda: not woken.standing and together_ready(together), WITHIN_S, "the end of all that stand still")
        until(lambda: sum(one.end is not None for one in segments(together.urls[0]).values()) > 0, WITHIN_S)
        for publisher in publishers:
            publisher.wait(WITHIN_S)
        assert [v for p in publishers for v in p.strange] == []
        flush(together.urls[0])
        read, *others = (over_http(url) for url in together.urls)
        files, shown = in_files(process.store), segments(together.urls[0])
        at_others = dict(zip(together.urls[1:], others, strict=True))
        assert check(Run(history.events, read, files, others=at_others, segments=shown)) == []
    finally:
        woken.stopped.set()
        woken.join()
        for publisher in publishers:
            publisher.given_up = True
            publisher.stopped.set()
        pids += [together.pid(n) for n in range(BROKERS)]
        process.kill()
        until(lambda: all(map(gone, pids)))
        together.http.close()


def together_ready(together: Together) -> bool:
    """Whether all brokers take work."""
    return all(map(together.ready, together.urls))


class Woken(threading.Thread):
    """Lets each process that stands still go on when its lease is over."""

    def __init__(self, together: Together) -> None:
        super().__init__(daemon=True)
        self.stopped = threading.Event()
        self.seen = 0
        self.standing: dict[int, float] = {}
        self._together = together

    def run(self) -> None:
        while not self.stopped.wait(0.05):
            for pid in {self._together.pid(n) for n in range(BROKERS)}:
                if not _stands(pid):
                    continue
                since_s = self.standing.setdefault(pid, time.monotonic())
                if time.monotonic() - since_s > LEASE_S + 1.5:
                    self.seen += 1
                    os.kill(pid, signal.SIGCONT)
                    del self.standing[pid]


def _stands(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "T"
    except FileNotFoundError:
        return False

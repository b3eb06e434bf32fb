"""Brokers are killed amid a change, and coordination comes back from before it, or with nothing.

It is more of `test_lost_coordination`.
"""

import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.chaos.cluster import waited
from tests.support.http.uploading_files import Importer, check_all_once, numbered, parquet
from tests.support.processes.lost_cluster import LostCluster

pytestmark = [pytest.mark.process, pytest.mark.service, pytest.mark.soak]
SEED = int(os.environ.get("SEED") or random.SystemRandom().randrange(10**6))
ROUNDS = 20
START_S = 30.0
REACHED_S = 8.0  # a take-over waits for a lease
ROWS = 5_000
Change = Callable[[LostCluster], None]
SUB = "t/subscriptions/s"


def asks(cluster: LostCluster, method: str, path: str, **more: Any) -> None:
    """Every broker is asked; any of them may die of it."""
    for url in cluster.urls:
        with suppress(httpx.TransportError):
            cluster.http.request(method, f"{url}/v1/topics/{path}", timeout=3, **more)


def split(cluster: LostCluster) -> None:
    asks(cluster, "POST", "t/segments/0/split", json={})


def merge(cluster: LostCluster) -> None:
    asks(cluster, "POST", "t/segments/0/merge", json={"with": 1})


def move(cluster: LostCluster) -> None:
    for n in range(3):
        asks(cluster, "POST", "t/segments/0/move", json={"to": f"b{n}"})


def create(cluster: LostCluster) -> None:
    asks(cluster, "PUT", "u", json={"initial_segments": 2})


def delete(cluster: LostCluster) -> None:
    asks(cluster, "DELETE", "u")


def take_over(cluster: LostCluster) -> None:
    """The others die; the last one is stopped amid their recovery."""
    leader = cluster.leader()
    cluster.killed = {0, 1, 2} - {leader}
    cluster.kill(*cluster.killed)


def recover(cluster: LostCluster) -> None:
    """All die, and are killed once more when they begin again."""
    cluster.kill()
    cluster.start(wait=False, env=cluster.env)


def stop(cluster: LostCluster) -> None:
    for process in cluster.processes:
        assert process.process
        process.process.terminate()


def bury(cluster: LostCluster) -> None:
    for url in cluster.urls:
        with suppress(httpx.TransportError):
            pulled = cluster.http.post(f"{url}/v1/topics/{SUB}/pull", json={"consumer": "c"}, timeout=3)
            if pulled.status_code == 200 and (found := pulled.json()["messages"]):
                asks(cluster, "POST", f"{SUB}/nack", json={"ids": [one["id"] for one in found], "reject": True})


def import_rows(cluster: LostCluster) -> None:
    asks(cluster, "POST", "i/imports", json={"upload_id": cluster.known["upload"], "format": "parquet"})


AMID: list[tuple[str, Change]] = [
    *[(place, change) for change in (split, merge) for place in ("reshape.commit", "reshape.committed")],
    *[(place, change) for change in (split, merge) for place in ("reshape.sealed", "reshape.sealed:2")],
    *[(place, split) for place in ("plan.write", "reshape.flushed", "reshape.replaced")],
    *[(place, create) for place in ("create.allocated", "create.segments", "create.record", "create.made")],
    *[(place, delete) for place in ("delete.files", "delete.records", "delete.record", "delete.file")],
    *[(place, move) for place in ("move.flushed", "move.given", "entry.append", "entry.appended", "commit.durable")],
    *[(place, take_over) for place in ("leader.look", "leader.recover", "takeover.recovered", "leader.give")],
    *[(place, recover) for place in ("fence.put", "recover.append", "recover.acks", "takeover.remove", "done.stored")],
    *[(place, stop) for place in ("stop.retire", "stop.remove", "done.put", "done.stored", "stop.removed")],
    *[(place, bury) for place in ("letter.record", "letter.publish", "letter.published", "letter.acked")],
    *[(place, import_rows) for place in ("import.claimed", "import.batch", "import.progress", "import.done")],
]


@pytest.mark.parametrize("lost", ["restored", "emptied"])
@pytest.mark.parametrize(("place", "change"), AMID, ids=lambda one: one if isinstance(one, str) else one.__name__)
def test_killed_amid(lost_cluster: Callable[..., LostCluster], place: str, change: Change, lost: str) -> None:
    """Who comes to the place dies there, and all others do then; what is saved is of before they had begun."""
    cluster = lost_cluster()
    cluster.publish("t", 40)
    cluster.do("PUT", SUB, json={"start": "earliest", "mode": "shared", "dead_letter_topic": "dead"})
    if change is delete:
        cluster.do("PUT", "u", json={"initial_segments": 2})
    if change is import_rows:
        importer = Importer(cluster.urls[0], "i")
        importer.make(initial_segments=2)
        cluster.known["upload"] = importer.upload(parquet(numbered(ROWS)))
        importer.close()
    saved = cluster.lost.save()
    cluster.env = {"SEAWEEDQ_FAIL_AT": f"{place if ':' in place else f'{place}:1'}:kill"}
    cluster.stop()
    cluster.start(wait=False, env=cluster.env if change is not recover else {})
    waited(lambda: all(map(cluster.is_ready, cluster.urls)) or not all_live(cluster), START_S)
    if all_live(cluster):  # else it was amid the start
        cluster.publish("t", 10)
        change(cluster)
        waited(lambda: not all_live(cluster), REACHED_S)
    cluster.kill()
    cluster.lose(lost, saved)
    cluster.come_back()
    cluster.publish("t", 40)
    assert cluster.complaints("t") == []
    if change is bury:
        is_buried(cluster)
    if change is import_rows:
        is_imported(cluster)


def all_live(cluster: LostCluster) -> bool:
    """Whether none has died, but those that a change has killed."""
    return all(process.alive for n, process in enumerate(cluster.processes) if n not in cluster.killed)


def is_buried(cluster: LostCluster) -> None:
    """Each letter is there once."""
    if cluster.ask("GET", "dead").status_code == 404:
        return  # nothing had died
    importer = Importer(cluster.urls[0], "dead")
    dead = Counter(letter["headers"]["dead-letter-id"] for letter in importer.messages())
    importer.close()
    assert set(dead.values()) <= {1}, dead


def is_imported(cluster: LostCluster) -> None:
    """The import is asked for again: each row is there once."""
    importer = Importer(cluster.urls[0], "i")
    assert importer.ask(cluster.known["upload"]).json()["state"] == "done"
    check_all_once(importer.column(), ROWS)
    importer.close()


@pytest.mark.parametrize("journal", ["object", "file"])
def test_again_and_again(lost_cluster: Callable[..., LostCluster], journal: str) -> None:
    """Publishes and changes of segments, kills, and an etcd from some seconds ago; half of the time below live brokers,
    and once in four times with nothing."""
    rng = random.Random(f"{SEED} {journal}")
    print(f"SEED={SEED}")
    cluster = lost_cluster("--journal", journal)
    saved = [cluster.lost.save()]
    for _ in range(ROUNDS):
        stopped = threading.Event()
        saver = threading.Thread(target=_save_often, args=(cluster, saved, stopped))
        saver.start()
        try:
            for _ in range(rng.randrange(1, 6)):
                cluster.publish("t", rng.randrange(10, 60), rng.randrange(3))
                _change(cluster, rng)
        finally:
            stopped.set()
            saver.join()
        if lives := rng.random() < 0.5:
            cluster.kill(*rng.sample(range(3), rng.randrange(3)))
        else:
            cluster.kill()
        if rng.random() < 0.25:
            cluster.lost.empty()
        else:
            cluster.lost.restore(rng.choice(saved[-8:]))
        if lives:
            waited(lambda: not all(map(cluster.is_ready, cluster.urls)), 15)
        cluster.come_back()
    assert cluster.complaints("t", within_s=60) == []


def _save_often(cluster: LostCluster, saved: list[Path], stopped: threading.Event) -> None:
    while not stopped.wait(0.7):
        saved.append(cluster.lost.save())


def _change(cluster: LostCluster, rng: random.Random) -> None:
    """A split, a merge with a neighbour or a move, which may be refused."""
    segments = cluster.segments("t").values()
    opened = sorted((one["low"], one["id"]) for one in segments if one["state"] == "open")
    at = rng.randrange(len(opened))
    kind = rng.choice(["split", "merge", "move", "nothing"])
    if kind == "split" and len(opened) < 6:
        cluster.ask("POST", f"t/segments/{opened[at][1]}/split", json={})
    elif kind == "merge" and at + 1 < len(opened) > 2:
        cluster.ask("POST", f"t/segments/{opened[at][1]}/merge", json={"with": opened[at + 1][1]})
    elif kind == "move":
        cluster.ask("POST", f"t/segments/{opened[at][1]}/move", json={"to": f"b{rng.randrange(3)}"})

"""Coordination goes back, or is lost: each change that it may forget, with both journals, over etcd and on one machine,
below brokers that were killed, that stopped in order, or that live on.

It is more of `test_lost_coordination`.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from tests.support.chaos.cluster import waited
from tests.support.http.uploading_files import Importer, check_all_once, numbered, parquet
from tests.support.processes.lost_cluster import LostCluster, copied_store, rebuild_as_the_page_has_it
from tests.support.processes.s3_service import S3Service

pytestmark = [pytest.mark.process, pytest.mark.service, pytest.mark.soak]
Make = Callable[..., LostCluster]
SUB, ROWS, LETTERS = "t/subscriptions/s", 5_000, 10
PAYLOAD = b"a film"


class Setting(NamedTuple):
    """Which journal, how the brokers end, and what becomes of coordination: `lost` is the way of LostCluster.lose."""

    machine: bool
    journal: str
    end: str
    lost: str

    def __str__(self) -> str:
        return "-".join(("machine" if self.machine else "etcd", *self[1:]))


SETTINGS = [
    Setting(False, "object", "killed", "restored"),
    Setting(False, "object", "stopped", "emptied"),
    Setting(False, "object", "alive", "restored"),
    Setting(False, "file", "killed", "restored"),
    Setting(False, "file", "stopped", "restored"),
    Setting(False, "file", "killed", "emptied"),
    Setting(False, "file", "alive", "emptied"),
    Setting(True, "file", "killed", "restored"),
    Setting(True, "object", "stopped", "restored"),
    Setting(True, "file", "stopped", "emptied"),
    Setting(True, "object", "killed", "emptied"),
]


def publish(cluster: LostCluster) -> None:
    cluster.publish("t", 40)


def split(cluster: LostCluster) -> None:
    found = cluster.do("POST", "t/segments/0/split", json={})
    assert [one["id"] for one in found["successors"]] == [2, 3]
    publish(cluster)


def merge(cluster: LostCluster) -> None:
    cluster.do("POST", "t/segments/0/merge", json={"with": 1})
    publish(cluster)


def move(cluster: LostCluster) -> None:
    for segment, one in cluster.segments("t").items():
        to = next(id for id in cluster.brokers() if id != one["owner"])
        cluster.do("POST", f"t/segments/{segment}/move", json={"to": to})
        assert waited(lambda segment=segment, to=to: cluster.segments("t")[segment]["owner"] == to, 10)  # type: ignore[misc]
    publish(cluster)


def begin_again(cluster: LostCluster) -> None:
    cluster.stop()
    cluster.start()
    publish(cluster)


def take_over(cluster: LostCluster) -> None:
    if len(cluster.processes) > 1:
        owner = cluster.owner("t", 0)
        cluster.kill(owner)
        assert waited(lambda: cluster.owner("t", 0) != owner, 15)
    publish(cluster)


def create(cluster: LostCluster) -> None:
    cluster.do("PUT", "u", json={"initial_segments": 2})
    cluster.publish("u", 40)
    cluster.do("POST", "u/flush")


def is_created(cluster: LostCluster) -> None:
    cluster.publish("u", 40)  # creates it if it is unknown
    assert cluster.complaints("u") == []


def read_all(cluster: LostCluster) -> None:
    publish(cluster)
    assert cluster.complaints("t", "s") == []


def delete(cluster: LostCluster) -> None:
    cluster.do("DELETE", "t")
    cluster.ledger.told.clear()


def is_deleted(cluster: LostCluster) -> None:
    assert waited(lambda: cluster.ask("GET", "t").status_code == 404, 10)  # 409 while its deletion goes on
    cluster.do("PUT", "t", json={"initial_segments": 2})
    publish(cluster)
    assert cluster.complaints("t", "s") == []


def seek(cluster: LostCluster) -> None:
    cluster.do("POST", f"{SUB}/seek", json={"to": "earliest"})


def is_sought(cluster: LostCluster) -> None:
    assert cluster.complaints("t", "s") == []  # all comes again


def subscribe(cluster: LostCluster) -> None:
    cluster.do("PUT", SUB, json={"start": "latest"})
    cluster.ledger.told.clear()
    publish(cluster)


def is_subscribed(cluster: LostCluster) -> None:
    assert cluster.do("GET", SUB)["mode"] == "ordered"
    assert cluster.complaints("t", "s") == []


def unsubscribe(cluster: LostCluster) -> None:
    cluster.do("DELETE", SUB)


def is_unsubscribed(cluster: LostCluster) -> None:
    assert cluster.ask("GET", SUB).status_code == 404
    assert cluster.complaints("t", "s") == []  # from the start again


def begin_upload(cluster: LostCluster) -> None:
    publish(cluster)
    upload = cluster.do("POST", "t/uploads", json={"size": len(PAYLOAD)})
    put = cluster.http.put(upload["url"], content=PAYLOAD, headers=upload["headers"])
    assert put.status_code in (200, 201), put.text
    cluster.known["upload"] = upload["upload_id"]


def refer(cluster: LostCluster) -> None:
    message = {"key": "k", "reference": {"upload_id": cluster.known["upload"]}}
    (cluster.known["id"],) = cluster.do("POST", "t/messages", json={"messages": [message]})["ids"]


def is_referred(cluster: LostCluster) -> None:
    segment, offset = cluster.known["id"].split("-")
    payload = cluster.ask("GET", f"t/segments/{segment}/messages/{offset}/payload", follow_redirects=True)
    assert payload.content == PAYLOAD
    shown = cluster.ask("GET", f"t/uploads/{cluster.known['upload']}")
    assert shown.status_code == 404 or shown.json()["state"] == "published", shown.text


def upload_rows(cluster: LostCluster) -> None:
    importer = Importer(cluster.urls[0], "i")
    importer.make(initial_segments=2)
    cluster.known["upload"] = importer.upload(parquet(numbered(ROWS)))
    importer.close()


def import_rows(cluster: LostCluster) -> None:
    importer = Importer(cluster.urls[0], "i")
    assert importer.ask(cluster.known["upload"]).json()["state"] == "done"
    importer.close()


def is_imported(cluster: LostCluster) -> None:
    importer = Importer(cluster.urls[0], "i")
    again = importer.ask(cluster.known["upload"])
    assert again.status_code in (200, 404, 409), again.text
    check_all_once(importer.column(), ROWS)
    importer.close()


def subscribe_mortals(cluster: LostCluster) -> None:
    cluster.do("PUT", SUB, json={"start": "earliest", "mode": "shared", "dead_letter_topic": "dead"})
    cluster.publish("t", LETTERS)


def bury(cluster: LostCluster) -> None:
    """All of them, at the second time those whose deaths were forgotten."""
    end = time.monotonic() + 20
    while cluster.do("GET", SUB)["lag_total"]["messages"]:
        assert time.monotonic() < end
        pulled = cluster.do("POST", f"{SUB}/pull", json={"consumer": "c", "wait_s": 1})["messages"]
        if pulled:
            rejected = {"ids": [one["id"] for one in pulled], "reject": True, "consumer": "c"}
            cluster.do("POST", f"{SUB}/nack", json=rejected)


def is_buried(cluster: LostCluster) -> None:
    bury(cluster)
    importer = Importer(cluster.urls[0], "dead")
    dead = Counter(letter["headers"]["dead-letter-id"] for letter in importer.messages())
    importer.close()
    assert dead == dict.fromkeys((id for topic, _, _, id in cluster.ledger.told if topic == "t"), 1)


def nothing(cluster: LostCluster) -> None:
    pass


@dataclass(frozen=True)
class Line:
    """What happens `before` the state is saved, what `since`, and what must be so at the end, before all that was
    acknowledged in `t` is read."""

    since: Callable[[LostCluster], None]
    before: Callable[[LostCluster], None] = publish
    judge: Callable[[LostCluster], None] = nothing


LINES = [
    *map(Line, (publish, split, merge, move, begin_again, take_over)),
    Line(create, judge=is_created),
    Line(delete, read_all, is_deleted),
    Line(seek, read_all, is_sought),
    Line(subscribe, publish, is_subscribed),
    Line(unsubscribe, read_all, is_unsubscribed),
    Line(refer, begin_upload, is_referred),
    Line(import_rows, upload_rows, is_imported),
    Line(bury, subscribe_mortals, is_buried),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("line", LINES, ids=lambda line: line.since.__name__)
def test_coordination_forgets(lost_cluster: Make, line: Line, setting: Setting) -> None:
    cluster = lost_cluster("--journal", setting.journal, machine=setting.machine)
    line.before(cluster)
    saved = cluster.lost.save()
    line.since(cluster)
    cluster.end(setting.end)
    cluster.lose(setting.lost, saved)
    cluster.come_back()
    line.judge(cluster)
    publish(cluster)
    if line.since is not refer:  # its message is not in the ledger
        assert cluster.complaints("t") == []


def test_ids_given_since_are_not_given_again(lost_cluster: Make) -> None:
    """Segment 0 was split since; afterwards segment 1 is: its successors are not those of 0."""
    cluster = lost_cluster()
    publish(cluster)
    saved = cluster.lost.save()
    split(cluster)
    cluster.stop()
    cluster.lost.restore(saved)
    cluster.come_back()
    answer = cluster.ask("POST", "t/segments/1/split", json={})
    assert answer.status_code in (200, 202, 409), answer.text
    publish(cluster)
    cluster.kill()
    cluster.come_back()
    assert cluster.complaints("t") == []


def test_the_bucket_of_stopped_brokers_is_copied(lost_cluster: Make, moto: S3Service) -> None:
    cluster = lost_cluster()
    publish(cluster)
    split(cluster)
    cluster.kill()
    other = lost_cluster(store=copied_store(moto, cluster.store))
    other.ledger = cluster.ledger
    other.come_back(rebuild_as_the_page_has_it)
    publish(other)
    assert other.complaints("t") == []

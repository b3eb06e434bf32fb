"""A broker is killed between two steps of a flush, a checkpoint or a recovery: nothing is lost, nothing is doubled."""

import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.support.history.checker import Run, check
from tests.support.history.final_read import flush, in_files, over_http
from tests.support.history.history import Event, History
from tests.support.history.load import TOPIC, Load, Publisher, create, until
from tests.support.tiers import later, soaked

pytestmark = pytest.mark.process

SERVING = [  # the first entry that is appended is the topic's empty one
    later("commit.append:5"),
    "commit.durable:5",
    soaked("entry.encode:2"),
    "entry.append:2",
    later("entry.append:4"),
    "entry.appended:2",
    soaked("entry.appended:4"),
    "flush.release:1",
    later("flush.release:3"),
    "journal.release:3",
    soaked("checkpoint.write:1"),
    "checkpoint.written:1",
    soaked("checkpoint.written:2"),
]
RECOVERING = [  # the place, and how many recoveries are killed there, one after the other
    ("recover.append", 1),
    soaked("recover.append:2", 1),
    later("entry.append", 1),
    ("entry.appended", 1),
    ("takeover.recovered", 2),
    ("recover.acks", 2),
    later("recover.acks:2", 1),
    later("leader.give", 2),
    soaked("takeover.remove", 1),
    later("done.put", 1),
    ("done.stored", 1),
    ("takeover.removed", 1),
]
NO_CHECKPOINT = ("--checkpoint-s", "600")


@pytest.mark.parametrize("place", SERVING)
def test_killed_while_it_serves(broker_process, history, place):
    broker = broker_process("--checkpoint-s", "1", env={"SEAWEEDQ_FAIL_AT": place})
    create(broker.url)
    with Load(broker.url, history, seed=0) as load:
        until(lambda: not broker.alive, what=f"the end at {place}")
        listing = in_files(broker.store)
        broker.start(env={"SEAWEEDQ_FAIL_AT": ""})
        load.settle()
    assert_sound(broker, history, load, [listing])


@dataclass(frozen=True)
class Wreck:
    """What a killed broker has left: rows in files, rows that are only in its journal, acks without a checkpoint."""

    data_dir: Path
    events: list[Event]
    load: Load


@pytest.fixture(scope="module")
def wreck(broker_processes, tmp_path_factory):
    broker = broker_processes(*NO_CHECKPOINT)
    create(broker.url)
    with History(tmp_path_factory.mktemp("wreck") / "history.jsonl") as history, Load(broker.url, history, 0) as load:
        until(lambda: is_rich(broker, history), what="an ack behind a flush")
        broker.kill()
        load.give_up()
    return Wreck(broker.data_dir, history.events, load)


@pytest.mark.parametrize(("place", "kills"), RECOVERING)
def test_killed_while_it_recovers(wreck, broker_process, tmp_path, place, kills):
    data_dir = shutil.copytree(wreck.data_dir, tmp_path / "copy")
    broker = broker_process(*NO_CHECKPOINT, data_dir=data_dir, start=False)
    listings = [in_files(broker.store)]
    for _ in range(kills):
        broker.start(wait=False, env={"SEAWEEDQ_FAIL_AT": place})
        assert broker.wait_gone(30) == -signal.SIGKILL
        listings.append(in_files(broker.store))
    broker.start()
    with History(tmp_path / "history.jsonl", wreck.events) as history:
        with Load(broker.url, history, 1, wreck.load) as load:
            load.settle()
        assert_sound(broker, history, load, listings)


@pytest.mark.long
@pytest.mark.parametrize("place", ["takeover.revoke", "recover.append", "leader.give"])
def test_a_start_does_not_wait_for_the_leases_of_those_killed_before(broker_process, history, place):
    broker = broker_process("--lease-s", "60")
    create(broker.url)
    Publisher("early", broker.url, history, 0, idempotent=False).steps(3)
    broker.kill()
    broker.start(wait=False, env={"SEAWEEDQ_FAIL_AT": place})
    assert broker.wait_gone() == -signal.SIGKILL
    assert broker.start() < 30  # it waits for no lease
    with Load(broker.url, history, 0) as load:
        until(lambda: all_have_published(history, load))
        load.settle()
    assert_sound(broker, history, load, [])


def is_rich(broker, history):
    acked = sum(event.op == "ack" and event.type == "ok" for event in history.events)
    stored = sum(event.op == "publish" and event.type == "ok" for event in history.events)
    return acked > 50 and 0 < len(in_files(broker.store)) < stored and all(has_tails(broker))


def has_tails(broker):
    """For each segment, whether it has rows that are in no file: a recovery appends those of all of them."""
    answer = httpx.get(f"{broker.url}/v1/topics/{TOPIC}/segments", timeout=30, trust_env=False)
    return [segment["flushed_offset"] < segment["end_offset"] for segment in answer.json()["segments"]]


def assert_sound(broker, history, load, listings):
    flush(broker.url)
    assert check(Run(history.events, over_http(broker.url), in_files(broker.store), listings)) == []
    assert all_have_published(history, load)


def all_have_published(history, load):
    return {p.name for p in load.publishers} <= {e.producer for e in history.events if e.type == "ok"}

"""SIGTERM under load: in time, without an error that a retry does not mend, and nothing is left to recover."""

import asyncio
import shutil
import signal
import socket
from contextlib import contextmanager

import httpx
import pytest

from seaweedq.clock import SystemClock
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.sqlite import EmbeddedCoordination
from tests.support.history.checker import Run, check
from tests.support.history.final_read import flush, in_files, over_http
from tests.support.history.load import SUBSCRIPTION, TOPIC, Load, Publisher, create, until
from tests.support.tiers import later

pytestmark = pytest.mark.process

STOP_S = 25
MESSAGES = f"/v1/topics/{TOPIC}/messages"
PULL = f"/v1/topics/{TOPIC}/subscriptions/{SUBSCRIPTION}/pull"
PATIENT = {"max_age_s": 86_400, "max_bytes": 64 * 1024 * 1024}  # only the stop itself flushes


def test_a_stop_under_load_loses_nothing_and_leaves_no_journal(broker_process, history):
    broker = broker_process("--checkpoint-s", "600", "--shutdown-s", "60")
    create(broker.url, flush=PATIENT)
    with Load(broker.url, history, seed=0) as load:
        for _ in range(2):
            acks = count(history, "ack")
            until(lambda before=acks: count(history, "ack") > before + 50, what="acks")
            assert broker.terminate() < STOP_S
            assert not list((broker.data_dir / "journals").glob("*/*.journal"))
            assert len(list((broker.data_dir / "journals").glob("*/done"))) == 1
            stored = {e.hash for e in history.events if e.op == "publish" and e.type == "ok"}
            assert stored <= {row.hash for row in in_files(broker.store)}
            broker.start()
        load.settle()
    flush(broker.url)
    assert check(Run(history.events, over_http(broker.url), in_files(broker.store))) == []
    assert "recovered the journal" not in broker.log
    assert "Traceback" not in broker.log


def count(history, op):
    return sum(event.op == op and event.type == "ok" for event in history.events)


@pytest.mark.parametrize("place", [later("stop.remove"), later("done.put"), "done.stored"])
def test_a_stop_that_is_killed_amid_the_removal_of_its_journal_is_sound(broker_process, history, place):
    """Also where coordination is of an earlier day, in which the journal's key says that it is needed."""
    broker = broker_process("--checkpoint-s", "600", env={"SEAWEEDQ_FAIL_AT": place})
    create(broker.url, flush=PATIENT)
    with Load(broker.url, history, seed=0) as load:
        until(lambda: count(history, "ack") > 50, what="acks")
        broker.process.terminate()
        assert broker.wait_gone(STOP_S) == -signal.SIGKILL
        (journal,) = (broker.data_dir / "journals").iterdir()
        assert (journal / "done").exists() == (place == "done.stored")
        if place == "done.stored":
            asyncio.run(forget_that_it_was_recovered(broker.data_dir, journal.name))
            assert list(journal.glob("*.journal"))
        broker.start(env={"SEAWEEDQ_FAIL_AT": ""})
        assert not list(journal.glob("*.journal"))
        load.settle()
    flush(broker.url)
    assert check(Run(history.events, over_http(broker.url), in_files(broker.store))) == []


async def forget_that_it_was_recovered(data_dir, broker):
    coordination = EmbeddedCoordination(data_dir / "coordination.db", SystemClock())
    try:
        there = await coordination.get(keys.JOURNALS.key(broker))
        held = keys.JOURNALS.read(there)
        assert held.record.recovered
        put = Put(there.key, keys.JOURNALS.encode(held.replace(recovered=False)))
        assert await coordination.commit([], [put])
    finally:
        await coordination.close()


@pytest.mark.parametrize("signals", [1, 2])
def test_a_stop_sends_long_polls_home_and_waits_for_no_slow_body(broker_process, signals):
    broker = broker_process("--shutdown-s", "60")
    create(broker.url, segments=1)
    with asked(broker, PULL, b'{"wait_s": 30}') as polling, asked(broker, MESSAGES, b"[" * 500, missing=1):
        for _ in range(signals - 1):
            broker.process.terminate()
        assert broker.terminate() < STOP_S
        answer = polling.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 503 ")  # an empty answer would say that nothing came for all of the wait
    assert b"/problems/not-ready" in answer


@pytest.mark.long
def test_a_stop_without_a_store_ends_in_time_and_the_rest_is_recovered(broker_process, history):
    broker = broker_process("--shutdown-s", "8")
    create(broker.url, flush=PATIENT)
    Publisher("sure", broker.url, history, 0, idempotent=True).steps(5)
    temporary = broker.store / "_tmp"
    shutil.rmtree(temporary)
    temporary.touch()  # a file in the place of the folder: nothing can be written
    with asked(broker, MESSAGES, b"[", missing=1):  # whoever is slow takes from the same 8 s
        assert broker.terminate() < 14  # 8 s each would be 16
    temporary.unlink()
    broker.start()
    assert "recovered the journal" in broker.log
    flush(broker.url)
    assert check(Run(history.events, over_http(broker.url), in_files(broker.store))) == []


@contextmanager
def asked(broker, path, body, missing=0):
    """A request that the broker has begun to read, and that lacks the last bytes of its body."""
    with socket.create_connection(("127.0.0.1", broker.port)) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body) + missing}\r\n\r\n".encode() + body)
        for _ in range(3):  # answered behind it
            httpx.get(f"{broker.url}/healthz", timeout=30, trust_env=False).raise_for_status()
        yield connection

"""Clients after a fork: each process has its own connections, and no answer is lost or crosses over."""

import os
import sys
from collections.abc import Callable

import pytest

from seaweedq.errors import ClientError
from tests.support import privates

pytestmark = [pytest.mark.process, pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")]


def _in_fork(work: Callable[[], str]) -> str:
    """Returns what `work` says in a forked process, or the error that it raises."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = ""
        try:
            said = work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, said.encode())
            sys.stdout.flush()
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def test_a_fork_talks_over_connections_of_its_own(real_client):
    for name in ("fork-a", "fork-b"):
        real_client.create_topic(name)
    transport = privates.transport(real_client)
    inherited = privates.http(transport)
    said = _in_fork(lambda: f"{real_client.topic('fork-a')['name']} {privates.http(transport) is inherited}")
    assert said == "fork-a False"
    assert real_client.topic("fork-b")["name"] == "fork-b"
    assert privates.http(transport) is inherited


def test_a_producer_refuses_to_work_in_a_fork_and_its_parent_goes_on(real_client):
    real_client.create_topic("fork-producer")
    with real_client.producer("fork-producer", linger_ms=10_000) as producer:
        kept = producer.send("parent")
        for use in (lambda: producer.send("child"), producer.flush):
            assert _in_fork(lambda use=use: str(use())).startswith("ClientError: the producer of topic fork-producer")
        assert _in_fork(lambda: str(producer.close())) == "None"
        producer.flush()
        assert kept.result() == "0-0"
    with pytest.raises(ClientError, match="is closed"):
        producer.send("late")
    assert real_client.topic("fork-producer")["messages"] == 1


def test_a_fork_acks_what_its_parent_pulled(real_client):
    real_client.create_topic("fork-acks")
    real_client.publish("fork-acks", [{"value": n} for n in range(3)])
    messages = real_client.subscribe("fork-acks", "s", start="earliest", idle_timeout_s=1)
    first, second, third = (next(messages) for _ in range(3))
    first.ack()

    def work() -> str:
        second.ack()
        real_client.close()
        return "acked"

    assert _in_fork(work) == "acked"
    third.ack()
    messages.close()
    assert [segment["messages"] for segment in real_client.subscription("fork-acks", "s")["lag"]] == [0]

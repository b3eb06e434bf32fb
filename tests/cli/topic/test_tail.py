"""`seaweedq topic tail`: the newest messages, of a key, over a split, and what comes, over a broker's restart."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from seaweedq import Client
from seaweedq.cli.topic import tail
from seaweedq.cli.topic.tail import parse_batches, split_lines
from seaweedq.errors import BelowRetention
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.command import seaweedq


class FetchedPage(NamedTuple):
    """A page of a segment."""

    messages: list[Any]
    next_offset: int


def lines(broker: BrokerProcess, *arguments: str) -> list[int]:
    done = seaweedq("topic", "tail", *arguments, "--url", broker.url)
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["value"] for line in done.stdout.splitlines()]


def code_without_reader(broker: BrokerProcess, *arguments: str) -> tuple[int, str]:
    """Returns the exit code and the complaints of a `tail` whose reader has closed the pipe."""
    command = [sys.executable, "-m", "seaweedq", "topic", "tail", *arguments, "--url", broker.url]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    finally:
        os.close(writer)
    return done.returncode, done.stderr


def publish(client: Client, topic: str, numbers: Sequence[int]) -> None:
    for number in numbers:
        client.publish(topic, {"value": number, "key": f"k{number % 3}"})


@pytest.mark.process
def test_the_newest_come_last_also_over_a_split(real_broker: BrokerProcess) -> None:
    with Client(real_broker.url) as client:
        client.create_topic("tailed")
        publish(client, "tailed", range(12))
        assert lines(real_broker, "tailed") == list(range(2, 12))
        done = seaweedq("topic", "split", "tailed", "0", "--url", real_broker.url)
        assert done.returncode == 0, done.stderr
        publish(client, "tailed", range(12, 15))
    assert lines(real_broker, "tailed", "-n", "5") == list(range(10, 15))
    assert lines(real_broker, "tailed", "-n", "3", "--key", "k1") == [7, 10, 13]
    assert lines(real_broker, "tailed", "-n", "0") == []
    assert code_without_reader(real_broker, "tailed") == (0, "")


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "PAGE", 2)


@pytest.mark.process
@pytest.mark.usefixtures("small_pages")
def test_a_key_is_searched_backwards_up_to_the_start(real_broker: BrokerProcess) -> None:
    with Client(real_broker.url) as client:
        client.create_topic("searched")
        publish(client, "searched", range(9))
        (segment,) = client.segments("searched")
        found = tail.read_last(client, "searched", segment, 2, "k0")
        assert [message.value for message in found] == [3, 6]
        assert tail.read_last(client, "searched", segment, 9, "none") == []


def test_what_retention_takes_meanwhile_is_passed_over() -> None:
    """`tail` ended with 410 where files went between the segment map and a page, or while no broker answered."""

    def gone(segment: int, start: int) -> BelowRetention:
        return BelowRetention("retention has removed it", segment=segment, offset=0, start_offset=start)

    class Beside:
        def fetch(self, topic: str, segment: int, low: int, limit: int) -> FetchedPage:
            if low < 4:
                raise gone(segment, 4)
            return FetchedPage([SimpleNamespace(value=low, key=None)], low + 1)

    segment = {"id": 0, "start_offset": 0, "end_offset": 6}
    found = tail.read_last(Beside(), "t", segment, 10, None)  # type: ignore[arg-type]
    assert [message.value for message in found] == [4, 5]
    assert tail.raise_positions("0-17,1-5,11-5", gone(1, 40)) == "0-17,1-40,11-5"
    assert tail.raise_positions("3:0-17,1-5", gone(0, 18)) == "3:0-18,1-5"


@pytest.mark.process
def test_what_comes_is_printed_once_over_a_restart(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process()
    with Client(broker.url) as client:
        client.create_topic("followed")
        publish(client, "followed", range(2))
        command = [sys.executable, "-m", "seaweedq", "topic", "tail", "followed", "-f", "-n", "1", "--url", broker.url]
        following = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with following:
            assert following.stdout is not None
            printed = [json.loads(following.stdout.readline())["value"]]
            publish(client, "followed", range(2, 4))
            printed += [json.loads(following.stdout.readline())["value"] for _ in range(2)]
            broker.kill()
            broker.start()
            publish(client, "followed", range(4, 6))
            printed += [json.loads(following.stdout.readline())["value"] for _ in range(2)]
            following.terminate()
            rest, _ = following.communicate(timeout=60)
    assert (printed, rest, following.returncode) == ([1, 2, 3, 4, 5], "", 0)


def test_a_batch_that_was_cut_off_is_left_out() -> None:
    text = [
        "retry: 1000",
        "id: 3:0-0",
        "",
        "data: 1",
        "",
        "data: 2",
        "id: 3:0-2",
        "",
        ": nothing yet",
        "",
        "data: 3",
        "",
    ]
    assert [one for one in tail.parse_batches(iter(text)) if one[1]] == [("3:0-2", ["1", "2"])]
    assert list(tail.parse_batches(iter(["event: bye", 'data: {"status": 503}', ""]))) == []


def test_only_a_line_feed_ends_a_line() -> None:
    """httpx ends one at U+2028 and U+0085, too, and JSON may have them as they are."""
    text = 'id: 3:0-1\ndata: {"value":"a\u2028b\x85c"}\n\n'
    for size in (1, 7, 100):
        pieces = (text[at : at + size] for at in range(0, len(text), size))
        assert list(parse_batches(split_lines(pieces))) == [("3:0-1", ['{"value":"a\u2028b\x85c"}'])]

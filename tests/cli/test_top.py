"""`seaweedq top`: what is ranked, what is looked at next, and the picture."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from rich.console import Console
from typer.testing import CliRunner

from seaweedq import Client
from seaweedq.cli.main import app
from seaweedq.cli.top import Loads, TopicLoad, picture
from tests.support.cli.some_segments import segment
from tests.support.processes.broker_process import BrokerProcess


def load(name: str, *rates: float, messages: int = 0) -> TopicLoad:
    """A topic whose open segments have these rates."""
    return TopicLoad(
        name,
        messages,
        [
            segment(number, owner=f"broker.{number}", messages_per_s=(rate, rate / 2), bytes_per_s=(rate * 1e6,))
            for number, rate in enumerate(rates)
        ],
    )


def loads(*known: TopicLoad) -> Loads:
    return Loads({one.name: one for one in known})


def test_topics_and_segments_are_ranked_by_their_rates() -> None:
    found = loads(load("slow", 1, 2), load("idle", 0, messages=9), load("busy", 5, 0), load("empty"))
    assert [one.name for one in found.busiest()] == ["busy", "slow", "idle", "empty"]
    assert [(topic, one.id) for topic, one in found.segments()] == [("busy", 0), ("slow", 1), ("slow", 0)]
    assert (found.known["slow"].rate(), found.known["slow"].rate(minutes=True)) == (3, 1.5)


def test_every_topic_is_looked_at_in_turn_and_the_busy_ones_each_time() -> None:
    names = [f"t{number}" for number in range(10)]
    found = loads(load("t7", 3), load("t2", 9), load("gone", 99))
    rounds = [found.due(names, 4) for _ in range(4)]
    assert "gone" not in found.known
    assert all(each[:2] == ["t2", "t7"] and len(each) == 4 for each in rounds)
    assert {name for each in rounds for name in each} == set(names)
    assert found.due(names, 10) == names


def shown(found: Loads, lines: int | None, trouble: str = "") -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(picture(found, len(found.known), datetime(2026, 1, 31, 12, tzinfo=UTC), lines, trouble))
    return capture.get()


def test_the_picture_has_sums_and_the_busiest_that_there_is_room_for() -> None:
    hot = load("hot", 8.0)
    hot = replace(hot, open=[replace(hot.open[0], hot_key=(1, 0.9))])
    text = shown(loads(hot, *(load(f"t{number:02}", 1, 1) for number in range(40))), None)
    assert "12:00:00 UTC  41 topics, 81 open segments, 2 owners, 88 messages/s, 88.00 MB/s" in text
    assert "one key has 90%" in text
    short = shown(loads(hot, *(load(f"t{number:02}", 1, 1) for number in range(40))), 20, "no answer")
    assert len(short.splitlines()) <= 20
    assert "no answer" in short
    assert "and 34 topics with less" in short


@pytest.mark.process
def test_a_real_brokers_topics(real_broker: BrokerProcess, real_client: Client) -> None:
    real_client.create_topic("topped", initial_segments=2)
    real_client.publish("topped", [{"value": n, "key": str(n)} for n in range(20)])
    ended = CliRunner().invoke(app, ["top", "--once", "--url", real_broker.url], env={"COLUMNS": "200"})
    assert ended.exit_code == 0, ended.output
    rows = [line.split() for line in ended.stdout.splitlines() if line.startswith("topped ")]
    assert rows[0][4:] == ["2", "1", "20"]
    real_client.delete_topic("topped")

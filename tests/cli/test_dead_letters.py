"""`seaweedq dead-letters` against a real broker, in this process: a list, a redrive, and one that was cut off."""

import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from seaweedq import Client
from seaweedq.cli.dead_letters import read_letters
from seaweedq.cli.main import main
from seaweedq.cli.redriving import Redriver
from tests.support import privates

Run = Callable[..., str]
BYTES = b"payload" * 100


@pytest.fixture
def run(real_client: Client, capfd: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["dead-letters", *arguments, "--url", privates.urls(real_client)[0]])
        out, err = capfd.readouterr()
        assert (ended.value.code or 0) == code, err
        return out + err

    return command


def rejected(client: Client, topic: str, *messages: dict[str, Any]) -> str:
    """A topic for dead letters that has these messages of a topic."""
    client.create_topic(topic)
    dead = f"{topic}-dead"
    client.create_subscription(topic, "s", start="earliest", dead_letter_topic=dead)
    client.publish(topic, list(messages))
    for message in client.subscribe(topic, "s", idle_timeout_s=0.1):
        message.nack(reject=True, reason="no good")
    end_s = time.monotonic() + 20
    while client.subscription(topic, "s")["lag_total"]["messages"]:
        assert time.monotonic() < end_s
        time.sleep(0.02)
    return dead


@pytest.mark.process
def test_letters_are_listed_and_published_again(real_client: Client, run: Run) -> None:
    client, topic = real_client, "redriven"
    client.create_topic(topic)
    upload = client.upload(topic, BYTES, "text/plain")
    dead = rejected(
        client,
        topic,
        {"key": "a", "value": {"n": 1}, "headers": {"trace": "7"}},
        {"key": "b", "value": 2},
        {"reference": {"upload_id": upload}},
    )
    client.publish(dead, {"value": "no letter"})
    head, *lines = run("list", dead).splitlines()
    assert head.split()[:3] == ["id", "reason", "attempts"]
    assert len(lines) == 3
    assert [word in lines[0] for word in ("0-0", "rejected", topic, "no good")] == [True] * 4
    assert len(run("list", dead, "--max", "1").splitlines()) == 2
    assert run("list", topic) == f"topic {topic} has no dead letters\n"
    assert json.loads(run("list", dead, "-o", "json").splitlines()[1])["value"] == 2
    said = run("redrive", dead)
    assert "republished 3 dead letters; left 1 message that no subscription rejected" in said
    assert "skipped message 0-3: it is not a dead letter" in said
    again = client.fetch(topic, 0, 3).messages
    assert [(one.key, one.value, one.headers) for one in again[:2]] == [("a", {"n": 1}, {"trace": "7"}), ("b", 2, {})]
    assert again[0].timestamp == client.fetch(topic, 0, 0).messages[0].timestamp
    with again[2].open() as payload:
        assert payload.read() == BYTES
    assert client.subscription(dead, "redrive")["lag_total"]["messages"] == 1


@pytest.mark.process
def test_a_redrive_that_was_cut_off_doubles_nothing(
    real_client: Client, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed between the publish and the ack of a letter: its acks are gone. The next run said that it had
    published none, as long as the letters were leased."""
    client, topic = real_client, "cut-off"
    dead = rejected(client, topic, *({"value": n} for n in range(12)))
    client.create_subscription(dead, "redrive", start="earliest", ack_deadline_s=4)
    redrive, asked = Redriver.redrive, []

    def dying(self: Redriver, letter: Any) -> Any:
        outcome = redrive(self, letter)
        asked.append(outcome)
        if len(asked) == 11:
            raise OSError("killed")
        return outcome

    monkeypatch.setattr(Redriver, "redrive", dying)
    monkeypatch.setattr("seaweedq.client.core.message.BaseMessage.ack", lambda self: None)
    assert "killed" in run("redrive", dead, code=1)
    monkeypatch.undo()
    said = run("redrive", dead)
    assert "letters are leased, perhaps by a run that was killed; waiting up to" in said
    assert "republished 1 dead letter; an earlier run had already published 11" in said
    assert [one.value for one in client.fetch(topic, 0, 12).messages] == list(range(12))


@pytest.mark.process
@pytest.mark.long
def test_what_a_seek_brings_again_is_published_again(
    real_client: Client, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Letters were acked as if they had been published, since an earlier run had used their sequences up; also where
    the seek came while a run was at work."""
    client, topic = real_client, "sought"
    dead = rejected(client, topic, *({"value": n} for n in range(3)))
    assert "republished 3 dead letters\n" in run("redrive", dead)
    client.seek(dead, "redrive", {"offsets": {0: 1}})
    assert "republished 2 dead letters\n" in run("redrive", dead)
    redrive, sought = Redriver.redrive, list[Any]()

    def after_a_seek(self: Redriver, letter: Any) -> Any:
        if not sought:
            self._name = self._renamed()
            sought.append(client.seek(dead, "redrive", "earliest"))
        return redrive(self, letter)

    client.seek(dead, "redrive", {"offsets": {0: 2}})
    monkeypatch.setattr(Redriver, "redrive", after_a_seek)
    assert "republished 4 dead letters" in run("redrive", dead)
    assert [one.value for one in client.fetch(topic, 0, 6).messages] == [1, 2, 2, 0, 1, 2]


@pytest.mark.process
@pytest.mark.long
def test_a_topic_that_is_gone_is_named_with_what_to_do(real_client: Client, run: Run) -> None:
    client, topic = real_client, "gone"
    dead = rejected(client, topic, {"value": 1})
    client.delete_topic(topic)
    said = run("redrive", dead, code=1)
    assert topic in said
    assert "create the topic" in said


def test_messages_behind_expired_ones_are_listed() -> None:
    """The list ended at a page without messages."""

    def fetch(topic: str, segment: int, offset: int, limit: int) -> Any:
        shown = range(offset, min(offset + 2, 7))
        return SimpleNamespace(messages=[n for n in shown if n in (1, 6)], next_offset=offset + len(shown))

    client: Any = SimpleNamespace(segments=lambda topic: [{"id": 0, "start_offset": 1}], fetch=fetch)
    assert list(read_letters(client, "t")) == [1, 6]

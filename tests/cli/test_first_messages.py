"""First messages: one on the command line, some typed at a terminal, and a pull of what was there before."""

import json
import os
import pty
import subprocess
import sys
from datetime import datetime, timedelta
from types import SimpleNamespace
from uuid import UUID

import pytest
from typer.testing import CliRunner, Result

from seaweedq import Client
from seaweedq.cli.main import app
from seaweedq.cli.publish import paced
from tests.support.processes.broker_process import BrokerProcess

AT_THE_END = "is new, and receives only messages published from now on"


def run(broker: BrokerProcess, *arguments: str, given: str = "") -> Result:
    return CliRunner().invoke(app, [*arguments, "--url", broker.url], input=given, env={"COLUMNS": "200"})


def values(client: Client, topic: str) -> list[object]:
    return [message.value for message in client.fetch(topic, 0, 0).messages]


@pytest.mark.process
def test_an_argument_that_is_json_is_the_message(real_broker: BrokerProcess, real_client: Client) -> None:
    for text in ('{"a":1}', " [1,\n 2.50]", '"words"', "5"):
        assert "published 1 message to said" in run(real_broker, "publish", "said", text).stdout
    assert values(real_client, "said") == [{"a": 1}, [1, 2.5], "words", 5]
    assert real_client.fetch("said", 0, 0).messages[1].raw == b"[1,2.50]"
    run(real_broker, "publish", "said", '{"k":"ada","n":2}', "--key-field", "k")
    run(real_broker, "publish", "said", '{"key":"bob","value":3}', "--envelope")
    assert [message.key for message in real_client.fetch("said", 0, 4).messages] == ["ada", "bob"]


@pytest.mark.process
def test_a_message_that_is_repeated_has_its_number_and_ids(real_broker: BrokerProcess, real_client: Client) -> None:
    given = '{"n": {{n}}, "id": "{{ uuid }}", "at": "{{time}}"}'
    shown = run(real_broker, "publish", "many", "--count", "1500", given, "-o", "json").stdout
    assert json.loads(shown)["messages"] == 1500
    found = [value for value in values(real_client, "many") if isinstance(value, dict)]
    assert [value["n"] for value in found] == list(range(1, len(found) + 1))
    assert len({UUID(value["id"]) for value in found}) == len(found) >= 100
    assert all(datetime.fromisoformat(value["at"]).utcoffset() == timedelta(0) for value in found)
    run(real_broker, "publish", "texts", "--count", "2", "{{n}} of {{n}}")
    assert values(real_client, "texts") == ["1 of 1", "2 of 2"]
    run(real_broker, "publish", "keyed", "--count", "2", '{"key": "k{{n}}", "value": {{n}}}', "--envelope")
    assert [message.key for message in real_client.fetch("keyed", 0, 0).messages] == ["k1", "k2"]


def test_records_come_at_their_rate_and_make_up_for_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, slept = [100.0], []

    def sleep(wait_s: float) -> None:
        slept.append(round(wait_s, 3))
        now_s[0] += wait_s

    monkeypatch.setattr("seaweedq.cli.publish.time", SimpleNamespace(monotonic=lambda: now_s[0], sleep=sleep))
    for place, _ in paced(iter([(n, None) for n in range(6)]), 2.0):
        if place == 2:
            now_s[0] += 60  # a broker that was away
    assert slept == [0.0, 0.5, 0.5, 0.0, 0.0, 0.0]
    assert list(paced(iter([(1, "a")]), None)) == [(1, "a")]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--count", "3"], "--count needs a message as FILE, such as"),
        (["--count", "3", ""], "--count needs a message as FILE, such as"),
        (["--count", "3", __file__], "is a file; give a message instead"),
        (["--count", "3", "{{nope}}"], "unknown placeholder {{nope}}: use {{n}}, {{uuid}}, {{time}}"),
        (["--count", "3", '{"n": {{n}}'], "is not a message: not JSON"),
        (["--count", "0", "{{n}}"], "must be at least 1"),
        (["--count", "3", "--input-format", "csv", "{{n}}"], "applies only to files"),
        (['{"a":1'], "'{\"a\":1' is neither a file nor a message: not JSON (cut off)"),
        (["a=1"], "'a=1' does not exist; a message is JSON, such as '{\"a\": 1}'"),
        (["x" * 5000], "does not exist; a message is JSON"),
        (['{"a":1}', "--input-format", "csv"], "this option applies only to files, but the argument FILE is a message"),
    ],
)
def test_an_argument_that_is_neither_file_nor_message_is_told(arguments: list[str], told: str) -> None:
    ended = CliRunner().invoke(app, ["publish", "t", *arguments], env={"COLUMNS": "300"})
    assert ended.exit_code == 2
    assert told in ended.output


@pytest.mark.process
def test_at_a_terminal_it_says_what_it_reads_and_how_to_end(real_broker: BrokerProcess, real_client: Client) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "seaweedq", "publish", "typed", "--url", real_broker.url]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        os.close(theirs)
        assert process.stderr is not None
        told = process.stderr.readline()
        os.write(ours, b'{"a":1}\n5\n\x04')
        out, _ = process.communicate(timeout=60)
    os.close(ours)
    assert told == "reading messages from the terminal, one JSON value per line; press Ctrl-D to end\n"
    assert out.startswith("published 2 messages to typed")
    assert values(real_client, "typed") == [{"a": 1}, 5]


@pytest.mark.long
@pytest.mark.process
def test_a_pull_that_gets_nothing_says_why(real_broker: BrokerProcess, real_client: Client) -> None:
    real_client.publish("before", [{"value": 1}, {"value": 2}])
    first = run(real_broker, "pull", "before", "-s", "mine")
    assert first.stdout == ""
    assert AT_THE_END in first.stderr
    assert "with --start earliest, a new subscription starts at the first message" in first.stderr
    move = "seaweedq subscription seek before mine --to earliest"
    assert move in first.stderr
    again = run(real_broker, "pull", "before", "-s", "mine", "--start", "earliest")
    assert (again.stdout, move in again.stderr) == ("", True)
    assert "subscription mine already exists; --start applies only to a new subscription" in again.stderr
    assert run(real_broker, "pull", "before", "-s", "mine").stderr == "", "all is told"
    assert run(real_broker, *move.split()[1:]).exit_code == 0
    found = run(real_broker, "pull", "before", "-s", "mine")
    assert (found.stdout.count("\n"), found.stderr) == (2, "")
    other = run(real_broker, "pull", "before", "-s", "other", "--start", "earliest")
    assert (other.stdout.count("\n"), other.stderr) == (2, "")


@pytest.mark.process
def test_one_that_follows_says_so_before_it_waits(real_broker: BrokerProcess, real_client: Client) -> None:
    real_client.publish("followed", {"value": 1})
    command = [sys.executable, "-m", "seaweedq", "pull", "followed", "-s", "new", "-f", "--max", "1"]
    with subprocess.Popen(
        [*command, "--url", real_broker.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert AT_THE_END in process.stderr.readline()
        real_client.publish("followed", {"value": 2})
        out, err = process.communicate(timeout=60)
    assert '"value":2' in out
    assert err == ""

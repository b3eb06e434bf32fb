"""Options that are durations, sizes and times take units; what is wrong is told with value, form and bound."""

from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from seaweedq import Client
from seaweedq.cli.main import app
from seaweedq.errors import ConnectionFailed
from tests.support.processes.broker_process import BrokerProcess

TOPIC = ["topic", "create", "t"]
SUBSCRIPTION = ["subscription", "create", "t", "s"]


def run(broker: BrokerProcess, *arguments: str) -> str:
    ended = CliRunner().invoke(app, [*arguments, "--url", broker.url], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return ended.output


@pytest.mark.process
def test_topics_and_subscriptions_take_units(real_broker: BrokerProcess, real_client: Client) -> None:
    ages = ["--retention-max-age-s", "7d", "--flush-max-age-s", "1m30s", "--cool-down-s", "600"]
    sizes = ["--retention-max-bytes", "10GB", "--flush-max-bytes", "1MiB", "--target-bytes-per-s", "1.5MB"]
    run(real_broker, "topic", "create", "in-units", *ages, *sizes, "--max-payload-bytes", "1TiB")
    topic = real_client.topic("in-units")
    assert (topic["retention"]["max_age_s"], topic["retention"]["max_bytes"]) == (604_800, 10**10)
    assert (topic["flush"]["max_age_s"], topic["flush"]["max_bytes"]) == (90, 2**20)
    assert (topic["scaling"]["cool_down_s"], topic["scaling"]["target_bytes_per_s"]) == (600, 1_500_000)
    assert topic["max_payload_bytes"] == 2**40
    run(real_broker, "topic", "set", "in-units", "--retention-max-age-s", "2w")
    assert real_client.topic("in-units")["retention"]["max_age_s"] == 1_209_600
    options = ["--ack-deadline-s", "2m", "--backoff-s", "500ms", "--backoff-s", "1h", "--expires-after-s", "30d"]
    run(real_broker, "subscription", "create", "in-units", "s", *options)
    found = real_client.subscription("in-units", "s")
    assert (found["ack_deadline_s"], found["backoff_s"], found["expires_after_s"]) == (120, [0.5, 3600], 2_592_000)


@pytest.mark.process
@pytest.mark.parametrize("ago", ["5m", "-5m"])
def test_a_seek_goes_back_by_a_duration(real_broker: BrokerProcess, real_client: Client, ago: str) -> None:
    topic = f"sought{ago}"
    moments = [datetime.now(UTC) - timedelta(minutes=minutes) for minutes in (10, 4, 3)]
    real_client.publish(topic, [{"value": 1, "timestamp": moment.isoformat()} for moment in moments])
    run(real_broker, "subscription", "create", topic, "s")
    assert "segment 0: from 3 to 1" in run(real_broker, "subscription", "seek", topic, "s", "--to", ago)
    run(real_broker, "subscription", "create", topic, "begun", "--start", ago)
    assert real_client.subscription(topic, "begun")["lag_total"]["messages"] == 2
    pulled = run(real_broker, "pull", topic, "-s", "pulled", "--start", ago)
    assert len([line for line in pulled.split("\n") if line.startswith("{")]) == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            [*TOPIC, "--retention-max-age-s", "7x"],
            "--retention-max-age-s: the value must be a number",
        ),
        ([*TOPIC, "--retention-max-bytes", "10G"], "--retention-max-bytes: the value must be a number"),
        ([*SUBSCRIPTION, "--backoff-s", "1s", "--backoff-s", "1y"], "--backoff-s: the value must be a number"),
        ([*SUBSCRIPTION, "--start", "5"], "--start: the value must be a time of RFC 3339"),
        (["subscription", "seek", "t", "s", "--to", "-5x"], "--to: the value must be a time"),
        (["pull", "t", "-s", "s", "--start", "now"], "--start: the value must be a time"),
        (["top", "--every-s", "10ms"], "--every-s: the value must be at least 0.5 seconds, not '10ms'"),
        (["sql", "SELECT 1", "--every-s", "-1s"], "--every-s: the value must be a number"),
        (["bench", "--size", "2MB"], "--size: the value must be from 1 to 1,000,000 bytes, not '2MB'"),
        (["bench", "--seconds", "0"], "--seconds: the value must be at least 0.1 seconds, not '0'"),
        (["token", "create", "--expires", "1y"], "--expires: the value must be a number"),
    ],
)
def test_what_is_wrong_is_told_with_value_and_form(arguments: list[str], told: str) -> None:
    ended = CliRunner().invoke(app, arguments, env={"COLUMNS": "300"})
    assert ended.exit_code == 2
    assert told in ended.output


@pytest.mark.parametrize("command", [["topic", "set"], ["subscription", "create"], ["bench"]])
def test_help_names_the_units_in_words(command: list[str]) -> None:
    shown = " ".join(CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "300"}).output.split())
    assert "DURATION" in shown
    assert "Seconds, or with units: 500ms, 90s, 1h30m, 7d, 2w." in shown
    if command != ["subscription", "create"]:
        assert "SIZE" in shown
        assert "Bytes, or with a unit: 10GB (10^9 bytes each), 512MiB (2^20)." in shown


@pytest.mark.process
def test_lines_of_whole_messages_have_units(real_broker: BrokerProcess, real_client: Client) -> None:
    publish = ["publish", "lifetimes", "--envelope", "--skip-invalid", "--url", real_broker.url]
    lines = '{"value":1,"expires_in_s":"1ms"}\n{"value":2,"expires_in_s":"1d"}\n{"value":3,"expires_in_s":"1y"}\n'
    ended = CliRunner().invoke(app, publish, input=lines)
    assert "expires_in_s must be a number of seconds" in ended.output
    assert [message.value for message in real_client.fetch("lifetimes", 0, 0).messages] == [2]


def test_defaults_are_numbers() -> None:
    with pytest.raises(ConnectionFailed):
        CliRunner().invoke(app, ["bench", "--messages", "1", "--url", "http://127.0.0.1:1"], catch_exceptions=False)

"""`seaweedq subscription` against a real broker, in this process: tables, JSON, lag, seek, and what is refused."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from seaweedq import Client
from seaweedq.cli.main import main
from seaweedq.cli.subscription import Look, told
from tests.support import privates

pytestmark = pytest.mark.process

Run = Callable[..., str]


@pytest.fixture
def run(real_client: Client, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "200")

    def command(*arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--url", privates.urls(real_client)[0]])
        out, err = capfd.readouterr()
        assert (ended.value.code or 0) == code, err
        return out + err

    return command


@pytest.fixture
def topic(real_client: Client, request: pytest.FixtureRequest) -> str:
    name = request.node.originalname.replace("_", "-")[:60]
    real_client.create_topic(name)
    real_client.publish(name, [{"value": n, "key": f"k{n}"} for n in range(10)])
    return name


def shown(run: Run, topic: str) -> Any:
    return json.loads(run("subscription", "show", topic, "s", "-o", "json"))


def test_a_subscription_from_creation_to_deletion(run: Run, topic: str) -> None:
    options = ["--mode", "keyed", "--start", "earliest", "--backoff-s", "1", "--backoff-s", "60"]
    for said in ("is created", "already exists, with the same options"):
        assert said in run("subscription", "create", topic, "s", *options, "--max-in-flight", "7")
    assert "mode" in run("subscription", "create", topic, "s", "--mode", "shared", code=1)
    found = shown(run, topic)
    assert (found["mode"], found["backoff_s"], found["max_in_flight"]) == ("keyed", [1, 60], 7)
    listed = run("subscription", "list", topic)
    assert [word in listed for word in ("name", "keyed", "10", "active", "behind")] == [True] * 5
    again = json.loads(run("subscription", "list", topic, "-o", "json"))
    assert again.keys() == found.keys()
    assert again["lag_total"]["messages"] == 10
    table = run("subscription", "show", topic, "s")
    assert "seek_epoch" not in table
    assert [word in table for word in ("ack_deadline_s", "acked to", "all")] == [True] * 3
    assert "paused" in run("subscription", "pause", topic, "s")
    assert "paused" in run("subscription", "list", topic)
    run("subscription", "resume", topic, "s")
    assert not shown(run, topic)["paused"]
    run("subscription", "delete", topic, "s", "--yes")
    assert "'s'" in run("subscription", "show", topic, "s", code=1)


def test_a_watch_shows_lag_rate_and_what_is_left(run: Run, topic: str, real_client: Client) -> None:
    run("subscription", "create", topic, "s", "--start", "earliest")
    assert "10 messages behind" in run("subscription", "watch", topic, "s", "--once")
    seen = json.loads(run("subscription", "watch", topic, "s", "--once", "-o", "json"))
    assert (seen["topic"], seen["name"], seen["messages"]) == (topic, "s", 10)
    assert "subscription" in run("subscription", "watch", topic, "nosuch", code=1)
    before = Look(10.0, real_client.subscription(topic, "s"))
    assert len(run("pull", topic, "-s", "s", "--max", "4").splitlines()) == 4
    line = told(Look(12.0, real_client.subscription(topic, "s")), before)
    assert line.startswith("6 messages behind (")
    assert line.endswith("acked 2/s, caught up in 3 s")


def test_seek_goes_back_and_forth(run: Run, topic: str) -> None:
    run("subscription", "create", topic, "s")
    assert shown(run, topic)["lag_total"]["messages"] == 0
    assert "segment 0: from 10 to 0" in run("subscription", "seek", topic, "s", "--to", "earliest")
    assert shown(run, topic)["lag_total"]["messages"] == 10
    done = json.loads(run("subscription", "seek", topic, "s", "--offset", "0=7", "-o", "json"))
    assert done["segments"] == [{"segment": 0, "from": 0, "to": 7}]
    run("subscription", "seek", topic, "s", "--to", "2020-01-01T00:00:00Z")
    assert shown(run, topic)["lag_total"]["messages"] == 10


def test_the_client_seeks_too(real_client: Client, topic: str) -> None:
    real_client.create_subscription(topic, "s", start="earliest")
    assert real_client.seek(topic, "s", {"offsets": {0: 4}})["segments"] == [{"segment": 0, "from": 0, "to": 4}]
    moment = next(real_client.subscribe(topic, "s")).timestamp
    real_client.seek(topic, "s", moment)
    assert next(real_client.subscribe(topic, "s")).timestamp >= moment
    with pytest.raises(ValueError, match="no time zone"):
        real_client.seek(topic, "s", moment.replace(tzinfo=None))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--offset", "x"], "SEGMENT=OFFSET"),
        (["--offset", "a=1"], "'a=1'"),
        (["--offset", "0=1", "--offset", "0=2"], "segment 0 is given more than once"),
        ([], "use either --to or --offset"),
        (["--to", "latest", "--offset", "0=1"], "use either --to or --offset"),
    ],
)
def test_a_seek_that_says_nothing_is_a_usage_error(run: Run, arguments: list[str], says: str) -> None:
    assert says in run("subscription", "seek", "t", "s", *arguments, code=2)


def test_errors_name_value_and_bound(run: Run, topic: str) -> None:
    said = run("subscription", "create", topic, "s", "--mode", "random", code=1)
    assert "random" in said
    assert "keyed" in said
    assert "-1" in run("subscription", "create", topic, "s", "--max-in-flight", "-1", code=1)
    assert "yesterday" in run("subscription", "seek", topic, "s", "--to", "yesterday", code=2)


def test_pull_gives_back_what_it_printed(run: Run, topic: str) -> None:
    pull = ["pull", topic, "-s", "s", "--start", "earliest", "--mode", "shared"]
    assert len(run(*pull, "--max", "4", "--nack").splitlines()) == 4
    found = shown(run, topic)
    assert (found["mode"], found["lag_total"]["messages"], found["lag_total"]["in_flight"]) == ("shared", 10, 0)
    assert "either --nack or --no-ack" in run(*pull, "--nack", "--no-ack", code=2)
    assert "'odd'" in run(*pull, "--mode", "odd", code=2)

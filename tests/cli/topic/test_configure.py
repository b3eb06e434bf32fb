"""The options of `topic create` that say when segments split and merge; and what `topic show` says of loads."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from seaweedq import AsyncClient, Client
from seaweedq.cli.main import app
from seaweedq.errors import InvalidRequest, TopicConflict
from seaweedq.segments.keyrange import hash_key
from tests.support.processes.broker_process import BrokerProcess

pytestmark = pytest.mark.process

OPTIONS = {
    "--target-messages-per-s": ("target_messages_per_s", 1000),
    "--target-bytes-per-s": ("target_bytes_per_s", 4096),
    "--min-segments": ("min_segments", 2),
    "--max-segments": ("max_segments", 9),
    "--cool-down-s": ("cool_down_s", 7.5),
}


def run(broker: BrokerProcess, *arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["topic", *arguments, "--url", broker.url], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.output


def test_a_topic_is_changed_in_an_editor(
    real_broker: BrokerProcess, real_client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("VISUAL", raising=False)
    run(real_broker, "create", "edited", "--max-segments", "9")

    def edit(editor: str, code: int = 0) -> str:
        monkeypatch.setenv("EDITOR", editor)
        given = ["topic", "edit", "edited", "--yes", "--url", real_broker.url]
        result = CliRunner().invoke(app, given, env={"COLUMNS": "200"})
        assert result.exit_code == code, result.output
        return f"{result.output} {result.exception}"

    assert "topic edited was not changed" in edit("true")
    shown = edit("""sed -i 's/"max_segments": 9/"max_segments": 7/'""")
    assert [line in shown for line in ('-    "max_segments": 9', '+    "max_segments": 7')] == [True, True]
    assert "topic edited was changed" in shown
    assert real_client.topic("edited")["scaling"]["max_segments"] == 7
    edit("""sed -i '/"max_segments"/d'""")
    assert real_client.topic("edited")["scaling"]["max_segments"] != 7
    assert not list(tmp_path.iterdir())
    for editor, said in (
        ("""sed -i 's/"scaling"/scaling/'""", "does not contain valid JSON"),
        ("""sed -i 's/"enabled": true/"enabled": "so so"/'""", "enabled"),
        ("false", "the editor 'false' ended with exit code 1"),
        ("/no/such/editor", "the editor '/no/such/editor' could not be started"),
    ):
        shown = edit(editor, code=1)
        (kept,) = tmp_path.iterdir()
        assert f"nothing was changed; your text is in {kept}" in shown
        assert said in shown, editor
        kept.unlink()
    assert real_client.topic("edited")["scaling"]["enabled"] is True


def test_every_field_has_an_option(real_broker: BrokerProcess, real_client: Client) -> None:
    every = [text for option, (_, value) in OPTIONS.items() for text in (option, str(value))]
    run(real_broker, "create", "optioned", *every, "--no-scaling")
    assert real_client.topic("optioned")["scaling"] == {**dict(OPTIONS.values()), "enabled": False}
    run(real_broker, "create", "optioned", "--max-segments", "9", "--no-scaling")
    for other in (["--max-segments", "8"], ["--scaling"]):
        with pytest.raises(TopicConflict, match=other[0]):
            CliRunner().invoke(
                app, ["topic", "create", "optioned", *other, "--url", real_broker.url], catch_exceptions=False
            )


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_sets_its_field_alone(real_broker: BrokerProcess, real_client: Client, option: str) -> None:
    field, value = OPTIONS[option]
    run(real_broker, "create", "plain-policy")
    run(real_broker, "create", f"only-{field}", option, str(value))
    defaults, set_one = (real_client.topic(name)["scaling"] for name in ("plain-policy", f"only-{field}"))
    assert set_one == defaults | {field: value}
    run(real_broker, "create", f"only-{field}", "--scaling")


def test_a_value_that_is_not_valid_is_told_with_its_bound(real_broker: BrokerProcess) -> None:
    with pytest.raises(InvalidRequest, match="--min-segments must be at most --max-segments=8, not 9"):
        CliRunner().invoke(
            app,
            ["topic", "create", "crossed", "--min-segments", "9", "--max-segments", "8", "--url", real_broker.url],
            catch_exceptions=False,
        )
    assert "--cool-down-s" in run(real_broker, "create", "worded", "--cool-down-s", "soon", code=2)


def test_show_says_what_segments_take_and_which_key_is_too_hot(real_broker: BrokerProcess, real_client: Client) -> None:
    real_client.create_topic("shown", scaling={"target_messages_per_s": 10, "cool_down_s": 1}, initial_segments=2)
    end = time.monotonic() + 30
    while not real_client.topic("shown")["hot_segments"]:
        real_client.publish("shown", [{"key": "same", "value": n} for n in range(100)])
        assert time.monotonic() < end
        time.sleep(0.1)
    shown = run(real_broker, "show", "shown")
    head = next(number for number, line in enumerate(shown.splitlines()) if line.startswith("segment "))
    cool, hot = shown.splitlines()[head + 1 : head + 3]
    if hash_key("same") < 2**30:
        cool, hot = hot, cool
    assert hot.endswith(f"not split: one key (hash {hash_key('same')}) has 100% of its messages")
    assert "  splits at " in hot
    assert "held by hot_key" in hot
    assert cool.split()[4:7] == ["0", "0.0", "0.00"]
    assert "  splits at 10, now 0 (10 min)  " in cool
    facts: dict[str, Any] = json.loads(run(real_broker, "show", "shown", "-o", "json"))
    assert facts["hot_segments"] == [s["id"] for s in facts["segments"] if s["hot_key"]]


async def test_the_python_client_takes_and_changes_a_policy(real_broker: BrokerProcess, real_client: Client) -> None:
    made = real_client.create_topic("by-client", scaling={"max_segments": 8, "enabled": False})["scaling"]
    assert (made["max_segments"], made["enabled"], made["cool_down_s"]) == (8, False, 600)
    async with AsyncClient(real_broker.url) as client:
        changed = await client.update_topic("by-client", scaling={"max_segments": None})
        assert changed["scaling"] == made | {"max_segments": 256}
        assert (await client.create_topic("by-client", scaling={"enabled": False}))["scaling"] == changed["scaling"]
        with pytest.raises(InvalidRequest, match=r"scaling\.cool_down_s must be .*, not 0"):
            await client.update_topic("by-client", scaling={"cool_down_s": 0})
    (segment,) = real_client.segments("by-client")
    assert segment["rates"] == {"messages_per_s": [0.0] * 4, "bytes_per_s": [0.0] * 4}

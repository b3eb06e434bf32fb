"""`seaweedq schema` against a real broker, in this process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from seaweedq import Client
from seaweedq.cli.main import main
from seaweedq.cli.redriving import fitted
from seaweedq.errors import ClientError, InvalidMessages, SchemaMismatch
from tests.support import privates

pytestmark = pytest.mark.process

Run = Callable[..., str]
FIELDS = [{"name": "city", "type": "string", "required": True}, {"name": "n", "type": "int", "doc": "how many"}]
WIDER = [{"name": "n", "type": "long"}, {"name": "city", "type": "string"}, {"name": "x", "type": "date"}]


@pytest.fixture
def run(real_client: Client, capfd: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["schema", *arguments, "--url", privates.urls(real_client)[0]])
        out, err = capfd.readouterr()
        assert (ended.value.code or 0) == code, err
        return out + err

    return command


def file_of(folder: Path, *fields: dict[str, Any]) -> str:
    path = folder / "schema.json"
    path.write_text(json.dumps({"fields": fields}))
    return str(path)


def test_a_schema_is_shown_checked_evolved_and_compared(run: Run, real_client: Client, tmp_path: Path) -> None:
    real_client.create_topic("shown", format="typed", schema={"fields": FIELDS})
    assert "how many" in run("show", "shown")
    wider = file_of(tmp_path, *WIDER)
    told = run("check", "shown", wider)
    assert "would become version 1, with 3 changed fields" in told
    assert "n: wider type: int to long" in told
    assert real_client.schemas("shown") == [0]
    assert json.loads(run("evolve", "shown", wider, "--if-version", "0", "-o", "json"))["schema_id"] == 1
    assert "version 1, with 0 changed fields" in run("evolve", "shown", wider)
    assert real_client.schemas("shown") == [0, 1]
    assert [one["id"] for one in real_client.schema("shown")["fields"]] == [2, 1, 3]
    found = [json.loads(line) for line in run("diff", "shown", "0", "-o", "json").splitlines()]
    assert [one["change"] for one in found] == ["wider type", "optional", "added"]
    assert "no field has changed" in run("diff", "shown", "0", "0")
    assert "AFTER: the version must be at least 1, the version BEFORE, not 0" in run("diff", "shown", "1", "0", code=2)
    assert json.loads(run("show", "shown", "--version", "0", "-o", "json")) == real_client.schema("shown", 0)


def test_a_field_is_dropped_with_a_warning(run: Run, real_client: Client, tmp_path: Path) -> None:
    real_client.create_topic("dropped", format="typed", schema={"fields": FIELDS})
    less = file_of(tmp_path, FIELDS[0])
    told = run("check", "dropped", less)
    assert "n: dropped" in told
    assert "warning: 'n' is dropped: brokers refuse messages" in told
    changed = json.loads(run("evolve", "dropped", less, "--if-version", "0", "-o", "json"))
    assert (changed["schema_id"], len(changed["warnings"])) == (1, 2)
    assert changed["changes"] == [{"id": 2, "field": "n", "change": "dropped", "from": "int", "to": None}]


def test_a_field_is_renamed_with_warnings(run: Run, real_client: Client, tmp_path: Path) -> None:
    real_client.create_topic("named", format="typed", schema={"fields": FIELDS}, key_field="city")
    named = file_of(tmp_path, {"id": 1, "name": "town", "type": "string"}, {"id": 2, "name": "count", "type": "long"})
    assert "another name for this field; to rename the field" in run("evolve", "named", named, code=1)
    told = run("evolve", "named", named, "--if-version", "0")
    assert "town: renamed: city to town" in told
    assert "count: wider type: int to long" in told
    assert "warning: 'n' is renamed to 'count': brokers refuse messages that have the field 'n'" in told
    assert 'read coalesce("count", "n")' in told
    found = [json.loads(line) for line in run("diff", "named", "0", "-o", "json").splitlines()]
    assert [one["change"] for one in found] == ["renamed", "optional", "renamed", "wider type"]
    assert real_client.topic("named")["key_field"] == "town"


def test_publishers_state_the_version_that_they_know(real_client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    real_client.create_topic("stated", format="typed", schema={"fields": FIELDS}, key_field="city", initial_segments=4)
    now = {"fields": [{"id": 1, "name": "town", "type": "string"}, {"id": 2, "name": "count", "type": "long"}]}
    real_client.evolve_schema("stated", now, if_schema_id=0)
    value = {"city": "Rome", "n": 1}
    with pytest.raises(InvalidMessages, match="'city' was renamed to 'town'"):
        real_client.publish("stated", {"value": value})
    real_client.publish("stated", {"value": value}, schema_id=0)
    real_client.publish("stated", [{"value": value}], schema_id=0)
    with real_client.producer("stated", schema_id=0) as producer:
        ids = [producer.send(value), producer.send(value, key="Rome")]
        producer.send_table(pa.table({"city": ["Rome"], "n": pa.array([1], pa.int32())}))
    assert len({receipt.result().partition("-")[0] for receipt in ids}) == 1
    with pytest.raises(SchemaMismatch, match="no version 7"), real_client.producer("stated", schema_id=7) as producer:
        producer.send(value)
    command = ["publish", "stated", json.dumps(value), "--url", privates.urls(real_client)[0]]
    for more, code in (["--schema-id", "0"], 0), ([], 1):
        with pytest.raises(SystemExit) as ended:
            main([*command, *more])
        assert (ended.value.code or 0) == code
    assert "'city' was renamed to 'town'" in capsys.readouterr().err
    found = real_client.read_table("stated", ["town", "count", "segment"], live=True).to_pylist()
    assert found == [{"town": "Rome", "count": 1, "segment": found[0]["segment"]}] * 6


def test_a_letter_is_published_with_the_fields_that_its_topic_has_now() -> None:
    schema = {"fields": [{"name": "town", "aliases": ["city"]}, {"name": "count", "aliases": ["n"]}, {"name": "x"}]}
    for letter, expected in (
        ({"city": "Rome", "n": 1, "count": None, "x": None}, {"town": "Rome", "count": 1, "x": None}),
        ({"city": None, "town": "Rome", "gone": None}, {"town": "Rome"}),
        ({"gone": 1, "x": 2}, {"gone": 1, "x": 2}),
    ):
        assert json.loads(fitted(json.dumps(letter).encode(), schema)) == expected
    for letter in ({"city": "Rome", "town": "Oslo"}, {"town": "Oslo", "city": "Rome"}):
        with pytest.raises(ClientError, match="two values for the field 'town'"):
            fitted(json.dumps(letter).encode(), schema)


def test_what_a_topic_does_not_take_is_an_error_of_one_line(run: Run, real_client: Client, tmp_path: Path) -> None:
    real_client.create_topic("kept", format="typed", schema={"fields": FIELDS})
    told = run("evolve", "kept", file_of(tmp_path, {"name": "n", "type": "string"}), code=1)
    assert "'city': the schema lacks this field; to drop the field, also send if_schema_id (--if-version)" in told
    assert "; 'n': only int to long" in told
    assert len(told.splitlines()) == 1
    assert "newest schema version" in run("evolve", "kept", file_of(tmp_path, *WIDER), "--if-version", "3", code=1)
    assert "has no schema version 7" in run("show", "kept", "--version", "7", code=1)
    real_client.create_topic("plain")
    assert "has no schema version 0" in run("show", "plain", code=1)
    (cut := tmp_path / "cut.json").write_text('{"fields":')
    assert run("check", "kept", str(cut), code=2).startswith(f"seaweedq: {cut}: not JSON: it is cut off; see ")

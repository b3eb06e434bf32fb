"""A topic with as many versions of its schema as it may have: fewer ones, and those of real brokers."""

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from typer.testing import CliRunner

from seaweedq import Client
from seaweedq.broker.topics import catalog, schema_versions
from seaweedq.cli.main import app
from seaweedq.coordination.interface import Coordination, Entry
from seaweedq.errors import SchemaIncompatible, SchemaNotFound
from seaweedq.storage.memory import MemoryStore
from tests.broker.topics.test_schema_versions import asking, created, send, values
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop
from tests.support.processes.broker_process import BrokerProcess

MAX_VERSIONS = 26  # more than brokers look back by


def fields(version: int) -> list[dict[str, Any]]:
    """The fields of a version: each second one has one that the next one drops."""
    base = [{"id": 1, "name": "k", "type": "string", "required": True}, {"id": 2, "name": "n", "type": "int"}]
    return [*base, {"name": f"f{version}", "type": "int"}] if version % 2 else base


@pytest.mark.brokers
async def test_a_topic_has_so_many_versions_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert schema_versions.MAX_VERSIONS == 1000
    monkeypatch.setattr(schema_versions, "MAX_VERSIONS", MAX_VERSIONS)
    monkeypatch.setattr(catalog, "KEPT", 5)
    read, entries = list[str](), schema_versions.entries

    def noted(coordination: Coordination, prefix: str, *more: Any, **named: Any) -> AsyncIterator[Entry]:
        read.append(prefix)
        return entries(coordination, prefix, *more, **named)

    monkeypatch.setattr(schema_versions, "entries", noted)
    async with in_loop(tmp_path, 1, MemoryStore()) as cluster, asking(cluster, 0) as http:
        await created(http)
        for version in range(1, MAX_VERSIONS):
            body = {"schema": {"fields": fields(version)}, "if_schema_id": version - 1}
            answer = await http.patch("/v1/topics/t", json=body)
            assert answer.status_code == 200, answer.text
            assert answer.json()["schema_id"] == version
        newest = MAX_VERSIONS - 1
        for more in ("", "?dry_run=true"):
            body = {"schema": {"fields": fields(0)}, "if_schema_id": newest}
            refused = await http.patch(f"/v1/topics/t{more}", json=body)
            assert refused.status_code == 409
            assert refused.json()["type"].endswith("schema-incompatible")
            assert f"{MAX_VERSIONS} versions, which is the limit" in refused.json()["detail"]
            assert (refused.json()["value"], refused.json()["bound"]) == (MAX_VERSIONS + 1, MAX_VERSIONS)
        assert not [prefix for prefix in read if prefix.startswith("schemas/")], "the broker knows those that it made"
        listed = await http.get("/v1/topics/t/schemas")
        assert listed.json() == {"schema_ids": [*range(MAX_VERSIONS)]}
        assert (await http.get("/v1/topics/t/schemas/3")).json()["schema_id"] == 3
        assert (await http.put("/v1/topics/t", json={"format": "typed", "schema": {"fields": fields(1)}})).is_success
        assert (await send(http, {"k": "a", f"f{newest}": 1})).status_code == 200
        assert (await send(http, {"k": "b", f"f{newest - 2}": 1})).status_code == 422, "it was dropped"
        assert (await send(http, {"k": "c", f"f{newest - 2}": None})).status_code == 200
        assert [row["k"] for row in await values(http)] == ["a", "c"]
        topic, known = inside.topic(cluster.brokers[0], "t"), inside.catalog(cluster.brokers[0])
        for version in (*range(MAX_VERSIONS), newest, 0):
            assert (await known.layout(topic, version)).schema_id == version
        assert len(topic.layouts) == 5


KEPT = [{"name": "k", "type": "string"}, {"name": "n", "type": "int"}]
LAST = schema_versions.MAX_VERSIONS - 1


def schema(version: int) -> dict[str, Any]:
    """A field comes with each even version, and goes with the next one."""
    return {"fields": [*KEPT, *([] if version % 2 else [{"name": f"x{version}", "type": "int"}])]}


def command(*arguments: str, url: str) -> str:
    ended = CliRunner().invoke(app, ["schema", *arguments, "--url", url])
    assert ended.exit_code == 0, ended.output
    return ended.output


@pytest.mark.process
@pytest.mark.soak
def test_a_schema_has_a_thousand_versions_and_no_more(broker_process: Callable[..., BrokerProcess]) -> None:
    broker, took = broker_process(), list[float]()
    with Client(broker.url) as client:
        client.create_topic("t", format="typed", schema=schema(0))
        client.publish("t", {"value": {"k": "a", "n": 1, "x0": 7}})
        client.flush("t")
        client.publish("t", {"value": {"k": "b", "n": 2, "x0": 8}})  # which only the journal has
        for version in range(1, schema_versions.MAX_VERSIONS):
            begun = time.monotonic()
            assert client.evolve_schema("t", schema(version), if_schema_id=version - 1)["schema_id"] == version
            took.append(time.monotonic() - begun)
    assert median(took[-100:]) < 5 * median(took[:100]), "a change reads no earlier version again"
    refused = {"type": "struct", "fields": [*KEPT, {"name": "more", "type": "int"}]}
    for _ in range(2):
        with Client(broker.url) as client:
            with pytest.raises(SchemaIncompatible, match="has 1000 versions, which is the limit") as problem:
                client.evolve_schema("t", refused, if_schema_id=LAST)
            told = problem.value.fields
            assert (told["value"], told["bound"]) == (schema_versions.MAX_VERSIONS + 1, schema_versions.MAX_VERSIONS)
            assert client.schemas("t") == [*range(schema_versions.MAX_VERSIONS)]
            assert [one["name"] for one in client.schema("t", 500)["fields"]] == ["k", "n", "x500"]
            with pytest.raises(SchemaNotFound, match=f"no schema version {schema_versions.MAX_VERSIONS}"):
                client.schema("t", schema_versions.MAX_VERSIONS)
            rows = client.read_table("t", live=True).sort_by("_offset")
            assert rows.select(["k", "n"]).to_pylist() == [{"k": "a", "n": 1}, {"k": "b", "n": 2}]
            assert client.create_topic("t", format="typed", schema=schema(0))["schema_id"] == LAST, "a program's"
            assert client.create_topic("t", format="typed", schema=schema(998))["schema_id"] == LAST
        assert "x0" in command("show", "t", "--version", "0", url=broker.url)
        assert "x998" in command("diff", "t", "0", "998", url=broker.url)
        broker.terminate()
        broker.start()

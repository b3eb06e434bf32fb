"""Versions of a schema amid publishing by producers of two versions, over splits, merges, moves, rolls and the end of a
broker: each acknowledged row is there once, with its values, and no file has two versions.
"""

import asyncio
import io
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pyarrow.parquet as pq
import pytest

from seaweedq.storage.memory import MemoryStore
from tests.support.brokers.in_process_cluster import InLoop, in_loop

pytestmark = pytest.mark.brokers

BASE = [{"name": "k", "type": "string", "required": True}, {"name": "n", "type": "int"}]
STEPS = 6


def fields_of(version: int) -> list[dict[str, Any]]:
    """The fields of a version: each has one more, and from the third on `n` is wider; it is renamed twice, and the key
    once. The last one drops `f0`, which no publisher sends by then."""
    more = [{"name": f"f{number}", "type": "int"} for number in range(version == STEPS, version)]
    n = {"name": "n", "type": "long"} if version > 2 else BASE[1]
    names = {"id": 1, **BASE[0], "name": key_of(version)}, {"id": 2, **n, "name": number_of(version)}
    return [*reversed(more), *reversed(names)] if version else BASE


def key_of(version: int) -> str:
    """The name of the key field."""
    return "key" if version > 3 else "k"


def number_of(version: int) -> str:
    """The name of the other field of the first version."""
    return ("n", "m", "number")[(version > 1) + (version > 4)]


class Amid:
    """Producers of a cluster, and what they were told to be durable."""

    def __init__(self, cluster: InLoop) -> None:
        self.cluster = cluster
        self.version = 0  # that counts
        self.sent: dict[str, dict[str, Any]] = {}  # by the key of the row
        self.stopping = False

    def asking(self) -> httpx.AsyncClient:
        """A client of a broker that lives, another one each time."""
        urls = sorted(self.cluster.apps)
        url = urls[len(self.sent) % len(urls)]
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.cluster.apps[url]), base_url="http://localhost")

    async def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """An answer that is not 503, of a broker that lives."""
        async with asyncio.timeout(30):
            while True:
                try:
                    async with self.asking() as http:
                        answer = await http.request(method, f"/v1/topics/t{path}", **more)
                except (httpx.HTTPError, RuntimeError, asyncio.CancelledError):
                    if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                        raise
                    continue
                if answer.status_code != 503:
                    return answer
                await asyncio.sleep(0.02)

    async def produce(self, name: str, behind: int) -> None:
        """Publishes rows, of the version that counts less `behind`, until the end."""
        sequence = 0
        while not self.stopping:
            version = max(0, self.version - behind)
            rows = []
            for at in range(3):
                number = sequence + at
                value = {f"f{f}": number for f in range(version > 3, version)}
                value |= {key_of(version): f"{name}-{number}", number_of(version): number + 2**40 * (version > 2)}
                rows.append(value)
            headers = {"Producer-Id": name, "Producer-Sequence": str(sequence), "Schema-Id": str(version)}
            body = {"messages": [{"value": row} for row in rows]}
            answer = await self.ask("POST", "/messages", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            names = {key_of(version): "key", number_of(version): "number"}
            self.sent |= {row[key_of(version)]: {names.get(n, n): v for n, v in row.items()} for row in rows}
            sequence += len(rows)
            await asyncio.sleep(0)

    async def rows(self) -> list[Mapping[str, Any]]:
        """All rows of all segments."""
        found: list[Mapping[str, Any]] = []
        for segment in (await self.ask("GET", "/segments")).json()["segments"]:
            offset = 0
            while offset < segment["end_offset"]:
                path = f"/segments/{segment['id']}/messages?offset={offset}&limit=1000"
                page = (await self.ask("GET", path)).json()
                found += [message["value"] for message in page["messages"]]
                offset = page["next_offset"]
        return found


@pytest.mark.default
@pytest.mark.timeout(120)
async def test_no_row_is_lost_doubled_or_changed(tmp_path: Path) -> None:
    store = MemoryStore()
    async with in_loop(tmp_path, 3, store) as cluster:
        amid = Amid(cluster)
        config = {"format": "typed", "schema": {"fields": BASE}, "key_field": "k", "scaling": {"enabled": False}}
        assert (await amid.ask("PUT", "", json=config)).status_code == 201
        tasks = [asyncio.create_task(amid.produce(f"p{n}", behind)) for n, behind in enumerate((0, 1, 1))]
        for step in count(1):
            before = len(amid.sent)
            while len(amid.sent) < before + 60:
                await asyncio.sleep(0.01)
                for task in tasks:
                    assert not task.done(), task.result()
            if step > STEPS:
                break
            changed = await amid.ask(
                "PATCH", "", json={"schema": {"fields": fields_of(step)}, "if_schema_id": step - 1}
            )
            assert changed.status_code == 200, changed.text
            amid.version = step
            open_ = [s for s in (await amid.ask("GET", "/segments")).json()["segments"] if s["state"] == "open"]
            ordered = sorted(open_, key=lambda one: one["low"])
            if step == 3:
                await cluster.crash(cluster.brokers[0])
            elif step % 2 or len(ordered) < 2:
                await amid.ask("POST", f"/segments/{ordered[-1]['id']}/split", json={"parts": 2})
            else:
                await amid.ask("POST", f"/segments/{ordered[0]['id']}/merge", json={"with": ordered[1]["id"]})
            await amid.ask("POST", "/flush")
        amid.stopping = True
        await asyncio.gather(*tasks)
        names = ["key", "number", *(f"f{number}" for number in range(1, STEPS))]
        expected = {key: {name: row.get(name) for name in names} for key, row in amid.sent.items()}
        found = await amid.rows()
        assert len(found) == len(expected), "each row once"
        assert {row["key"]: {**row} for row in found} == expected
        await amid.ask("POST", "/flush")
        assert {row["key"]: {**row} for row in await amid.rows()} == expected, "also from files"
    for name, file in store.objects.items():
        if name.startswith("topics/t/"):
            schema, metadata = pq.read_schema(io.BytesIO(bytes(file))), pq.read_metadata(io.BytesIO(bytes(file)))
            version = msgspec.json.decode(metadata.metadata[b"seaweedq"])["schema_id"]
            names = [one for one in schema.names if not one.startswith("_")]
            assert names == [one["name"] for one in fields_of(version)]

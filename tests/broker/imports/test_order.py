"""Imports beside publishes and other imports of the same keys: the order of what was acknowledged holds."""

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pyarrow as pa
import pytest

from tests.support.http.uploading_files import Importer, numbered, parquet

pytestmark = pytest.mark.process

KEYS, ROWS = 5, 20_000


def named(count: int, who: str) -> pa.Table:
    values = [json.dumps({"who": who, "n": n}) for n in range(count)]
    return pa.table({"value": values, "_key": [f"k{n % KEYS}" for n in range(count)]})


def publish(importer: Importer, who: str, first: int, count: int) -> None:
    rows = [{"key": f"k{n % KEYS}", "value": {"who": who, "n": n}} for n in range(first, first + count)]
    answer = importer.http.post(f"{importer.path}/messages", json={"messages": rows})
    assert answer.status_code == 200, answer.text


def test_keys_keep_their_order(broker_process, importer_of):
    broker = broker_process("--import-batch-rows", "1000")
    importer = importer_of(broker.url)
    importer.make(initial_segments=3)
    publish(importer, "before", 0, 50)
    over = Event()

    def beside() -> int:
        count = 0
        with_own = importer_of(broker.url)
        while not over.is_set() or not count:
            publish(with_own, "beside", count, 20)
            count += 20
        return count

    with ThreadPoolExecutor(3) as pool:
        publisher = pool.submit(beside)
        uploads = [importer.upload(parquet(named(ROWS, who))) for who in ("a", "b")]
        answers = list(pool.map(lambda upload: importer_of(broker.url).ask(upload), uploads))
        over.set()
        assert [answer.json()["count"] for answer in answers] == [ROWS, ROWS]
        count = publisher.result()
    publish(importer, "after", 0, 50)
    table = importer.column()
    seen: dict[str, list[tuple[str, int]]] = {}
    for key, text in zip(table["_key"].to_pylist(), table["value"].to_pylist(), strict=True):
        value = json.loads(text)
        seen.setdefault(key, []).append((value["who"], value["n"]))
    totals = {"before": 50, "beside": count, "a": ROWS, "b": ROWS, "after": 50}
    for number in range(KEYS):
        found = seen[f"k{number}"]
        for who, total in totals.items():
            assert [n for one, n in found if one == who] == list(range(number, total, KEYS)), who
        assert {who for who, _ in found[:10]} == {"before"}
        assert {who for who, _ in found[-10:]} == {"after"}


def test_a_segment_that_splits_and_merges_meanwhile(broker_process, importer_of):
    broker = broker_process("--import-batch-rows", "1000")
    importer = importer_of(broker.url)
    importer.make()
    upload = importer.upload(parquet(numbered(60_000, keys=200)))
    assert importer.ask(upload, wait_s=0).status_code == 202
    split = importer.http.post(f"{importer.path}/segments/0/split", json={})
    assert split.status_code in (200, 202), split.text
    halves = [
        s["id"] for s in importer.http.get(f"{importer.path}/segments").json()["segments"] if s["state"] == "open"
    ]
    merged = importer.http.post(f"{importer.path}/segments/{halves[0]}/merge", json={"with": halves[1]})
    assert merged.status_code in (200, 202), merged.text
    assert importer.ended(upload)["count"] == 60_000
    table = importer.column()
    found: dict[str, list[int]] = {}
    for key, text in zip(table["_key"].to_pylist(), table["value"].to_pylist(), strict=True):
        found.setdefault(key, []).append(json.loads(text)["n"])
    assert found == {f"k{k}": list(range(k, 60_000, 200)) for k in range(200)}

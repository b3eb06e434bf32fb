"""Payloads in Spark: read on executors from a topic's files, checked; what is wrong fails the job or is null."""

import hashlib
from pathlib import Path
from typing import Any

import fsspec
import httpx
import pytest

from seaweedq.errors import ClientError
from seaweedq.spark.payloads import PayloadReader, windows, with_payloads
from tests.support.http.referring import naming, publish, read, upload
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.s3_service import KEY, SECRET, S3Service

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


def job(spark: Any, folder: Path, missing: str) -> dict[str, Any]:
    """What a session finds in a topic: rows with payloads, and what becomes of payloads that are large or gone."""
    frame = spark.read.parquet(str(folder))
    found: dict[str, Any] = {"columns": with_payloads(frame).columns}
    rows = with_payloads(frame).selectExpr("segment", "_offset", "value", "payload", "sha2(payload, 256) AS sum")
    found["rows"] = [
        [r.segment, r["_offset"], r.value, None if r.payload is None else r.payload.decode(), r.sum]
        for r in rows.collect()
    ]

    def fails(**options: Any) -> str:
        with pytest.raises(Exception) as caught:
            with_payloads(frame, **options).select("payload").collect()
        return str(caught.value)

    def nulls(**options: Any) -> list[bool]:
        made = with_payloads(frame, wrong="null", **options).orderBy("_offset")
        return [r.payload is None for r in made.collect()]

    found |= {"small": fails(max_bytes=4), "small_null": nulls(max_bytes=4)}
    Path(missing).unlink()
    return found | {"missing": fails(), "missing_null": nulls()}


@pytest.mark.long
@pytest.mark.process
@pytest.mark.spark
def test_a_topic_in_spark(spark: Any, http: httpx.Client, broker: BrokerProcess, topic: str) -> None:
    contents = [b"first", b"second", b""]
    made = [upload(http, topic, each) for each in contents]
    publish(http, topic, naming(made[0]), {"value": 1}, naming(made[1]), naming(made[2]))
    http.post(f"{topic}/flush")
    missing = read(http, topic)[2]["reference"]["uri"].removeprefix("file://")
    found = job(spark, broker.store / "topics" / topic.rpartition("/")[2], missing)
    assert found["columns"][-1] == "payload"
    sums = [hashlib.sha256(each).hexdigest() for each in contents]
    assert sorted(found["rows"]) == [
        [0, 0, None, "first", sums[0]],
        [0, 1, "1", None, None],
        [0, 2, None, "second", sums[1]],
        [0, 3, None, "", sums[2]],
    ]
    assert "max_bytes is 4" in found["small"]
    assert found["small_null"] == [True, True, True, False]
    assert missing in found["missing"]
    assert found["missing_null"] == [False, True, True, False]


def reference(path: Path, content: bytes, **other: Any) -> dict[str, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    found = {"uri": f"file://{path}", "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return {**found, "content_type": "a/b", **other}


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"sha256": "0" * 64}, "SHA-256"),
        ({"sha256": None}, "SHA-256"),
        ({"size": 6}, "has 7 bytes, not 6"),
        ({"size": 8}, "has 7 bytes, not 8"),
        ({"size": None}, "max_bytes"),
        ({"size": -1}, "max_bytes"),
        ({"size": 101}, "max_bytes"),
        ({"uri": None}, "is not the URI of a topic's payload"),
        ({"uri": "file:///etc/passwd"}, "is not the URI of a topic's payload"),
        ({"uri": "http://169.254.169.254/_payloads/t/20261121/x"}, "is not the URI of a topic's payload"),
        ({"uri": "s3://b/_payloads/t/20261121/x?versionId=1"}, "is not the URI of a topic's payload"),
        ({"uri": "file:///a/../_payloads/t/20261121/x"}, "is not the URI of a topic's payload"),
        ({"uri": "file:///nowhere/_payloads/t/20261121/x"}, "No such file"),
    ],
)
def test_what_is_wrong(tmp_path: Path, other: dict[str, Any], says: str) -> None:
    path = tmp_path / "_payloads/t/20261121/20261121-0-ab"
    good = reference(path, b"content")
    assert PayloadReader(100, "raise").read(good) == b"content"
    assert PayloadReader(100, "raise", f"file://{tmp_path}/").read(good) == b"content"
    with pytest.raises(ClientError, match=says):
        PayloadReader(100, "raise").read({**good, **other})
    assert PayloadReader(100, "null").read({**good, **other}) is None


def test_only_within(tmp_path: Path) -> None:
    good = reference(tmp_path / "_payloads/t/20261121/20261121-0-ab", b"content")
    with pytest.raises(ClientError, match="is not the URI of a topic's payload"):
        PayloadReader(100, "raise", "s3://bucket/").read(good)


def test_a_store_that_does_not_answer_is_no_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = reference(tmp_path / "_payloads/t/20261121/20261121-0-ab", b"content")

    def refuse(*_: Any, **__: Any) -> None:
        raise TimeoutError("no answer")

    monkeypatch.setattr(type(fsspec.filesystem("file")), "cat_file", refuse)
    with pytest.raises(TimeoutError):
        PayloadReader(100, "null").read(good)


@pytest.mark.service
@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_a_store_on_s3(moto_server: S3Service, scheme: str) -> None:
    options: dict[str, Any] = {"key": KEY, "secret": SECRET, "endpoint_url": moto_server.endpoint}
    path = f"{moto_server.place()}/q/_payloads/t/20261121/20261121-0-ab"
    fsspec.filesystem("s3", **options).pipe_file(path, b"content")
    found = {"uri": f"{scheme}://{path}", "size": 7, "sha256": hashlib.sha256(b"content").hexdigest()}
    assert PayloadReader(100, "raise", options=options).read(found) == b"content"
    with pytest.raises(ClientError, match="not 6"):
        PayloadReader(100, "raise", options=options).read({**found, "size": 6})
    assert PayloadReader(100, "null", options=options).read({**found, "uri": f"{scheme}://{path}c"}) is None


def test_windows_hold_so_many_bytes() -> None:
    sizes = [3, 3, None, 5, 11, 0, 1, 9, 9]
    references = [None if size is None else {"size": size} for size in sizes]
    found = list(windows(references, 10))
    assert found == [(0, 3), (3, 4), (4, 5), (5, 8), (8, 9)]
    assert list(windows([], 10)) == []

"""Files of a topic over HTTP, a page at a time, and the offsets of a time."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq import Client
from seaweedq.client.core.calls import TopicFile, topic_files
from tests.support import privates
from tests.support.brokers.changing import at, make
from tests.support.brokers.in_process_cluster import in_loop
from tests.support.http.asking import problem_of, send
from tests.support.processes.broker_process import BrokerProcess


def listed(http: httpx.Client, topic: str, **options: Any) -> list[dict[str, Any]]:
    """All files, page by page."""
    found: list[dict[str, Any]] = []
    while True:
        answer = http.get(f"{topic}/files", params=options).json()
        found += answer["files"]
        if "next" not in answer:
            return found
        options["after"] = answer["next"]


def ranges(files: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    return [(one["segment"], one["first_offset"], one["next_offset"]) for one in files]


@pytest.mark.process
@pytest.mark.parametrize("size", [2, 3, 1_000])
def test_all_rows_below_the_flushed_offsets_are_in_the_listed_files(
    http: httpx.Client, broker: BrokerProcess, topic: str, size: int
) -> None:
    assert listed(http, topic) == [], "a file without rows is none to read"
    for count in (3, 1, 4):
        send(http, topic, *range(count))
        http.post(f"{topic}/flush")
    http.post(f"{topic}/segments/0/split")
    for n in range(12):
        send(http, topic, n, key=str(n))
    http.post(f"{topic}/flush")
    send(http, topic, "in no file")
    files = listed(http, topic, page_size=size)
    flushed = {one["id"]: one["flushed_offset"] for one in http.get(f"{topic}/segments").json()["segments"]}
    assert ranges(files) == [(0, 0, 3), (0, 3, 4), (0, 4, 8), (1, 0, flushed[1]), (2, 0, flushed[2])]
    folder = Path(http.get(topic).json()["path"].removeprefix("file://"))
    for one in files:
        assert one["bytes"] == (folder / f"segment={one['segment']}" / one["name"]).stat().st_size
        if one["segment"]:
            assert one["schema_id"] == 0
            assert one["max_timestamp"].endswith("Z")
        else:
            assert one["schema_id"] is one["max_timestamp"] is None, "it is sealed, and nobody has read it since"
    for number in flushed:
        of_it = [one for one in files if one["segment"] == number]
        assert listed(http, topic, segment=number, page_size=size) == of_it
    assert listed(http, topic, segment=0, after=f"0/{files[0]['name']}", page_size=size) == files[1:3]


@pytest.mark.brokers
async def test_a_file_that_appears_after_the_positions_were_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing tells its end yet."""
    async with in_loop(tmp_path, 1) as together:
        (one,) = together.brokers
        await make(one)
        store = one.process.store
        listed_now = store.listed
        async with at(together, one) as http:

            async def listed_later(*place: Any, **more: Any) -> Any:
                monkeypatch.setattr(store, "listed", listed_now)
                await http.post("/v1/topics/t/messages", json={"value": 2})
                await http.post("/v1/topics/t/flush")
                return await listed_now(*place, **more)

            await http.post("/v1/topics/t/messages", json={"value": 1})
            await http.post("/v1/topics/t/flush")
            monkeypatch.setattr(store, "listed", listed_later)
            assert ranges((await http.get("/v1/topics/t/files")).json()["files"]) == [(0, 0, 1)]
            assert ranges((await http.get("/v1/topics/t/files")).json()["files"]) == [(0, 0, 1), (0, 1, 2)]


@pytest.mark.brokers
async def test_objects_of_somebody_else_in_a_topics_folder_take_nothing_down(tmp_path: Path) -> None:
    """They were 500 here, and took their segment down at its owner's next start."""
    async with in_loop(tmp_path, 1) as together:
        (one,) = together.brokers
        await make(one)
        others = ("_SUCCESS", "segment=0/.part", "segment=0/00000001.crc", "segment=0/_tmp/x", "segment=0/~", "x/y")
        for name in others:
            await one.process.store.create(f"topics/t/{name}", b"")
        async with at(together, one) as http:
            for value in range(3):
                await http.post("/v1/topics/t/messages", json={"value": value})
                await http.post("/v1/topics/t/flush")
            for size in (2, 3, 1_000):
                found, after = [], {}
                while after is not None:
                    params = {"page_size": size, **after}
                    answer = (await http.get("/v1/topics/t/files", params=params)).json()
                    found += answer["files"]
                    after = {"after": answer["next"]} if "next" in answer else None
                assert ranges(found) == [(0, 0, 1), (0, 1, 2), (0, 2, 3)]


@pytest.mark.process
def test_wrong_parameters(http: httpx.Client, topic: str) -> None:
    for params, says in (
        ({"page_size": "1"}, "page_size must be a whole number from 2 to 1000, not '1'"),
        ({"after": "0/../secret"}, "after must be a segment and the name of a file"),
        (
            {"after": "1/00000000-0000000000000000.parquet", "segment": "2"},
            "the parameter `after` names a file of segment 1, but",
        ),
        ({"segment": "x"}, "segment must be a whole number"),
    ):
        problem_of(http.get(f"{topic}/files", params=params), 422, "invalid-request", says)
    problem_of(http.get("/v1/topics/nothing/files"), 404, "topic-not-found", "nothing")
    problem_of(
        http.get(f"{topic}/files", params={"segment": "99"}), 404, "segment-not-found", "has no segment 99; it has 0"
    )
    for time in ("", "now", "5", "2026-01-31T12:00:00"):
        problem_of(http.get(f"{topic}/offsets", params={"timestamp": time}), 422, "invalid-request", "RFC 3339")


@pytest.mark.process
def test_the_offsets_of_a_time(http: httpx.Client, topic: str) -> None:
    for day in (1, 2, 3):
        send(http, topic, day, timestamp=f"2026-01-0{day}T00:00:00Z")
        if day < 3:
            http.post(f"{topic}/flush")
    for time, offset in (("2025-12-31T00:00:00Z", 0), ("2026-01-02T01:00:00+01:00", 1), ("2026-01-04T00:00:00Z", 3)):
        assert http.get(f"{topic}/offsets", params={"timestamp": time}).json() == {"offsets": {"0": offset}}
    assert http.get(f"{topic}/offsets", params={"timestamp": "2026-01-02T12:00:00Z"}).json() == {"offsets": {"0": 2}}
    send(http, topic, 4)  # now
    for ago in ("5m", "-5m", "1h30m"):
        assert http.get(f"{topic}/offsets", params={"timestamp": ago}).json() == {"offsets": {"0": 3}}
    problem_of(
        http.get(f"{topic}/segments/0/messages?wait_s=1m"), 422, "invalid-request", "must be from 0 to 30 seconds"
    )
    assert http.get(f"{topic}/segments/0/messages?offset=4&wait_s=1ms").json()["messages"] == []


@pytest.mark.brokers
async def test_any_broker_lists_files_and_owners_know_more_of_them(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 2) as together:
        first, second = together.brokers
        await make(first)
        async with at(together, first) as http:
            await http.post("/v1/topics/t/messages", json={"value": 1})
            await http.post("/v1/topics/t/flush")
        found = []
        for one in (first, second):
            async with at(together, one) as http:
                found.append((await http.get("/v1/topics/t/files")).json()["files"])
        known = {file["schema_id"] for files in found for file in files}
        assert known == {0, None}, "the owner has written it, the other one has never opened it"
        assert ranges(found[0]) == ranges(found[1])


@pytest.mark.process
def test_the_client_reads_all_pages(broker: BrokerProcess, http: httpx.Client, topic: str) -> None:
    send(http, topic, 1)
    http.post(f"{topic}/flush")
    with Client(broker.url) as client:
        (file,) = privates.run(client)(topic_files(topic.rsplit("/", 1)[-1]))
    assert isinstance(file, TopicFile)
    assert (file.path, file.first_offset, file.next_offset) == (f"segment=0/{file.name}", 0, 1)

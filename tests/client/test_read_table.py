"""`read_table` against files and a fake broker: complete to the end as of the call, and no row twice."""

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seaweedq import AsyncClient, Client
from seaweedq.errors import ClientError

STREAM = "application/vnd.apache.arrow.stream"


def _rows(first, end):
    texts = pa.array([f'"{n}"' for n in range(first, end)], pa.string())
    return pa.table({"_offset": pa.array(range(first, end), pa.int64()), "value": texts})


class Topic:
    """Segments 0 and 1: `ends` are acknowledged, `filed` of them in files. A fetch gives at most 3 rows."""

    def __init__(self, folder, filed, ends):
        self.folder, self.ends, self.fetched = folder / "topics" / "t t", ends, []
        for segment, bounds in filed.items():
            for sequence, (first, end) in enumerate(bounds):
                self.file(segment, sequence, first, end)

    def file(self, segment, sequence, first, end):
        path = self.folder / f"segment={segment}" / f"{sequence:08d}-{first:016d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(_rows(first, end), path)

    def __call__(self, request):
        path = request.url.path
        if path.endswith("/segments"):
            found = [{"id": n, "start_offset": 0, "end_offset": end} for n, end in self.ends.items()]
            return httpx.Response(200, json={"segments": found})
        if path.endswith("/messages"):
            assert request.headers["accept"] == STREAM
            return self.fetch(int(path.split("/")[-2]), int(request.url.params["offset"]))
        return httpx.Response(200, json={"path": f"file://{self.folder}"})

    def fetch(self, segment, offset):
        self.fetched.append((segment, offset))
        sink = pa.BufferOutputStream()
        end = min(offset + 3, self.ends[segment])
        table = _rows(offset, end)
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return httpx.Response(200, content=bytes(sink.getvalue()), headers={"next-offset": str(end)})


@pytest.fixture
def topic(tmp_path):
    return Topic(tmp_path, {0: [(0, 0), (0, 5), (5, 7)]}, {0: 11, 1: 2})


def _offsets(table):
    return sorted(zip(table["segment"].to_pylist(), table["_offset"].to_pylist(), strict=True))


def test_live_adds_exactly_what_is_in_no_file(topic):
    with Client("http://test", transport=httpx.MockTransport(topic)) as client:
        table = client.read_table("t t", live=True)
        assert _offsets(table) == [(0, n) for n in range(11)] + [(1, 0), (1, 1)]
        assert topic.fetched == [(0, 7), (0, 10), (1, 0)]
        assert table.schema.field("segment").type == pa.int32()
        assert _offsets(client.read_table("t t")) == [(0, n) for n in range(7)]


def test_a_flush_during_the_call_doubles_nothing(topic):
    answer = topic.__call__

    def flush_after_the_ends_are_known(request):
        found = answer(request)
        if request.url.path.endswith("/segments"):
            topic.ends = {0: 13, 1: 2}
            topic.file(0, 3, 7, 12)
        return found

    with Client("http://test", transport=httpx.MockTransport(flush_after_the_ends_are_known)) as client:
        assert _offsets(client.read_table("t t", live=True)) == [(0, n) for n in range(12)] + [(1, 0), (1, 1)]


def test_a_segment_that_came_to_be_meanwhile_comes_with_all_that_is_before_it(topic):
    """Of segment 0 the brokers have said 11, and of 2 nothing; then 0 gives way to 2, which gets a file at once."""
    answer, maps = topic.__call__, []

    def split_after_the_ends_are_known(request):
        if not request.url.path.endswith("/segments"):
            return answer(request)
        found = [{"id": n, "start_offset": 0, "end_offset": end, "state": "open"} for n, end in topic.ends.items()]
        maps.append(found)
        if len(maps) == 1:
            topic.ends = {0: 15, 1: 2, 2: 8}
            topic.file(2, 0, 0, 6)
        else:
            found[0]["state"] = "sealed"
        return httpx.Response(200, json={"segments": found})

    with Client("http://test", transport=httpx.MockTransport(split_after_the_ends_are_known)) as client:
        table = client.read_table("t t", live=True)
        assert _offsets(table) == [*((0, n) for n in range(15)), (1, 0), (1, 1), *((2, n) for n in range(6))]
        assert len(maps) == 2


def test_columns_are_pruned_and_unknown_ones_named(topic):
    with Client("http://test", transport=httpx.MockTransport(topic)) as client:
        table = client.read_table("t t", columns=["value"], live=True)
        assert table.column_names == ["value"]
        assert sorted(int(text.strip('"')) for text in table["value"].to_pylist()) == sorted([*range(11), 0, 1])
        with pytest.raises(ValueError, match="nonsense"):
            client.read_table("t t", columns=["nonsense"])


def test_what_retention_has_taken_is_left_out_also_while_its_files_are_there(topic):
    answer = topic.__call__

    def with_a_start(request):
        found = answer(request)
        if found.headers.get("content-type") == "application/json" and "path" in found.json():
            return httpx.Response(200, json=found.json() | {"start_offsets": {"0": 5}})
        return found

    with Client("http://test", transport=httpx.MockTransport(with_a_start)) as client:
        assert _offsets(client.read_table("t t")) == [(0, 5), (0, 6)]
        assert _offsets(client.read_table("t t", live=True)) == [(0, n) for n in range(5, 11)] + [(1, 0), (1, 1)]


def test_files_out_of_reach_are_an_error_that_says_where(topic):
    topic.folder = topic.folder.with_name("elsewhere")
    with (
        Client("http://test", transport=httpx.MockTransport(topic)) as client,
        pytest.raises(ClientError, match="elsewhere"),
    ):
        client.read_table("t t")


async def test_the_async_client_reads_the_same(topic):
    async with AsyncClient("http://test", transport=httpx.MockTransport(topic)) as client:
        assert (await client.read_table("t t", live=True)).num_rows == 13

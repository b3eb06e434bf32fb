"""`read_table` against files and a fake broker: complete to the end as of the call, and no row twice."""

from datetime import UTC, datetime, timedelta

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seaweedq import AsyncClient, Client
from seaweedq.errors import ClientError

CREATED = {"created_at": "2026-01-01T00:00:00Z"}
NOW = "2026-01-01T12:00:00Z"
STREAM = "application/vnd.apache.arrow.stream"


def _rows(first, end, expires):
    texts = pa.array([f'"{n}"' for n in range(first, end)], pa.string())
    times = pa.array([expires.get(n) for n in range(first, end)], pa.timestamp("us", tz="UTC"))
    return pa.table({"_offset": pa.array(range(first, end), pa.int64()), "value": texts, "_expires": times})


class Topic:
    """Segments 0 and 1: `ends` are acknowledged, `filed` of them in files. A fetch gives at most 3 rows. `expires` has
    the times of some offsets."""

    def __init__(self, folder, filed, ends, expires=None):
        self.expires = expires or {}
        self.folder, self.ends, self.fetched, self.start = folder / "topics" / "t t", ends, [], 0
        for segment, bounds in filed.items():
            for sequence, (first, end) in enumerate(bounds):
                self.file(segment, sequence, first, end)

    def file(self, segment, sequence, first, end):
        path = self.folder / f"segment={segment}" / f"{sequence:08d}-{first:016d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(_rows(first, end, self.expires), path)

    def __call__(self, request):
        path = request.url.path
        if path.endswith("/segments"):
            return httpx.Response(200, json={"segments": self.map(), "now": NOW})
        if path.endswith("/files"):
            return httpx.Response(200, json={"files": self.files()})
        if path.endswith("/messages"):
            assert request.headers["accept"] == STREAM
            options = request.url.params
            assert options["expired"] == "keep", "expiry is judged by the plan's time alone"
            return self.fetch(int(path.split("/")[-2]), int(options["offset"]), int(options["limit"]))
        if "/segments/" in path:
            problem = {"type": "/problems/segment-not-found", "title": "", "detail": "", "status": 404}
            return httpx.Response(404, json=problem)
        return httpx.Response(200, json={"path": f"file://{self.folder}", "format": "json", "schema": None, **CREATED})

    def map(self):
        """The segments; all rows that are in files now are flushed."""
        flushed = dict.fromkeys(self.ends, 0) | {one["segment"]: one["next_offset"] for one in self.files()}
        offsets = {
            n: {"start_offset": self.start, "flushed_offset": flushed[n], "end_offset": self.ends[n]} for n in self.ends
        }
        return [{"id": n, "state": "open", "predecessors": [], **CREATED, **those} for n, those in offsets.items()]

    def files(self):
        found = []
        for path in sorted(self.folder.glob("segment=*/*")):
            first, count = int(path.name[9:25]), pq.read_metadata(path).num_rows
            file = {"segment": int(path.parent.name[8:]), "name": path.name, "bytes": path.stat().st_size}
            if count:
                found.append(
                    file
                    | {"first_offset": first, "next_offset": first + count, "schema_id": None, "max_timestamp": None}
                )
        return found

    def fetch(self, segment, offset, limit):
        self.fetched.append((segment, offset))
        sink = pa.BufferOutputStream()
        end = min(offset + 3, offset + limit, self.ends[segment])
        table = _rows(offset, end, self.expires)
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
        assert _offsets(client.read_table("t t", live=True)) == [(0, n) for n in range(11)] + [(1, 0), (1, 1)]
        assert topic.fetched == [(0, 7), (0, 10), (1, 0)], "brokers return what was flushed since"


def test_a_segment_that_came_to_be_meanwhile_is_left_out_whole(topic):
    """Of segment 0 the brokers have said 11, and of 2 nothing; then 0 gives way to 2, which gets a file at once."""
    answer = topic.__call__

    def split_after_the_ends_are_known(request):
        found = answer(request)
        if request.url.path.endswith("/segments"):
            topic.ends = {0: 15, 1: 2, 2: 8}
            topic.file(2, 0, 0, 6)
        return found

    with Client("http://test", transport=httpx.MockTransport(split_after_the_ends_are_known)) as client:
        assert _offsets(client.read_table("t t", live=True)) == [*((0, n) for n in range(11)), (1, 0), (1, 1)]


def test_bounds_and_segments(topic):
    topic.ends = {0: 11, 1: 2, 2: 8}
    with Client("http://test", transport=httpx.MockTransport(topic)) as client:
        bounds = {"starting": {0: 2, 1: 1}, "ending": {0: 9}, "segments": [0, 1]}
        wanted = [(0, n) for n in range(2, 9)] + [(1, 1)]
        assert _offsets(client.read_table("t t", live=True, **bounds)) == wanted
        assert _offsets(client.read_table("t t", **bounds)) == [(0, n) for n in range(2, 7)]
        batches = [*client.read_batches("t t", live=True, **bounds)]
        assert len(batches) > 1
        assert _offsets(pa.Table.from_batches(batches)) == wanted
        with pytest.raises(ValueError, match="starting names segment 7"):
            client.read_table("t t", starting={7: 0})
        with pytest.raises(ValueError, match="has no time zone"):
            client.read_table("t t", ending=datetime(2026, 1, 1))


def test_what_has_expired_is_left_out_of_files_and_tails_alike(tmp_path):
    """Rows were judged where a broker returned them, and in files never."""
    noon = datetime.fromisoformat(NOW)
    moment = timedelta(microseconds=1)
    expires = {1: noon - moment, 2: noon, 3: noon + moment, 8: noon - moment, 9: noon, 10: noon + moment}
    topic = Topic(tmp_path, {0: [(0, 5), (5, 7)]}, {0: 12}, expires)
    with Client("http://test", transport=httpx.MockTransport(topic)) as client:
        alive = [(0, n) for n in (0, 3, 4, 5, 6, 7, 10, 11)]
        assert _offsets(client.read_table("t t", live=True)) == alive
        assert _offsets(pa.Table.from_batches(client.read_batches("t t", live=True))) == alive
        assert _offsets(client.read_table("t t", live=True, starting={0: 2}, ending={0: 11})) == alive[1:-1]
        assert _offsets(client.read_table("t t", live=True, expired="keep")) == [(0, n) for n in range(12)]
        values = client.read_table("t t", columns=["value"], live=True)
        assert values.column_names == ["value"]
        assert sorted(values["value"].to_pylist()) == sorted(f'"{n}"' for _, n in alive)
        for expired, count in (("skip", 8), ("keep", 12)):
            none = client.read_batches("t t", columns=[], live=True, expired=expired)
            assert sum(batch.num_rows for batch in none) == count
            assert client.read_table("t t", columns=[], live=True, expired=expired).shape == (count, 0)
        with pytest.raises(ValueError, match="expired must be one of 'skip', 'keep', not 'all'"):
            client.read_table("t t", expired="all")


def test_a_start_above_its_end_is_refused_before_brokers_are_asked():
    with Client("http://test", transport=httpx.MockTransport(lambda request: pytest.fail("asked"))) as client:
        with pytest.raises(
            ValueError,
            match=r"for segment 0, starting has offset 50, but ending has offset 10; the start must not be later",
        ):
            client.read_table("t", starting={0: 50, 1: 5}, ending={0: 10, 1: 5})
        later, earlier = datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
        with pytest.raises(
            ValueError,
            match=r"starting must not be later than ending, but starting is 2026-01-02T.*, and ending is 2026-01",
        ):
            client.read_table("t", starting=later, ending=earlier)


def test_no_file_is_opened_before_its_rows_are_read(topic, monkeypatch):
    """Of files that are not wanted nothing is read at all."""
    for path in (topic.folder / "segment=0").iterdir():
        if path.name.startswith("00000001"):
            damaged = path
    with Client("http://test", transport=httpx.MockTransport(topic)) as client:
        listed = topic.files()
        monkeypatch.setattr(topic, "files", lambda: listed)
        damaged.write_bytes(b"")
        assert _offsets(client.read_table("t t", starting={0: 5})) == [(0, 5), (0, 6)]


def test_columns_are_pruned_and_unknown_ones_named(topic):
    with Client("http://test", transport=httpx.MockTransport(topic)) as client:
        table = client.read_table("t t", columns=["value"], live=True)
        assert table.column_names == ["value"]
        assert sorted(int(text.strip('"')) for text in table["value"].to_pylist()) == sorted([*range(11), 0, 1])
        with pytest.raises(ValueError, match="nonsense"):
            client.read_table("t t", columns=["nonsense"])


def test_what_retention_took_is_left_out_while_its_files_are_still_there(topic):
    topic.start, topic.ends = 5, {0: 11}
    with Client("http://test", transport=httpx.MockTransport(topic)) as client:
        assert _offsets(client.read_table("t t")) == [(0, 5), (0, 6)]
        assert _offsets(client.read_table("t t", live=True)) == [(0, n) for n in range(5, 11)]


def test_files_out_of_reach_are_an_error_that_says_where(topic):
    answer, folder = topic.__call__, topic.folder

    def from_elsewhere(request):
        found = answer(request)
        if "path" in found.json():
            return httpx.Response(200, json=found.json() | {"path": f"file://{folder.with_name('elsewhere')}"})
        return found

    with (
        Client("http://test", transport=httpx.MockTransport(from_elsewhere)) as client,
        pytest.raises(ClientError, match="elsewhere"),
    ):
        client.read_table("t t")


async def test_the_async_client_reads_the_same(topic):
    async with AsyncClient("http://test", transport=httpx.MockTransport(topic)) as client:
        assert (await client.read_table("t t", live=True)).num_rows == 13
        batches = [batch async for batch in client.read_batches("t t", live=True)]
        assert _offsets(pa.Table.from_batches(batches)) == [(0, n) for n in range(11)] + [(1, 0), (1, 1)]


def test_a_topic_that_is_created_anew_between_map_and_topic(tmp_path):
    """The map is of the old topic, whose segment 0 has other rows; the read is of the new one as a whole."""
    old, new = Topic(tmp_path / "old", {0: [(0, 9)]}, {0: 9}), Topic(tmp_path / "new", {7: [(0, 2)]}, {7: 2})
    asked = []

    def brokers(request):
        asked.append(request.url.path)
        answer = (old if len(asked) == 1 else new)(request)
        if len(asked) > 1 and not request.url.path.endswith("/files"):
            answer = httpx.Response(200, content=answer.content.replace(b"2026-01-01", b"2026-01-02"))
        return answer

    with Client("http://b", transport=httpx.MockTransport(brokers)) as client:
        assert client.read_table("t t")["segment"].to_pylist() == [7, 7]
    assert [path.rsplit("/", 1)[-1] for path in asked] == ["segments", "t t", "segments", "t t", "files"]

"""Imports by the client and the command line: files of rows in, messages out, and what is asked again."""

import json
import signal
import subprocess
import sys

import httpx
import msgspec
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seaweedq import AsyncClient, Client
from seaweedq.cli.import_file import import_file
from seaweedq.client.core.uploading import format_of
from seaweedq.errors import (
    ConnectionFailed,
    InvalidImport,
    InvalidMessages,
    InvalidName,
    UploadConflict,
    UploadNotFound,
    WriteNotFound,
    WriteOutOfOrder,
)
from tests.support.processes.bounded_client import wait_for
from tests.support.processes.command import seaweedq

ROWS = [{"carrier": "UA", "n": n} for n in range(1000)]


def _lines(rows):
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def _values(client, topic):
    return [row["value"] for row in client.read_table(topic, ["value"], live=True).to_pylist()]


class _Answers:
    """A broker that gives these answers, one after the other, and remembers what it was asked."""

    def __init__(self, *answers):
        self.left, self.asked = list(answers), []

    def __call__(self, request):
        self.asked.append(request)
        answer = self.left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def _answer(state, count, rows=None, status=202):
    body = {"upload_id": "u", "state": state, "format": "ndjson", "count": count, "rows": rows, "segments": []}
    return httpx.Response(status, json={**body, "broker": None})


@pytest.mark.parametrize("name", ["a.parquet", "a.PARQUET", "a.ndjson", "a.jsonl", "a.arrow", "a.feather"])
def test_suffixes_say_the_format(name):
    assert format_of(name) in ("parquet", "ndjson", "arrow")


@pytest.mark.parametrize("name", ["", "a", "a.csv", "parquet"])
def test_what_has_no_such_suffix_must_be_said(name):
    with pytest.raises(ValueError, match=r"suffixes \.parquet"):
        format_of(name)


def test_it_is_asked_again_until_it_is_done_also_where_a_broker_goes():
    told = []
    broker = _Answers(
        _answer("checking", 0),
        httpx.ReadError("reset"),
        httpx.Response(503, json={"type": "/problems/not-ready", "title": "", "status": 503, "detail": "stopping"}),
        _answer("running", 3, 9),
        _answer("done", 9, 9, 200),
    )
    with Client("http://b", transport=httpx.MockTransport(broker), timeout_s=5) as client:
        done = client.import_upload("t", "u", "ndjson", rows=lambda *rows: told.append(rows))
    assert (done.upload_id, done.count) == ("u", 9)
    assert told == [(0, None), (3, 9), (9, 9)]
    assert {request.read() for request in broker.asked} == {b'{"upload_id":"u","format":"ndjson","bare":false}'}


def _written(state, status, **more):
    body = {"writer": "w", "number": 7, "state": state, "format": "parquet", "uploads": 2, "count": 0, "rows": None}
    return httpx.Response(status, json={**body, "segments": [], "broker": None, **more})


def test_a_write_is_asked_again_until_it_is_done():
    broker = _Answers(
        httpx.ReadError("reset"),
        httpx.Response(503, json={"type": "/problems/not-ready", "title": "", "status": 503, "detail": "stopping"}),
        _written("checking", 202),
        _written("done", 200, count=9, rows=9, duplicate=True),
    )
    with Client("http://b", transport=httpx.MockTransport(broker), timeout_s=5) as client:
        done = client.write("t", "w", 7, ("a", "b"), drawn=True)
    assert (done.writer, done.number, done.count, done.duplicate) == ("w", 7, 9, True)
    assert {str(request.url) for request in broker.asked} == {"http://b/v1/topics/t/writes/w/7?wait_s=30"}
    assert {request.method for request in broker.asked} == {"PUT"}
    body = {"uploads": ["a", "b"], "format": "parquet", "bare": False, "drawn": True}
    assert all(msgspec.json.decode(request.read()) == body for request in broker.asked)


def test_a_write_may_be_waited_for_a_while():
    broker = _Answers(_written("running", 202, rows=9, count=3), _written("running", 202, rows=9, count=4))
    with Client("http://b", transport=httpx.MockTransport(broker), timeout_s=5) as client:
        assert client.write("t", "w", 7, ["a"], wait_s=0).count == 3
        assert client.write("t", "w", 7, ["a"], wait_s=12.5).state == "running"
    assert [request.url.params["wait_s"] for request in broker.asked] == ["0", "13"]


def test_a_refused_write_says_which_it_was():
    refused = {"type": "/problems/write-out-of-order", "title": "", "status": 409, "detail": "no", "newest": 9}
    broker = _Answers(httpx.Response(409, json=refused))
    with Client("http://b", transport=httpx.MockTransport(broker)) as client:
        with pytest.raises(WriteOutOfOrder) as raised:
            client.write("t", "w", 7, ["a"])
        with pytest.raises(InvalidName):
            client.write("t", "w/..", 7, ["a"])
        with pytest.raises(ValueError, match="format must be"):
            client.write("t", "w", 7, ["a"], format="csv")
    assert raised.value.fields == {"newest": 9, "writer": "w", "number": 7}


@pytest.mark.long
def test_a_failure_names_the_upload_so_that_one_can_go_on():
    broker = _Answers(*[httpx.ConnectError("refused")] * 1000)
    with (
        Client("http://b", transport=httpx.MockTransport(broker), timeout_s=0.2) as client,
        pytest.raises(ConnectionFailed) as failed,
    ):
        client.import_upload("t", "u", "ndjson")
    assert failed.value.fields["upload_id"] == "u"


@pytest.mark.parametrize(("format", "bare"), [("csv", False), ("parquet", True), (None, False)])
def test_nothing_is_uploaded_for_what_makes_no_sense(format, bare):
    broker = _Answers()
    with (
        Client("http://b", transport=httpx.MockTransport(broker)) as client,
        pytest.raises(ValueError, match="format"),
    ):
        client.import_file("t", b"{}", format, bare)
    assert not broker.asked


@pytest.mark.process
def test_files_of_each_format_become_messages(real_client, tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"value": [json.dumps(row) for row in ROWS]}), path)
    told, rows = [], []
    real_client.create_topic("imported-1", key_field="carrier")
    done = real_client.import_file(
        "imported-1", path, progress=lambda *some: told.append(some), rows=lambda *some: rows.append(some)
    )
    assert (done.count, sum(part.count for part in done.segments)) == (1000, 1000)
    assert told[-1] == (path.stat().st_size,) * 2
    assert rows[-1] == (1000, 1000)
    assert real_client.import_upload("imported-1", done.upload_id, "parquet") == done
    (tmp_path / "rows.ndjson").write_bytes(_lines(ROWS))
    real_client.import_file("imported-1", tmp_path / "rows.ndjson", bare=True)
    real_client.import_file("imported-1", _lines({"value": row} for row in ROWS), "ndjson")
    found = [json.loads(value) for value in _values(real_client, "imported-1")]
    assert found == ROWS * 3


@pytest.mark.process
async def test_the_async_client_does_the_same(real_broker):
    async with AsyncClient(real_broker.url) as client:
        await client.create_topic("imported-2")
        done = await client.import_file("imported-2", _lines(ROWS), "ndjson", bare=True)
        assert done.count == 1000
        with pytest.raises(UploadConflict) as conflict:
            await client.import_upload("imported-2", done.upload_id, "parquet")
        assert conflict.value.fields["upload_id"] == done.upload_id
        with pytest.raises(UploadNotFound):
            await client.import_upload("imported-2", "20260131-0-" + 32 * "0", "parquet")


@pytest.mark.process
def test_a_wrong_row_or_file_takes_nothing(real_client):
    real_client.create_topic("imported-3")
    with pytest.raises(InvalidMessages) as wrong:
        real_client.import_file("imported-3", b'{"value": 1}\n{"val": 2}\n', "ndjson")
    assert [error["index"] for error in wrong.value.fields["errors"]] == [1]
    assert wrong.value.fields["upload_id"]
    with pytest.raises(InvalidImport):
        real_client.import_file("imported-3", b"no parquet", "parquet")
    assert _values(real_client, "imported-3") == []


def _command(broker, *arguments):
    return [sys.executable, "-m", "seaweedq", "import", *map(str, arguments), "--url", broker.url]


def _run(broker, *arguments):
    return seaweedq("import", *arguments, "--url", broker.url)


@pytest.mark.long
@pytest.mark.process
def test_the_command_imports(real_broker, real_client, tmp_path):
    real_client.create_topic("imported-4")
    path = tmp_path / "rows.ndjson"
    path.write_bytes(_lines(ROWS))
    done = _run(real_broker, "imported-4", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("imported 1,000 rows into imported-4 in ")
    path.write_bytes(_lines({"value": row, "key": "k"} for row in ROWS))
    assert _run(real_broker, "imported-4", path, "--envelope").returncode == 0
    assert [json.loads(value) for value in _values(real_client, "imported-4")] == ROWS * 2
    upload = real_client.upload("imported-4", path)
    for _ in range(2):
        again = _run(real_broker, "imported-4", "--upload", upload, "--format", "ndjson", "--envelope")
        assert again.stdout.startswith("imported 1,000 rows")
    assert len(_values(real_client, "imported-4")) == 3000


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "either FILE or --upload"),
        (["rows.parquet", "--upload", "u"], 2, "either FILE or --upload"),
        (["rows.csv"], 2, "suffixes"),
        (["rows.parquet", "--format", "csv"], 2, "must be one of parquet, ndjson, arrow"),
        (["rows.parquet", "--envelope"], 2, "--envelope"),
        (["none.parquet"], 2, "does not exist"),
        (["rows.parquet"], 1, "cannot be read as parquet"),
        (["rows.ndjson"], 1, "message 0 is not valid: not JSON from byte"),
        (["empty.ndjson"], 1, "no rows"),
        (["folder.ndjson"], 2, "is a directory"),
    ],
)
def test_the_command_says_what_is_wrong(real_broker, real_client, tmp_path, monkeypatch, arguments, code, said):
    monkeypatch.chdir(tmp_path)
    for name in ("rows.parquet", "rows.csv", "rows.ndjson"):
        (tmp_path / name).write_bytes(b"neither nor")
    (tmp_path / "empty.ndjson").touch()
    (tmp_path / "folder.ndjson").mkdir()
    real_client.create_topic("imported-5")
    done = _run(real_broker, "imported-5", *arguments)
    assert done.returncode == code
    assert said in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_the_command_says_how_to_go_on_where_brokers_do_not_answer(monkeypatch, capsys, tmp_path):
    """Whoever imported the file once more would have its rows twice."""
    broker = _Answers(*[httpx.ConnectError("refused")] * 1000)
    client = Client("http://b", transport=httpx.MockTransport(broker), timeout_s=0.2)
    monkeypatch.setattr(client, "upload", lambda *_, **__: "u1")
    monkeypatch.setattr("seaweedq.cli.import_file.connect", lambda _: client)
    (tmp_path / "rows.ndjson").touch()
    with pytest.raises(ConnectionFailed):
        import_file("t", tmp_path / "rows.ndjson", envelope=True)
    assert "seaweedq import t --upload u1 --format ndjson --envelope" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.process
def test_an_import_that_nobody_waits_for_goes_on(broker_process, tmp_path):
    """Ctrl-C ends the command, which says how to go on; the rows come all the same, and once."""
    broker = broker_process("--import-batch-rows", "1000", env={"SEAWEEDQ_FAIL_AT": "import.batch:3:stop"})
    path = tmp_path / "rows.ndjson"
    count = 30_000
    path.write_bytes(_lines({"n": n} for n in range(count)))
    with Client(broker.url) as client:
        client.create_topic("many")
        command = subprocess.Popen(_command(broker, "many", path), stderr=subprocess.PIPE, text=True)
        wait_for(lambda: psutil.Process(broker.process.pid).status() == psutil.STATUS_STOPPED)
        command.send_signal(signal.SIGINT)
        complaint = command.stderr.readline()  # before the import goes on, and ends
        broker.process.send_signal(signal.SIGCONT)
        command.communicate(timeout=30)
        assert command.returncode != 0
        upload = complaint.split("--upload ")[1].split()[0]
        assert client.import_upload("many", upload, "ndjson", bare=True).count == count
        assert [json.loads(value)["n"] for value in _values(client, "many")] == list(range(count))


@pytest.mark.process
def test_a_write_is_once_for_its_number(real_client, tmp_path):
    real_client.create_topic("written", key_field="carrier")
    pq.write_table(pa.table({"value": [json.dumps(row) for row in ROWS]}), tmp_path / "a.parquet")

    def uploaded(number):
        return [real_client.upload("written", tmp_path / "a.parquet", write=f"w/{number}") for _ in range(2)]

    done = real_client.write("written", "w", 7, uploaded(7))
    assert (done.state, done.count, done.rows, done.uploads, done.duplicate) == ("done", 2000, 2000, 2, False)
    assert sum(one.count for one in done.segments) == 2000
    again = real_client.write("written", "w", 7, uploaded(7))
    assert (again.count, again.duplicate) == (2000, True)
    with pytest.raises(WriteOutOfOrder) as raised:
        real_client.write("written", "w", 6, uploaded(6))
    assert raised.value.fields["newest"] == 7
    assert len(_values(real_client, "written")) == 2000
    assert [(one.writer, one.number, one.state) for one in real_client.writes("written")] == [("w", 7, "done")]
    assert real_client.last_write("written", "w").count == 2000
    with pytest.raises(WriteNotFound):
        real_client.last_write("written", "other")
    with pytest.raises(UploadConflict):
        real_client.publish("written", {"reference": {"upload_id": uploaded(8)[0]}})


@pytest.mark.process
def test_a_refused_row_takes_no_row_of_any_file(real_client, tmp_path):
    real_client.create_topic("refused-write")
    uploads = []
    for value in ("1", "{", "2"):
        pq.write_table(pa.table({"value": [value]}), tmp_path / "a.parquet")
        uploads.append(real_client.upload("refused-write", tmp_path / "a.parquet", write="w/0"))
    with pytest.raises(InvalidMessages) as raised:
        real_client.write("refused-write", "w", 0, uploads)
    assert raised.value.fields["upload_id"] == uploads[1]
    assert real_client.last_write("refused-write", "w").problem["type"] == "/problems/invalid-messages"
    assert _values(real_client, "refused-write") == []
    real_client.write("refused-write", "w", 0, [uploads[0], uploads[2]])
    assert sorted(_values(real_client, "refused-write")) == ["1", "2"]


@pytest.mark.process
async def test_the_async_client_writes(real_broker, tmp_path):
    pq.write_table(pa.table({"value": ["1"]}), tmp_path / "a.parquet")
    async with AsyncClient(real_broker.url) as client:
        await client.create_topic("async-write")
        upload = await client.upload("async-write", tmp_path / "a.parquet", write="w/0")
        assert (await client.write("async-write", "w", 0, [upload])).state == "done"
        assert [one.number for one in await client.writes("async-write")] == [0]

"""The command line against a real broker: what goes in comes out, and a pull that is cut off acks what it printed."""

import json
import os
import signal
import subprocess
import sys
from contextlib import closing

import pytest

from seaweedq import Client
from tests.support.cli.stand_in_fleet import until
from tests.support.processes.command import seaweedq

pytestmark = pytest.mark.process


@pytest.fixture
def client(real_broker):
    with Client(real_broker.url) as client:
        yield client


@pytest.fixture
def run(real_broker):
    def command(*arguments, stdin="", code=0):
        done = seaweedq(*arguments, "--url", real_broker.url, stdin=stdin)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    return command


def _command(broker, *arguments):
    return [sys.executable, "-m", "seaweedq", *arguments, "--url", broker.url]


def _lag(client, topic, subscription):
    return sum(segment["messages"] for segment in client.subscription(topic, subscription)["lag"])


def test_a_topic_from_creation_to_deletion(run, tmp_path):
    schema = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    run("topic", "create", "one", "--format", "typed", "--schema", str(tmp_path / "schema.json"), "--key-field", "a")
    run("topic", "create", "two", "--segments", "2", "--flush-max-age-s", "9")
    assert "--segments is 2, but the request states 3" in run("topic", "create", "two", "--segments", "3", code=1)
    listed = run("topic", "list")
    assert "one" in listed
    assert "two" in listed
    shown = run("topic", "show", "two")
    assert "segments  2 open" in shown
    assert "no subscription" in shown
    assert "max_age_s" not in shown
    assert "seaweedq sql 'SELECT" in shown
    assert "spark.read.parquet(" in shown
    assert ["flush.max_age_s", "9"] in [line.split() for line in run("topic", "show", "two", "--config").splitlines()]
    assert "in files" in run("topic", "flush", "two")
    assert "seaweedq: aborted" in run("topic", "delete", "two", stdin="n\n", code=1)
    run("topic", "delete", "two", stdin="y\n")
    assert "'two'" in run("topic", "show", "two", code=1)
    run("topic", "delete", "one", "--yes")


def test_ndjson_csv_and_envelopes_come_out_as_messages(run, client, tmp_path):
    said = run("publish", "in", "--key-field", "k", stdin='{"k": 1}\n{"k": "b"}\n')
    assert "published 2 messages to in (new topic) in" in said
    (tmp_path / "rows.csv").write_text("k,x\nc,1.5\n")
    run("publish", "in", str(tmp_path / "rows.csv"), "--key-field", "k", "--batch", "1")
    run("publish", "in", "--envelope", stdin='{"key": "d", "value": [1], "headers": {"h": "x"}}\n')
    out = run("pull", "in", "--subscription", "s", "--start", "earliest")
    messages = [json.loads(line) for line in out.splitlines()]
    assert [m["key"] for m in messages] == ["1", "b", "c", "d"]
    assert [m["value"] for m in messages] == [{"k": 1}, {"k": "b"}, {"k": "c", "x": 1.5}, [1]]
    assert messages[3]["headers"] == {"h": "x"}
    assert set(messages[0]) == {"id", "key", "value", "headers", "timestamp", "segment", "offset", "attempt"}
    assert run("pull", "in", "--subscription", "s") == ""
    client.publish("in", {"value": 5})
    with closing(client.subscribe("in", "s")) as messages:
        assert next(messages).value == 5
        said = run("pull", "in", "--subscription", "s")
        assert said == "other consumers of s hold 1 of the 1 message under leases, so it has none for you\n"


def test_invalid_records_are_named_in_a_line_with_publishes_beside_them(run, client):
    said, named = run("publish", "mixed", stdin='{"n": 1}\nno json\n{"n": 2}\n', code=1).strip().splitlines()
    assert said == "published 1 message to mixed; the remaining messages were not published:"
    assert named == "seaweedq: stdin:2: not JSON (column 1)"
    assert run("publish", "mixed", stdin="no json\n", code=1).startswith("published nothing to mixed:\n")
    assert client.topic("mixed")["messages"] == 1


def test_a_topic_is_changed_by_options(run, client):
    client.create_topic("changed", key_field="k", flush={"max_age_s": 9})
    run(
        "topic", "set", "changed", "--retention-max-age-s", "60", "--keep-unread", "--max-segments", "3", "--no-scaling"
    )
    facts = client.topic("changed")
    assert (facts["retention"]["max_age_s"], facts["retention"]["keep_unread"]) == (60, True)
    assert (facts["scaling"]["max_segments"], facts["scaling"]["enabled"], facts["flush"]["max_age_s"]) == (3, False, 9)
    run("topic", "set", "changed", "--default", "retention-max-age-s", "--default", "scaling", "--no-keep-unread")
    facts = client.topic("changed")
    assert (facts["retention"]["max_age_s"], facts["scaling"]["enabled"], facts["key_field"]) == (None, True, "k")
    said = run("topic", "set", "changed", "--retention-max-bytes", "1", "--dry-run")
    assert said.startswith(
        "this retention would delete 0 files, 0 bytes, 0 messages, including 0 that at least one subscription has not "
    )
    assert client.topic("changed")["retention"]["max_bytes"] is None
    assert ": --retention-max-age-s must be " in run("topic", "set", "changed", "--retention-max-age-s", "0.5", code=1)


def test_files_are_listed_with_their_rows(run, client):
    client.create_topic("filed")
    client.publish("filed", [{"value": n} for n in range(5)])
    assert "0 files, 0 rows, 0 bytes in file://" in run("topic", "files", "filed")
    client.flush("filed")
    (found,) = client.files("filed", segment=0)
    assert (found.first_offset, found.next_offset, found.path) == (0, 5, f"segment=0/{found.name}")
    (line,) = run("topic", "files", "filed", "-o", "json").splitlines()
    assert json.loads(line)["bytes"] == found.bytes
    assert f"1 file, 5 rows, {found.bytes:,} bytes in file://" in run("topic", "files", "filed", "--segment", "0")
    assert "'nope'" in run("topic", "files", "nope", code=1)


def test_invalid_records_are_left_out_where_that_is_asked_for(run, client, tmp_path):
    fields = [{"id": 1, "name": "n", "required": True, "type": "int"}]
    client.create_topic("whole", format="typed", schema={"type": "struct", "fields": fields})
    lines = ["no json", *(f'{{"n": {n if n % 3 else chr(34) + "x" + chr(34)}}}' for n in range(300)), '{"n": ']
    (tmp_path / "bad.ndjson").write_text("\n".join(lines))
    told = run("publish", "whole", str(tmp_path / "bad.ndjson"), "--skip-invalid").strip().splitlines()
    assert told[0].startswith("published 200 messages to whole in ")
    assert told[0].endswith(", skipped 102")
    assert len(told) == 103
    assert "seaweedq: bad.ndjson:1: not JSON (column 1)" in told
    assert "seaweedq: bad.ndjson:302: not JSON (cut off)" in told
    (second,) = (line for line in told if line.startswith("seaweedq: bad.ndjson:5:"))
    assert "n" in second.partition("bad.ndjson:5:")[2]
    assert client.topic("whole")["messages"] == 200


def test_a_publish_that_no_broker_answers_fails_at_once():
    where = ("--url", "http://127.0.0.1:9")
    done = seaweedq("publish", "t", *where, stdin="1\n", within_s=60)  # the producer would try for 120
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("seaweedq: no answer from http://127.0.0.1:9")


def test_no_ack_leaves_them_and_max_ends(run, client):
    client.publish("most", [{"value": n} for n in range(10)])
    assert len(run("pull", "most", "-s", "s", "--start", "earliest", "--max", "3", "--no-ack").splitlines()) == 3
    assert _lag(client, "most", "s") == 10
    assert len(run("pull", "most", "-s", "t", "--start", "earliest", "--max", "4").splitlines()) == 4
    assert _lag(client, "most", "t") == 6


@pytest.mark.parametrize(
    ("number", "options", "code"),
    [
        (signal.SIGINT, [], 0),
        (signal.SIGTERM, [], 0),
        (signal.SIGINT, ["--max", "51"], 130),
        (signal.SIGTERM, ["--max", "51"], 143),
    ],
)
def test_an_interrupt_ends_a_follow_and_what_was_printed_is_acked(real_broker, client, number, options, code):
    topic = f"follow-{number}-{code}"
    client.publish(topic, [{"value": n} for n in range(50)])
    command = _command(real_broker, "pull", topic, "-s", "s", "--start", "earliest", "--follow", *options)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        lines = [json.loads(process.stdout.readline()) for _ in range(50)]
        process.send_signal(number)
        rest, complaint = process.communicate(timeout=60)
    assert [line["value"] for line in lines] == list(range(50))
    said = f"pulled 50 messages of {topic}: acked\n".encode()
    assert (rest, complaint, process.returncode) == (b"", said, code)
    assert _lag(client, topic, "s") == 0


def test_a_closed_pipe_ends_it_quietly(real_broker, client):
    client.publish("pipe", [{"value": "x" * 1000} for _ in range(2000)])
    reader, writer = os.pipe()
    command = _command(real_broker, "pull", "pipe", "-s", "s", "--start", "earliest", "--follow")
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE) as process:
        os.close(writer)
        assert os.read(reader, 1000)
        os.close(reader)
        _, complaint = process.communicate(timeout=60)
    assert (complaint, process.returncode) == (b"", 0)
    assert 0 < _lag(client, "pipe", "s") < 2000


@pytest.mark.long
def test_bench_measures_what_it_was_told_to(run, client):
    figures = _objects(run("bench", "--messages", "2000", "--size", "200", "--consumers", "1", "-o", "json"))
    used = figures.pop()
    assert [(row["what"], row["messages"]) for row in figures] == [("publish", 2000), ("pull, ack", 2000)]
    assert used["what"] == "limits"
    assert {"client CPU", "broker CPU", "disk sync"} <= {one["limit"] for one in used["limits"]}
    assert all(one["share"] >= 0 for one in used["limits"])
    assert "limit" in used["verdict"]
    assert all(row["messages_per_s"] > 0 and 0 < row["p50_ms"] <= row["p99_ms"] for row in figures)
    for _ in range(15):  # on a busy machine a run may not reach its rate
        paced = _objects(run("bench", "--seconds", "1", "--rate", "100", "-o", "json"))
        if paced[-1]["verdict"] == "limited by --rate, which the run reached":
            break
    assert 80 <= paced[0]["messages"] <= 101
    assert paced[-1]["verdict"] == "limited by --rate, which the run reached"
    assert _benched(client) == []


def test_an_interrupt_ends_the_bench_and_it_prints_what_it_measured(real_broker, client):
    command = _command(real_broker, "bench", "--seconds", "3600", "-o", "json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until(lambda: any(each["end_offset"] for name in _benched(client) for each in client.segments(name)))
        process.send_signal(signal.SIGINT)
        figures, complaint = process.communicate(timeout=60)
    assert (process.returncode, complaint.startswith(b"seaweedq: interrupted")) == (130, True)
    assert [row["what"] for row in _objects(figures)] == ["publish", "pull, ack"]
    assert _benched(client) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_no_signal_leaves_the_topic_of_a_bench_behind(real_broker, client, number):
    command = _command(real_broker, "bench", "--seconds", "3600")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until(lambda: any(each["end_offset"] for name in _benched(client) for each in client.segments(name)))
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert _benched(client) == []


def _objects(text):
    return [json.loads(line) for line in text.splitlines()]


def _benched(client):
    return [topic["name"] for topic in client.topics() if topic["name"].startswith("bench-")]

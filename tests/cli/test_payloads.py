"""Payloads on the command line, against a real broker: whole files in, payloads out, and what makes no sense."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from random import Random

import pytest

from tests.support.processes.command import seaweedq

pytestmark = pytest.mark.process

MIB = 1024 * 1024


def _command(broker, *arguments):
    return [sys.executable, "-m", "seaweedq", *map(str, arguments), "--url", broker.url]


@pytest.fixture
def run(real_broker):
    """Runs a command: what it printed to stdout, and to stderr."""

    def command(*arguments, code=0):
        done = seaweedq(*arguments, "--url", real_broker.url)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        assert "token=" not in done.stderr
        return done.stdout, done.stderr

    return command


@pytest.fixture
def two_files(tmp_path):
    """Two files with nasty names."""
    paths = [tmp_path / "a film [bold].mp4", tmp_path / "-x.txt"]
    for path in paths:
        path.write_bytes(path.name.encode() + Random(path.name).randbytes(2 * MIB))
    return paths


def test_files_go_in_and_come_out_as_payloads(run, real_client, two_files, tmp_path):
    real_client.create_topic("cli-films")
    options = [part for path in two_files for part in ("--file", path)]
    out, complaint = run("publish", "cli-films", *options, "--key", "mine")
    assert (out, complaint) == (f"0-0 {two_files[0]}\n0-1 {two_files[1]}\n", "")
    real_client.publish("cli-films", {"value": 7})
    out, _ = run("pull", "cli-films", "-s", "s", "--start", "earliest", "--payloads", tmp_path / "out")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["key"] for line in lines] == ["mine", "mine", None]
    assert [line["reference"]["content_type"] for line in lines[:2]] == ["video/mp4", "text/plain"]
    assert [line.get("payload") for line in lines] == [str(tmp_path / "out" / n) for n in ("0-0.bin", "0-1.bin")] + [
        None
    ]
    assert [(tmp_path / "out" / f"0-{n}.bin").read_bytes() for n in (0, 1)] == [p.read_bytes() for p in two_files]
    assert len(list((tmp_path / "out").iterdir())) == 2
    assert sum(segment["messages"] for segment in real_client.subscription("cli-films", "s")["lag"]) == 0


def test_a_name_that_is_not_utf_8_is_shown_with_escapes(run, real_client, tmp_path):
    path = tmp_path / os.fsdecode(b"b\xff.bin")
    path.write_bytes(b"abc")
    real_client.create_topic("cli-bytes-name")
    shown = json.loads(run("publish", "cli-bytes-name", "--file", path, "-o", "json")[0])
    assert shown == {"id": "0-0", "path": f"{tmp_path}/b\\xff.bin"}


def test_without_payloads_the_reference_is_shown_and_nothing_is_fetched(run, real_client, two_files):
    real_client.create_topic("cli-shown")
    run("publish", "cli-shown", "--file", two_files[0], "--content-type", "a/b")
    line = json.loads(run("pull", "cli-shown", "-s", "s", "--start", "earliest")[0])
    assert line["value"] is None
    assert line["reference"]["content_type"] == "a/b"
    assert {"uri", "size", "sha256", "content_type", "url"} == set(line["reference"])
    assert "payload" not in line


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["rows.csv", "--file", "f"], "FILE"),
        (["--file", "f", "--input-format", "csv"], "--input-format"),
        (["--file", "f", "--key-field", "k"], "--key-field"),
        (["--file", "f", "--envelope"], "--envelope"),
        (["--file", "f", "--batch", "5"], "--batch"),
        (["--key", "k"], "--key"),
        (["rows.csv", "--content-type", "a/b"], "--content-type"),
        (["--file", "none"], "--file"),
        (["--file", "."], "--file"),
    ],
)
def test_options_that_do_not_go_together_are_named(real_broker, tmp_path, arguments, named):
    for name in ("rows.csv", "f"):
        (tmp_path / name).write_text("a\n1\n")
    command = _command(real_broker, "publish", "t", *arguments)
    env = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=env)
    assert done.returncode == 2
    assert named in done.stderr


def test_what_fails_is_named_and_the_others_are_told(run, real_client, two_files, tmp_path):
    real_client.create_topic("cli-limited", max_payload_bytes=2 * MIB + 10)
    out, complaint = run("publish", "cli-limited", "--file", two_files[1], "--file", two_files[0], code=1)
    assert out == f"0-0 {two_files[1]}\n"
    assert f"seaweedq: {two_files[0]}: " in complaint
    assert "the limit is" in complaint
    assert len(complaint.splitlines()) == 1
    assert run("publish", "cli-unknown", "--file", two_files[0])[0] == f"0-0 {two_files[0]}\n", "as of records"


def test_a_damaged_payload_is_not_printed_not_acked_and_leaves_no_file(
    run, real_broker, real_client, two_files, tmp_path
):
    real_client.create_topic("cli-damaged")
    run("publish", "cli-damaged", "--file", two_files[0])
    path = next((real_broker.store / "_payloads" / "cli-damaged").rglob("*-*"))
    path.chmod(0o600)
    path.write_bytes(b"!" + path.read_bytes()[1:])
    command = ["pull", "cli-damaged", "-s", "s", "--start", "earliest", "--payloads", tmp_path / "out"]
    out, complaint = run(*command, code=1)
    assert out == ""
    assert "SHA-256" in complaint
    assert list((tmp_path / "out").iterdir()) == []
    assert sum(segment["messages"] for segment in real_client.subscription("cli-damaged", "s")["lag"]) == 1


def test_a_terminal_gets_bars(real_broker, real_client, two_files):
    real_client.create_topic("cli-bars")
    ours, theirs = pty.openpty()
    command = _command(real_broker, "publish", "cli-bars", "--file", two_files[0])
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, env={**os.environ, "TERM": "xterm"}
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 4096):
                shown += data
        except OSError:  # how Linux ends a terminal
            pass
        assert process.wait(60) == 0
        assert process.stdout.read().startswith(b"0-0 ")
    os.close(ours)
    assert b"a film [bold].mp4" in shown
    assert b"2.1" in shown, "MB"


@pytest.mark.long
def test_an_interrupt_ends_it_amid_an_upload_and_leaves_nothing(real_broker, real_client, tmp_path):
    real_client.create_topic("cli-interrupted")
    path, command = tmp_path / "large", ("publish", "cli-interrupted", "--file", tmp_path / "large")
    with path.open("wb") as file:
        file.truncate(1024 * MIB)
    with subprocess.Popen(
        _command(real_broker, *command),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        _wait(lambda: any(size > 8 * MIB for size in _coming(real_broker)))
        process.send_signal(signal.SIGINT)
        out, complaint = process.communicate(timeout=30)
    assert process.returncode != 0
    assert (out, b"Traceback" in complaint) == (b"", False)
    _wait(lambda: not _coming(real_broker))
    assert real_client.topic("cli-interrupted")["messages"] == 0
    assert not list((real_broker.store / "_payloads" / "cli-interrupted").rglob("*-*"))


def _coming(broker):
    """The sizes of what the store is taking."""
    sizes = []
    for path in (broker.store / "_tmp").glob("*"):
        with suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return sizes


def _wait(condition, within_s=60):
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)

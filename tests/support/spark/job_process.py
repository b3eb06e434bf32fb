"""`seaweedq spark JOB` in a process of its own, which can be killed with its JVM."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.fixtures.spark_session import java
from tests.support.paths import ROOT
from tests.support.spark import jvm

WITHIN_S = 240


def environment(**more: str) -> dict[str, str]:
    """What the process gets: nothing of S3's or of this project's but what is stated."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SEAWEEDQ_"))}
    own = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SUBMIT_OPTS": jvm.options(), "PYTHONPATH": str(ROOT)}
    return {**outer, **own, **more}


@contextmanager
def job(*arguments: object, env: Mapping[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """A job in a process of its own, killed at the end with its JVM."""
    java()
    given = [sys.executable, "-W", "ignore", "-m", "seaweedq", "spark", *map(str, arguments)]
    process = subprocess.Popen(
        [*given, "--master", "local[1]"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def run(*arguments: object, env: Mapping[str, str]) -> tuple[int, str, str]:
    """Runs a job to its end: its exit code, stdout and stderr."""
    with job(*arguments, env=env) as process:
        out, err = process.communicate(timeout=WITHIN_S)
        return process.returncode, out, err


def is_stopped(process: "subprocess.Popen[str]") -> bool:
    """Whether a fail point has stopped it."""
    assert process.poll() is None, process.communicate()
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

"""A standalone cluster of Spark on this machine: a master and workers, each a process of its own."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes.broker_process import free_port
from tests.support.spark import jvm

START_S, POLL_S = 120.0, 0.1


@contextmanager
def standalone(folder: Path, workers: int, environment: Mapping[str, str]) -> Iterator[str]:
    """Yields the URL of a master at which so many workers of one core each have registered. All are killed afterwards,
    with their executors."""
    folder.mkdir()
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    log = folder / "log"
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> None:
        from pyspark.find_spark_home import _find_spark_home

        home = Path(_find_spark_home())
        command = [str(home / "bin/spark-class"), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", *arguments]
        more = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_JAVA_OPTS": jvm.options()}
        more |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_NO_DAEMONIZE": "1"}
        with log.open("ab") as output:
            started.append(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                    env={**os.environ, **environment, **more},
                )
            )  # fmt: skip

    try:
        start("master.Master", "--port", str(port), "--webui-port", "0")
        _wait(log, "New state: ALIVE", 1, started)  # a worker that comes earlier tries again only after a while
        for number in range(workers):
            own = (
                "--host",
                f"127.0.0.{number + 1}",
                "--cores",
                "1",
                "--memory",
                "600m",
            )  # speculation takes another host
            own += ("--webui-port", "0", "--work-dir", str(folder / f"w{number}"))
            start("worker.Worker", *own, url)
        _wait(log, "Successfully registered with master", workers, started)
        yield url
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)  # a worker's executors are of its group
            process.wait()


def _wait(log: Path, line: str, count: int, started: list[subprocess.Popen[bytes]]) -> None:
    end = time.monotonic() + START_S
    while len(re.findall(line, log.read_text(errors="replace"))) < count:
        assert all(process.poll() is None for process in started), log.read_text(errors="replace")[-4000:]
        assert time.monotonic() < end, f"not ready within {START_S} s: {log.read_text(errors='replace')[-4000:]}"
        time.sleep(POLL_S)

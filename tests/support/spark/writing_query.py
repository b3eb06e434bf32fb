"""A query that writes files of JSON into a topic until all is written: a process of its own, which can be killed with
its JVM. And a proxy before the broker, which has the query die at a step of its write.

Run from the root of the repository: python -m tests.support.spark.writing_query URL TOPIC FOLDER.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import httpx

from tests.support.paths import ROOT
from tests.support.spark import jvm
from tests.support.spark.application import ALWAYS

WITHIN_S = 120
OWN = ("host", "connection", "content-length", "transfer-encoding")


class Killed(Protocol):
    """Processes that can be killed."""

    def kill(self) -> None:
        """Ends them with SIGKILL."""


class WritingQuery:
    """The process of the query, started at a broker, or at what stands before it."""

    def __init__(self, folder: Path, topic: str) -> None:
        self._folder, self._topic = folder, topic
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, url: str) -> int:
        """Runs it to its end, and returns how it ended."""
        command = [sys.executable, "-W", "ignore", "-m", __name__, url, self._topic, str(self._folder)]
        given = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        given["SPARK_SUBMIT_OPTS"] = jvm.options()
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **given}, stdout=log, stderr=log, start_new_session=True
            )
        return self._process.wait(WITHIN_S)

    def kill(self) -> None:
        """SIGKILL of the driver, its workers and its JVM."""
        if self._process:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


@contextmanager
def deadly(broker: str, query: Killed, place: str = "commit") -> Iterator[str]:
    """The URL of a proxy that kills the query when it puts a write, before the broker has it; at `answer` behind that,
    and at `upload` when it begins its second upload."""
    begun = count()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def relay(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            kept = {name: value for name, value in self.headers.items() if name.lower() not in OWN}
            puts, posts = self.command == "PUT" and "/writes/" in self.path, self.command == "POST"
            if (place == "commit" and puts) or (place == "upload" and posts and next(begun)):
                query.kill()
                return
            answer = http.request(self.command, self.path, headers=kept, content=body)
            if place == "answer" and puts:
                query.kill()
                return
            self.send_response_only(answer.status_code)
            for name, value in answer.headers.items():
                if name not in (*OWN, "content-encoding"):
                    self.send_header(name, value)
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_PUT = do_POST = do_DELETE = relay

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with httpx.Client(base_url=broker, trust_env=False, timeout=60) as http:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def main(url: str, topic: str, folder: Path) -> None:
    """Runs the query."""
    from pyspark.sql import SparkSession

    own = {"spark.local.dir": str(folder / "scratch"), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    spark = SparkSession.builder.master("local[2]").config(map={**ALWAYS, **own}).getOrCreate()
    rows = spark.readStream.schema("_key string, value string").json(str(folder / "in")).repartition(3)
    writer = rows.writeStream.format("seaweedq").options(url=url, topic=topic, maxFileBytes="1")
    place = writer.option("checkpointLocation", str(folder / "checkpoint"))
    place.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))

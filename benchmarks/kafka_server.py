"""Apache Kafka under measurement: one node in KRaft mode, which is broker and controller, with its defaults of
durability: it acknowledges what is in the page cache."""

import os
import socket
import subprocess
import sys
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import which

from benchmarks.cluster_processes import free_port
from benchmarks.server import Server

HOME = Path(sys.prefix) / "kafka"  # where `make kafka` puts the jars, and librdkafka for Python
READY_S, POLL_S = 60.0, 0.1
SETTINGS = """
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
log.dirs={folder}/log
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


def missing() -> str | None:
    """Returns why Kafka cannot be measured here; None if it can."""
    if which("java") is None:
        return "no Java"
    if not any(HOME.glob("*.jar")) or not (HOME / "python" / "confluent_kafka").is_dir():
        return "no Kafka: `make kafka` fetches it with Maven"
    return None


@contextmanager
def kafka(folder: Path) -> Iterator[Server]:
    """A node on a folder, ready, with a heap of 1 GiB as Kafka's own script gives it; killed afterwards."""
    folder.mkdir()
    port, settings = free_port(), folder / "server.properties"
    settings.write_text(SETTINGS.format(port=port, controller=free_port(), folder=folder.resolve()))
    identity = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    java = ["java", "-Xmx1G", "-Xms1G", "-XX:+UseG1GC", "-cp", f"{HOME}/*"]
    with (folder / "kafka.log").open("wb") as log:
        form = ["kafka.tools.StorageTool", "format", "--standalone", f"--cluster-id={identity}", "-c", str(settings)]
        subprocess.run([*java, *form], check=True, stdout=log, stderr=log)
        process = subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=log, stderr=log, text=True)
    try:
        _wait(port, process, folder / "kafka.log")
        yield Server(process, port)
    finally:
        process.kill()
        process.wait()


def _wait(port: int, process: "subprocess.Popen[str]", log: Path) -> None:
    end = time.monotonic() + READY_S
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(POLL_S)
    raise RuntimeError(f"Kafka did not start: {log.read_text()[-2000:]}")


def environment() -> dict[str, str]:
    """The environment of a program that imports confluent_kafka."""
    path = [str(HOME / "python"), *filter(None, [os.environ.get("PYTHONPATH", str(Path.cwd()))])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}

"""A page's blocks, and their run as a reader types them: in order, in a folder of their own, against a real broker.

The text stays plain because ports come from the environment: the broker reads SEAWEEDQ_PORT, and curl, the commands and
the Python blocks read SEAWEEDQ_URL. A .curlrc makes curl fail if the answer is an error. Only blocks marked `sh` and
`python` are run. A `text` block right below one shows the whole of its output.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.support.paths import ROOT
from tests.support.processes.broker_process import BrokerProcess
from tests.support.spark import jvm

FIRST_HOUR = ("README.md", "docs/learn/tutorial.md")  # of a newcomer, in their order
DRILL = "docs/operate/drill.md"
SERVE = "seaweedq serve"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$(?:\n+```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
BLOCK_S = 120


class Block(NamedTuple):
    """A block that is run, and what the page shows as its output."""

    language: str
    text: str
    shown: str

    @property
    def starts_broker(self) -> bool:
        """Whether it is run in the background."""
        return self.text.startswith(SERVE) and "--help" not in self.text


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in order."""
    return [Block(*found) for found in BLOCK.findall((ROOT / page).read_text())]


class Page:
    """One reader: a folder, a broker in it, and the environment with the programs in `programs`."""

    def __init__(self, folder: Path, broker: BrokerProcess, programs: Path = Path(sys.executable).parent) -> None:
        self.folder, self.broker, self.programs = folder, broker, programs
        (folder / ".curlrc").write_text("fail-with-body\nshow-error\nsilent\n")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SEAWEEDQ_") and "proxy" not in k.lower()}
        self.process = {
            **inherited,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "SEAWEEDQ_PORT": str(broker.port),
            "SEAWEEDQ_URL": broker.url,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONUNBUFFERED": "1",  # as at a terminal: what one process prints is in order
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": jvm.options(),
            "COLUMNS": "120",
        }

    def serve(self, text: str) -> None:
        """Runs a block that starts a broker, in the background, until it is ready. The fixture ends it."""
        with self.broker.log_file.open("wb") as log:
            self.broker.process = subprocess.Popen(
                ["bash", "-euc", f"exec {text}"], cwd=self.folder, env=self.process, stdout=log, stderr=log
            )
        self.broker.wait_ready()

    def run(self, block: Block, folder: Path | None = None, **environment: str) -> str:
        """Runs a block to its end, and returns its output. Fails unless it succeeds."""
        shell = ["bash", "-euo", "pipefail", "-c"] if block.language == "sh" else [str(self.programs / "python"), "-c"]
        done = subprocess.run(
            [*shell, block.text],
            cwd=folder or self.folder,
            env={**self.process, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BLOCK_S,
        )
        assert done.returncode == 0, f"{block.text}\n--- output\n{done.stdout}"
        return done.stdout

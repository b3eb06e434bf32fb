"""The README's commands, and those of the pages below docs/, run as they are written, in order, against a real broker.

The text stays plain because ports come from the environment: the broker reads SEAWEEDQ_PORT, and curl, the commands and
the Python blocks read SEAWEEDQ_URL. A page without a block `seaweedq serve` gets a broker beforehand. Where a page has
one, what stands above it runs after it: readers look first, and start a broker then. A .curlrc makes curl fail where
the answer is an error. Only blocks marked `sh` and `python` are run.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.processes.broker_process import BrokerProcess
from tests.support.spark.standalone import QUICK
from tests.support.tiers import later

PAGES = [
    "README.md",
    "docs/tutorial.md",
    "docs/http.md",
    "docs/python.md",
    "docs/files.md",
    "docs/cli.md",
    "docs/operations.md",
    "docs/scaling.md",
    "docs/spark.md",
    "docs/security.md",
]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVE = "seaweedq serve"
# First lines of the blocks that are not run, and why.
LEFT_OUT = {
    "pip install '.[server,sql]'": "what runs the tests is installed already",
    "export SEAWEEDQ_PORT=8080 SEAWEEDQ_URL=http://127.0.0.1:8080": "the test chooses a free port",
}
BLOCK_S = 120


class Page:
    """One page's run: a folder, a broker in it, and the environment of whoever follows the page."""

    def __init__(self, folder: Path, broker: BrokerProcess) -> None:
        self.folder, self.broker = folder, broker
        (folder / ".curlrc").write_text("fail-with-body\nshow-error\nsilent\n")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SEAWEEDQ_") and "proxy" not in k.lower()}
        self.environment = {
            **inherited,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "SEAWEEDQ_PORT": str(broker.port),
            "SEAWEEDQ_URL": broker.url,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": QUICK,
            "COLUMNS": "120",
        }

    def serve(self, text: str) -> None:
        """Run a block that starts a broker, in the background, until it is ready. The fixture ends it."""
        with self.broker.log_file.open("ab") as log:
            self.broker.process = subprocess.Popen(
                ["bash", "-euc", f"exec {text}"], cwd=self.folder, env=self.environment, stdout=log, stderr=log
            )
        self.broker.wait_ready()

    def run(self, language: str, text: str) -> None:
        """Run a block to its end."""
        command = ["bash", "-euo", "pipefail", "-c", text] if language == "sh" else [sys.executable, "-c", text]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=BLOCK_S
        )
        assert done.returncode == 0, f"{text}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"


def blocks(page: str) -> list[tuple[str, str]]:
    """The blocks of a page that are to be run: (language, text)."""
    found = BLOCK.findall((ROOT / page).read_text())
    return [(language, text) for language, text in found if text.splitlines()[0] not in LEFT_OUT]


def starts_broker(text: str) -> bool:
    return text.startswith(SERVE) and "--help" not in text


def can_run(text: str) -> bool:
    """Whether this machine has what the block needs; in CI a missing Java is a failure."""
    return "pyspark" not in text or "CI" in os.environ or bool(shutil.which("java") or os.environ.get("JAVA_HOME"))


@pytest.fixture
def page(tmp_path: Path, broker_process: Callable[..., BrokerProcess]) -> Page:
    return Page(tmp_path, broker_process(data_dir=tmp_path / "seaweedq-data", start=False))


LATER = {  # many commands, each a process
    "docs/tutorial.md",
    "docs/python.md",
    "docs/files.md",
    "docs/cli.md",
    "docs/operations.md",
    "docs/spark.md",
}


@pytest.mark.parametrize("name", [later(name) if name in LATER else name for name in PAGES])
def test_every_block_runs_as_written(name: str, page: Page) -> None:
    todo = sorted(blocks(name), key=lambda block: not starts_broker(block[1]))
    assert todo, "a page in this list has blocks"
    if not any(starts_broker(text) for _, text in todo):
        page.serve(SERVE)
    for language, text in todo:
        if starts_broker(text):
            page.serve(text.strip())
        elif can_run(text):
            page.run(language, text)


def test_no_other_page_has_blocks_that_nobody_runs() -> None:
    pages = {str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]}
    assert {name for name in pages if BLOCK.search((ROOT / name).read_text())} == set(PAGES)


def test_what_is_left_out_is_there() -> None:
    first_lines = {text.splitlines()[0] for name in PAGES for _, text in BLOCK.findall((ROOT / name).read_text())}
    assert LEFT_OUT.keys() <= first_lines


def test_the_readme_starts_its_broker_without_any_option() -> None:
    starts = [text for text in re.findall(r"seaweedq serve.*", (ROOT / "README.md").read_text()) if "`" not in text]
    assert starts == [SERVE]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 200

"""The commands of pages run as they are written, in order, against a real broker. Those of README and tutorial are in
test_first_hour.py, those of the command line in test_command_examples.py, those of the drill in test_drill.py and
soak_drill.py.

A page without a block `seaweedq serve` gets a broker beforehand. Where a page has one, what stands above it runs after
it: readers look first, and start a broker then. A block prints what the page shows below it.
"""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.docs.page import DRILL, FIRST_HOUR, SERVE, Page, blocks
from tests.support.docs.printed import complaint
from tests.support.paths import ROOT
from tests.support.processes.broker_process import BrokerProcess
from tests.support.tiers import later

CREATES = re.compile(r"""(?:topic create |publish |(?:create_topic|publish)\("|PUT \S+/topics/)([\w.-]+)(?=[\s"])""")

PAGES = [
    "docs/reference/http.md",
    "docs/do/python.md",
    "docs/reference/files.md",
    "docs/operate/operations.md",
    "docs/internals/scaling.md",
    "docs/do/spark.md",
    "docs/operate/security.md",
]


def can_run(text: str) -> bool:
    """Whether this machine has what the block needs; in CI a missing Java is a failure."""
    uses_spark = "pyspark" in text or "seaweedq spark" in text
    return not uses_spark or "CI" in os.environ or bool(shutil.which("java") or os.environ.get("JAVA_HOME"))


@pytest.fixture
def page(tmp_path: Path, broker_process: Callable[..., BrokerProcess]) -> Page:
    return Page(tmp_path, broker_process(data_dir=tmp_path / "seaweedq-data", start=False))


LATER = {  # many commands, each a process
    "docs/do/python.md",
    "docs/reference/files.md",
    "docs/operate/operations.md",
    "docs/do/spark.md",
}


@pytest.mark.process
@pytest.mark.timeout(900)  # docs/do/spark.md starts a JVM for each of four blocks
@pytest.mark.parametrize("name", [later(name) if name in LATER else name for name in PAGES])
def test_every_block_runs_as_written(name: str, page: Page) -> None:
    todo = sorted(blocks(name), key=lambda block: not block.starts_broker)
    assert todo, "a page in this list has blocks"
    if not any(block.starts_broker for block in todo):
        page.serve(SERVE)
    for block in todo:
        if block.starts_broker:
            page.serve(block.text.strip())
        elif can_run(block.text):
            printed = page.run(block)
            assert not block.shown or not complaint(block.shown, printed), complaint(block.shown, printed)


def created(page: str) -> set[str]:
    """The topics that a page's blocks create."""
    return {name for block in blocks(page) for name in CREATES.findall(block.text)}


def test_no_two_pages_create_the_same_topic() -> None:
    """So a reader may follow the pages in any order, at one broker. The tutorial continues the README."""
    first_hour = {name for page in FIRST_HOUR for name in created(page)}
    assert first_hour >= {"orders", "flights", "readings", "purchases"}
    taken = dict.fromkeys(first_hour, FIRST_HOUR[0])
    for page in PAGES:
        again = created(page) & taken.keys()
        assert not again, f"{page}: {sorted(again)}, of {[taken[name] for name in sorted(again)]}"
        taken |= dict.fromkeys(created(page), page)


def test_no_other_page_has_blocks_that_nobody_runs() -> None:
    pages = {str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]}
    assert {name for name in pages if blocks(name)} == {*PAGES, *FIRST_HOUR, DRILL}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 200

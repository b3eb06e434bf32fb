"""README and tutorial, word for word, one after the other at one broker, by a reader who has what README's own
`pip install` brings and nothing else. The output of each block is the one that the page shows.

The environment is empty but for the packages that the install asks for, of the versions that run the tests: so that
neither another package hides that one is missing, nor a package index is needed.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.docs.page import FIRST_HOUR, SERVE, Block, Page, blocks
from tests.support.docs.printed import DOTS, complaint
from tests.support.installed import MB, for_pip
from tests.support.paths import ROOT
from tests.support.processes.broker_process import BrokerProcess

HOME = "/home/ann/seaweedq"  # the folder of the reader whose output the pages show
# First lines of the blocks that are not run, and why.
LEFT_OUT = {
    "git clone <URL of this repository> seaweedq": "needs the repository's host; the checkout is here",
    ". .venv/bin/activate": "the test has an environment, and chooses a free port",
}
INSTALL = re.compile(r"pip install '\.\[(.+)\]'\n")
STATED_MB = re.compile(r"([\d,]+) MB")
PRINTED_S = 30.0


def section(page: str, heading: str) -> str:
    """The text below a heading of the second level, without its blocks."""
    text = (ROOT / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def run_blocks(page: str) -> list[Block]:
    """The blocks of a page that are run."""
    return [block for block in blocks(page) if block.text.splitlines()[0] not in LEFT_OUT]


class Reader(Page):
    """One who follows the pages."""

    def compared(self, block: Block, printed: Callable[[], str]) -> None:
        """Fails unless a block prints what the page shows; a broker may take its time for it."""
        end = time.monotonic() + (PRINTED_S if block.starts_broker else 0)
        while told := complaint(block.shown, self.seen(printed())):
            assert time.monotonic() < end, f"{block.text}\n{told}"
            time.sleep(0.1)

    def seen(self, printed: str) -> str:
        """Output as if the reader had the folder and the port that the pages have."""
        return printed.replace(str(self.folder), HOME).replace(f":{self.broker.port}", ":8080")

    def follow(self, block: Block) -> None:
        """Does what a block says."""
        if block.starts_broker:
            if self.broker.alive:
                self.broker.terminate()
            self.serve(block.text.strip())
            shown = f"{block.shown.rstrip()}\n{DOTS}"  # it logs later on
            self.compared(block._replace(shown=shown), lambda: self.broker.log)
        else:
            printed = self.run(block)
            self.compared(block, lambda: printed)


@pytest.mark.process
@pytest.mark.long
def test_readme_and_tutorial_show_what_a_newcomer_sees(
    tmp_path: Path, broker_process: Callable[..., BrokerProcess]
) -> None:
    folder = tmp_path / "seaweedq"
    folder.mkdir()
    broker = broker_process(data_dir=folder / "seaweedq-data", start=False)
    readme, tutorial = map(run_blocks, FIRST_HOUR)
    [install] = [block for block in readme if INSTALL.match(block.text)]
    extras = INSTALL.fullmatch(install.text)
    assert extras
    environment, offline = for_pip(extras[1], tmp_path / "environment")
    reader = Reader(folder, broker, environment.folder / "bin")
    reader.run(install, ROOT, **offline)
    [stated] = STATED_MB.findall(section("README.md", "Quick start"))
    assert abs(environment.bytes / MB / int(stated) - 1) < 0.1, f"{environment.bytes / MB:.0f} MB"
    readme.remove(install)
    for block in [*sorted(readme, key=lambda block: not block.starts_broker), *tutorial]:
        reader.follow(block)


def test_what_is_left_out_is_there() -> None:
    first = {block.text.splitlines()[0] for page in FIRST_HOUR for block in blocks(page)}
    assert LEFT_OUT.keys() <= first


def test_the_readme_starts_its_broker_without_any_option() -> None:
    starts = [text for text in re.findall(r"seaweedq serve.*", (ROOT / "README.md").read_text()) if "`" not in text]
    assert starts == [SERVE]

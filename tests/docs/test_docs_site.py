"""The pages as `make docs` lays them out: all are in the navigation, and their links lead somewhere. MkDocs builds them
strictly in CI."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, ROOT / "scripts" / "docs_site.py", folder], check=True, cwd=ROOT)
    return folder


@pytest.mark.process
def test_each_page_is_in_the_navigation_once(site: Path) -> None:
    listed = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2])
    assert sorted(listed) == sorted(page.relative_to(site).as_posix() for page in site.rglob("*.md"))


@pytest.mark.process
def test_links_lead_to_pages_that_are_there(site: Path) -> None:
    for page in site.rglob("*.md"):
        for target in LINK.findall(FENCE.sub("", page.read_text())):
            there = os.path.normpath(page.parent / target)
            assert re.match("[a-z]+:", target) or os.path.exists(there), f"{page}: {target}"


@pytest.mark.process
def test_the_page_of_routes_has_their_texts(site: Path) -> None:
    page = (site / "reference" / "http.md").read_text()
    assert "#### `POST /v1/topics/{topic}/messages`" in page
    assert "When the broker answers, the messages are durable and readable." in page

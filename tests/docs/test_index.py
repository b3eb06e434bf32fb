"""docs/README.md lists each page of the documentation once."""

import re
from collections import Counter

from tests.support.paths import ROOT

DOCS = ROOT / "docs"


def test_each_page_is_listed_once() -> None:
    index = (DOCS / "README.md").read_text().partition("## All pages")[2]
    listed = Counter(re.findall(r"\]\(((?:[\w-]+/)+[\w-]+\.md)\)", index))
    pages = {
        str(page.relative_to(DOCS))
        for page in DOCS.rglob("*.md")
        if page.parent.name != "decisions" or page.stem == "README"
    }
    pages.remove("README.md")
    assert listed == Counter(pages)

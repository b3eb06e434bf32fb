"""On a package index the project has its repository's URLs, and a README whose links and picture work there."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

URL = "https://host.example/group/queue"
MADE_OF = ("pyproject.toml", "README.md", "LICENSE", "seaweedq/__init__.py", "scripts/index_metadata.py")


def metadata(folder: Path, origin: str | None) -> dict[str, Any]:
    """What hatchling makes of the project in a checkout of this remote."""
    for name in MADE_OF:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
    if origin is not None:
        subprocess.run(["git", "init", "--quiet", folder], check=True)
        subprocess.run(["git", "-C", folder, "remote", "add", "origin", origin], check=True)
    command = [sys.executable, "-m", "hatchling", "metadata"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.process
@pytest.mark.parametrize(
    "origin",
    [
        "https://ann:secret@host.example/group/queue.git",
        "git@host.example:group/queue.git",
        "ssh://git@host.example:2222/group/queue",
    ],
)
def test_urls_and_links_name_the_remote_and_no_token(tmp_path: Path, origin: str) -> None:
    found = metadata(tmp_path, origin)
    assert found["urls"]["Repository"] == URL
    assert all(url.startswith(URL) for url in found["urls"].values())
    text = found["readme"]["text"]
    assert "secret" not in json.dumps(found)
    assert f"git clone {URL} seaweedq" in text
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert f"{URL}/raw/HEAD/docs/images/readme.svg" in targets
    assert all(target.startswith("https://") for target in targets)
    for path in [one.removeprefix(f"{URL}/blob/HEAD/").partition("#")[0] for one in targets if "/blob/" in one]:
        assert (ROOT / path).exists(), path


@pytest.mark.process
@pytest.mark.parametrize("origin", [None, "/a/folder", "file:///a/folder", "../queue"])
def test_without_a_remote_that_has_a_page_there_are_no_urls(tmp_path: Path, origin: str | None) -> None:
    found = metadata(tmp_path, origin)
    assert "urls" not in found
    assert found["readme"]["text"] == (ROOT / "README.md").read_text()


def test_topics_are_ones_that_indexes_know() -> None:
    classifiers = pytest.importorskip("trove_classifiers").classifiers
    given = re.findall(r'^  "(\w[^"]* :: [^"]*)",$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert len([one for one in given if one.startswith("Topic :: ")]) > 3
    assert set(given) <= classifiers

"""Metadata that follows from the repository's place: URLs, and a README of which links and picture work on a package
index. hatchling calls it when it builds.

The place is the checkout's remote `origin`; no file names it, so that a fork's packages name the fork. Without a remote
there are no URLs, and the README is as it is. A source distribution has the result in its PKG-INFO.
"""

import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PLACE = re.compile(r"(?:(?:https?|ssh)://(?:[^@/]*@)?([\w.-]+)(?::\d+)?/|[\w.-]+@([\w.-]+):)(.+?)(?:\.git)?/?")
UNNAMED = "<URL of this repository>"
LINK = re.compile(r"(!?)(\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)")


class IndexMetadata(MetadataHookInterface):
    """hatchling's hook."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Adds the URLs and the README."""
        root = Path(self.root)
        text, url = (root / "README.md").read_text(encoding="utf-8"), repository(origin(root))
        if url:
            metadata["urls"] = urls(url)
            text = absolute(text, url).replace(UNNAMED, url)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def origin(root: Path) -> str:
    """Returns the address of the checkout's remote; empty for none, or if `root` is no checkout."""
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "remote", "get-url", "origin"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def repository(address: str) -> str:
    """Returns the page of a remote, without a user or a token; empty for one that has no page, such as a folder."""
    found = PLACE.fullmatch(address)
    return f"https://{found[1] or found[2]}/{found[3]}" if found else ""


def urls(url: str) -> dict[str, str]:
    """Returns the URLs of the project by their labels, which indexes know."""
    return {
        "Homepage": url,
        "Documentation": f"{url}/blob/HEAD/docs/README.md",
        "Repository": url,
        "Issues": f"{url}/issues",
        "Changelog": f"{url}/blob/HEAD/CHANGELOG.md",
    }


def absolute(text: str, url: str) -> str:
    """Returns Markdown of which relative links and pictures are absolute."""

    def link(found: re.Match[str]) -> str:
        picture, label, target = found.groups()
        return f"{picture}{label}({url}/{'raw' if picture else 'blob'}/HEAD/{target})"

    return LINK.sub(link, text)

"""Lay out the pages of the repository for MkDocs (mkdocs.yml): in build/docs, or the folder that is given.

Pages outside of docs/ get a place in it, README.md as home. Links are changed to the new places, and those to files
that are no pages become their text. The list of routes in reference/http.md gets the description of each route.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import http_doc

from seaweedq.api.app import route_table
from seaweedq.api.openapi import document_of

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "build" / "docs"
OUTSIDE = {  # pages outside of docs/, and their places
    "README.md": "index.md",
    "docs/README.md": "contents.md",
    "examples/README.md": "learn/examples.md",
    "examples/flights/README.md": "learn/flights.md",
    "helm/README.md": "operate/helm.md",
    "deploy/envoy/README.md": "operate/envoy.md",
    "benchmarks/RESULTS.md": "operate/results.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    "SECURITY.md": "internals/reporting.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def places() -> dict[str, str]:
    """The place of each page and picture in the site, by its path in the repository."""
    found = {path: place for path, place in OUTSIDE.items() if (ROOT / path).is_file()}
    for path in sorted((ROOT / "docs").rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if path.is_file() and name not in found:
            found[name] = path.relative_to(ROOT / "docs").as_posix()
    return found


def moved(text: str, path: str, at: dict[str, str]) -> str:
    """A page with the links that it needs in its new place."""

    def link(found: re.Match[str]) -> str:
        mark, words, target = found.groups()
        name, hash_, anchor = target.partition("#")
        if not name or re.match(r"[a-z]+:", target):
            return found[0]
        there = os.path.normpath(os.path.join(os.path.dirname(path), name))
        if there not in at:
            return words
        return f"{mark}[{words}]({os.path.relpath(at[there], os.path.dirname(at[path]))}{hash_}{anchor})"

    parts = FENCE.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


def routes() -> Iterator[str]:
    """The index of routes, with the description of each."""
    paths = document_of(route_table())["paths"]
    said = {f"{m.upper()} {path}": one["description"] for path, methods in paths.items() for m, one in methods.items()}
    for line in http_doc.routes(paths):
        found = re.match(r"- `([A-Z]+ /\S*)` — (.*)$", line)
        yield f"#### `{found[1]}`\n\n{found[2]}\n\n{said[found[1]]}\n\n" if found else line


def page(path: str, at: dict[str, str]) -> str:
    """A page as the site has it."""
    text = (ROOT / path).read_text()
    if path == "docs/reference/http.md":
        text = http_doc.with_part(text, "routes", "".join(routes()))
    return moved(text, path, at)


def main(arguments: list[str]) -> int:
    """Write all pages."""
    target = Path(arguments[0]) if arguments else TARGET
    shutil.rmtree(target, ignore_errors=True)
    at = places()
    for path, place in at.items():
        file = target / place
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            file.write_text(page(path, at))
        else:
            shutil.copyfile(ROOT / path, file)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

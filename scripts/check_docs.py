"""Check the targets of the documentation: links and anchors, files, tests; and that
the generated pages are up to date: docs/reference/cli.md, http.md in part, settings.md and
metrics.md.

Code blocks are left out: tests/docs runs them. Prints one line for each thing that is not there; exit code 1 if any.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import cli_doc
import http_doc
import metrics_doc
import settings_doc

ROOT = Path(__file__).parent.parent
SUFFIXES = (".py", ".md", ".toml", ".yaml", ".yml")
LEFT_OUT = {"build", "dist", "node_modules"}

FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
EXTERNAL = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
PATH = re.compile(r"[\w.-]+(/[\w.-]+)*/?")
TEST = re.compile(r"test_\w+")


def pages(root: Path) -> Iterator[Path]:
    """All Markdown files of the project."""
    for path in sorted(root.rglob("*.md")):
        parts = path.relative_to(root).parts[:-1]
        if not any(part.startswith(".") or part in LEFT_OUT for part in parts):
            yield path


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: dict[str, int] = {}
    made = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        count = found[slug] = found.get(slug, -1) + 1
        made.add(f"{slug}-{count}" if count else slug)
    return made


def broken_links(page: Path) -> Iterator[str]:
    """Links to files or headings that are not there."""
    text = CODE.sub("", FENCE.sub("", page.read_text()))
    for target in LINK.findall(text):
        if EXTERNAL.match(target):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if not file.exists():
            yield f"links to {target}, which is not there"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
            yield f"links to {target}, which is no heading there"


def missing_files(page: Path, root: Path) -> Iterator[str]:
    """Paths of the project in backticks that are not there. Modules may be named from seaweedq/ on."""
    for code in codes(page):
        if not PATH.fullmatch(code) or "/" not in code or code.startswith("."):
            continue
        ours = code.endswith(SUFFIXES) or (root / code.split("/", 1)[0]).is_dir()
        if ours and not any((base / code).exists() for base in (root, root / "seaweedq", page.parent)):
            yield f"names `{code}`, which is not there"


def missing_tests(page: Path, tests: str) -> Iterator[str]:
    """Tests in backticks that nobody has written."""
    for code in codes(page):
        if TEST.fullmatch(code) and not re.search(rf"\b{code}\b", tests):
            yield f"names the test `{code}`, which is not there"


def codes(page: Path) -> list[str]:
    """The texts in backticks on a page."""
    return [code.strip() for _, code in CODE.findall(FENCE.sub("", page.read_text()))]


def all_tests(root: Path) -> str:
    """Names of test modules, and all that they define."""
    modules = sorted((root / "tests").rglob("test_*.py"))
    return "\n".join(line for path in modules for line in (path.stem, *re.findall(r"def (test_\w+)", path.read_text())))


def complaints(root: Path) -> Iterator[str]:
    """Everything that is wrong, a line each."""
    tests = all_tests(root)
    for page in pages(root):
        for wrong in (*broken_links(page), *missing_files(page, root), *missing_tests(page, tests)):
            yield f"{page.relative_to(root)} {wrong}"


def main() -> int:
    """Check everything."""
    found = list(complaints(ROOT))
    for line in found:
        print(line, file=sys.stderr)
    late = [generated.main(["--check"]) for generated in (cli_doc, http_doc, settings_doc, metrics_doc)]
    return any(late) or bool(found)


if __name__ == "__main__":
    sys.exit(main())

"""Write the generated parts of docs/reference/http.md: the errors, from their classes, and the routes, from the OpenAPI
document; with --check, say whether they are up to date.

A route's own text stands in the docstring of its handler, which is its description in the document; an error's in that
of its class: there the words behind `fields:` are the members of the problem.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from seaweedq.api.app import route_table
from seaweedq.api.openapi import TAGS, document_of
from seaweedq.api.problems import STATUS
from seaweedq.errors import ClientError, RateLimited, SeaweedqError, by_slug

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "http.md"
NEVER_SENT = {"bad-request", "unfit-store", "level-mismatch", "data-folder-in-use"}  # bases, and what ends a start
INTERNAL = "A defect of the broker; its log has the details."
COMMON = {"422", "503"}  # statuses of every route
OF_TOKENS = {"401", "403"}  # of those that need a token
OF_BODIES = {"400", "408", "413", "415"}  # and of those that take a JSON body


def errors() -> Iterator[str]:
    """The table of errors, by status."""
    yield "| status | type | meaning | members |\n| --- | --- | --- | --- |\n"
    sent = [
        (STATUS[kind], slug, kind)
        for slug, kind in by_slug().items()
        if slug not in NEVER_SENT and not issubclass(kind, ClientError)
    ]
    for status, slug, kind in sorted(sent, key=lambda one: one[:2]):
        text = INTERNAL if kind is SeaweedqError else " ".join((kind.__doc__ or "").split("\n\n")[0].split())
        meaning, _, fields = text.partition("; fields: ")
        members = re.sub(r"(?:(?<=, )|^)`?(\w+)`?(?= \(|,|$)", r"`\1`", fields.partition(". ")[0].rstrip("."))
        yield f"| {status} | `{slug}` | {meaning.rstrip('.')} | {members} |\n"


def routes(paths: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The lists of routes, one for each part of the document."""
    operations = [(method.upper(), path, one) for path, methods in paths.items() for method, one in methods.items()]
    for tag in TAGS:
        yield f"\n### {tag.capitalize()}: routes\n\n"
        for method, path, one in operations:
            if one["tags"] == [tag]:
                right = one.get("x-action") or ("*" if "security" in one else "")
                more = "; ".join(filter(None, (right, ", ".join(own_errors(one)))))
                yield f"- `{method} {path}`: {one['summary']}{f' ({more})' if more else ''}\n"


def own_errors(operation: Mapping[str, Any]) -> list[str]:
    """The statuses of errors that not every such route has."""
    answers: Mapping[str, Any] = operation["responses"]
    common = COMMON | (OF_TOKENS if "security" in operation else set())
    if answers.get("429", {}).get("description") == RateLimited.title:
        common |= {"429"}
    if answers.keys() >= OF_BODIES:
        common |= OF_BODIES
    return sorted(status for status in answers if status >= "400" and status not in common)


def filled(text: str) -> str:
    """The page with its generated parts."""
    parts = {"errors": errors(), "routes": routes(document_of(route_table())["paths"])}
    for name, lines in parts.items():
        text = with_part(text, name, "".join(lines).strip())
    return text


def with_part(text: str, name: str, made: str) -> str:
    """The page with one generated part."""
    [begin] = re.findall(rf"<!-- {name}: .*? -->\n", text)
    before, _, behind = text.partition(begin)
    return f"{before}{begin}\n{made}\n\n<!-- end -->{behind.partition('<!-- end -->')[2]}"


def main(arguments: list[str]) -> int:
    """Write the page, or check it."""
    there = PAGE.read_text()
    text = filled(there)
    if "--check" not in arguments:
        PAGE.write_text(text)
    elif there != text:
        print(f"{PAGE.name} is out of date: run python scripts/http_doc.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

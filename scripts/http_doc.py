"""Write the generated parts of docs/reference/http.md: the errors, from their classes, and the routes, from the OpenAPI
document; with --check, say whether they are up to date.

A route's own text stands in the docstring of its handler, which is its description in the document; an error's in that
of its class.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from seaweedq.api.app import route_table
from seaweedq.api.openapi import TAGS, document_of, sent_errors

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "http.md"
PLAIN = {  # types that say all that the texts of their classes say
    "denial-not-found",
    "invalid-request",
    "lease-of-another",
    "message-too-large",
    "method-not-allowed",
    "missing-content-type",
    "not-acceptable",
    "principal-not-found",
    "request-too-large",
    "schema-not-found",
    "segment-not-found",
    "subscription-exists",
    "subscription-not-found",
    "token-not-found",
    "topic-being-deleted",
    "topic-exists",
    "topic-not-found",
    "unsupported-content-type",
    "unsupported-encoding",
    "upload-expired",
    "upload-incomplete",
}


def errors() -> Iterator[str]:
    """The list of errors, by status."""
    sent = sent_errors()
    for status, slug, meaning, _ in sent:
        if slug not in PLAIN:
            yield f"- {status} `{slug}`: {meaning}.\n"
    plain = ", ".join(f"{status} `{slug}`" for status, slug, _, _ in sent if slug in PLAIN)
    yield f"\nThe types of these errors need no explanation: {plain}.\n"


def routes(paths: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The lists of routes, one for each part of the document."""
    operations = [(method.upper(), path, one) for path, methods in paths.items() for method, one in methods.items()]
    for tag in TAGS:
        yield f"\n### {tag.capitalize()}: routes\n\n"
        for method, path, one in operations:
            if one["tags"] == [tag]:
                right = one.get("x-action") or ("*" if "security" in one else "")
                needs = {"": "", "*": "callers need a valid token"}.get(right, f"access right `{right}`")
                yield f"- `{method} {path}` — {one['summary']}{f' ({needs})' if needs else ''}\n"


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

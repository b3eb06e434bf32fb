"""Converts problem documents to errors, and tells which answers may be tried again."""

from typing import Any

import msgspec

from seaweedq.client.core.protocol.effects import Reply
from seaweedq.errors import ClientError, ConnectionFailed, SeaweedqError, ServerProblem, Unavailable, by_slug

# 502 and 504 are what a proxy says in a broker's place.
TRANSIENT = frozenset({408, 429, 502, 503, 504})
_ABSTRACT = {SeaweedqError, ClientError, ServerProblem, ConnectionFailed}
_MEMBERS = ("type", "title", "status", "detail")


def check(reply: Reply) -> Reply:
    """Returns the reply itself if it is a success; else raises the error that it states."""
    if 200 <= reply.status < 300:
        return reply
    raise error_of(reply)


def error_of(reply: Reply) -> SeaweedqError:
    """Returns the error that a reply states: by the slug of its problem, with the problem's further members as fields.

    A problem without a class of its own becomes a ServerProblem with `status` and `type`.
    """
    document = _document(reply)
    slug = str(document.get("type", "")).rpartition("/")[2]
    detail = str(document.get("detail") or document.get("title") or f"the server answered {reply.status}")
    fields: dict[str, Any] = {name: value for name, value in document.items() if name not in _MEMBERS}
    kind = by_slug().get(slug)
    if kind is None or kind in _ABSTRACT:
        fields.pop("self", None)
        return ServerProblem(detail, **{**fields, "status": reply.status, "type": document.get("type", "about:blank")})
    if issubclass(kind, Unavailable):
        fields["retry_after_s"] = round(retry_after_s(reply) or 1)
    return kind(detail, **fields)


def retry_after_s(reply: Reply) -> float:
    """Returns the seconds of a Retry-After header; 0 without one (and for a date, which no broker sends)."""
    try:
        return max(0.0, float(reply.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0


def _document(reply: Reply) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(reply.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return document if isinstance(document, dict) else {}

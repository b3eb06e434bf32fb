"""Converts problem documents and a store's answers to errors, and tells which answers may be tried again."""

import re
from typing import Any
from urllib.parse import urlsplit

import msgspec

from seaweedq.client.core.effects import Reply
from seaweedq.errors import (
    BadRequest,
    ClientError,
    ConnectionFailed,
    Forbidden,
    RequestTimeout,
    SeaweedqError,
    ServerProblem,
    Unavailable,
    UploadExpired,
    UploadIncomplete,
    UploadMismatch,
    by_slug,
)

# 502 and 504 come from a proxy in a broker's place.
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
    try:
        document = msgspec.json.decode(reply.body)
    except msgspec.DecodeError:
        document = {}
    document = document if isinstance(document, dict) else {}
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


_CODE = re.compile(rb"<Code>([A-Za-z0-9]{1,64})</Code>")
# S3's codes for bytes that are not those for which the URL was made.
_OTHER_BYTES = frozenset(
    {"BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch", "EntityTooLarge"}
)
# Of a token that is too old, or of a body that did not come whole.
_PASSING = (Forbidden, RequestTimeout, UploadExpired, UploadIncomplete)


def bare(url: str) -> str:
    """Returns a URL without its permission: no query, no user, no fragment."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def refusal(reply: Reply, what: str) -> SeaweedqError:
    """Returns the error in the answer of a store, or of the broker in its place. `what` was to be done."""
    if "problem+json" in reply.headers.get("content-type", ""):
        return error_of(reply)
    found = _CODE.search(reply.body)
    code = found[1].decode() if found else ""
    if code in _OTHER_BYTES:
        return UploadMismatch(
            f"{what}: the store refused the bytes, because they differ from the announced bytes ({code})"
        )
    said = f"{reply.status} {code}".strip()
    return ClientError(f"{what}: {bare(reply.url)} answered {said}", status=reply.status, code=code)


def final(error: SeaweedqError) -> bool:
    """Tells whether a new URL cannot help, because the request itself is wrong."""
    return isinstance(error, BadRequest) and not isinstance(error, _PASSING)


def is_there(reply: Reply) -> bool:
    """Tells whether a put was refused because the object exists; `complete` checks whether it is the right one."""
    if reply.status == 412:
        return True
    return reply.status == 409 and b"/problems/upload-conflict" in reply.body

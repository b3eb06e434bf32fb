"""Signed URLs: their printable form, and the meaning of a store's answers to them."""

import re
from urllib.parse import urlsplit

from seaweedq.client.core.protocol.effects import Reply
from seaweedq.client.core.protocol.problems import error_of
from seaweedq.errors import (
    BadRequest,
    ClientError,
    Forbidden,
    RequestTimeout,
    SeaweedqError,
    UploadExpired,
    UploadIncomplete,
    UploadMismatch,
)

_CODE = re.compile(rb"<Code>([A-Za-z0-9]{1,64})</Code>")
# What S3 says where the bytes are not those that the URL was made for.
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
        return UploadMismatch(f"{what}: the store refused the bytes, since they differ from those announced ({code})")
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

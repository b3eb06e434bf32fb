"""Problems as `google.rpc.Status`: the code, and ErrorInfo, BadRequest and RetryInfo as details. Pure.

A code follows from the HTTP status, and from the type of the problem if it says more. ErrorInfo has the last part of
the problem's type in capitals as its reason, and the members of the problem as its metadata.

A status is a header, of which clients of gRPC take 8 KiB: the message stands there twice, once in percents, which
triple it, and once with all details in base64. So bytes count, and not characters.
"""

from collections.abc import Mapping
from typing import Any

import grpc
import msgspec
from google.rpc import error_details_pb2, status_pb2

from seaweedq.api.problems import problem
from seaweedq.errors import SeaweedqError

DOMAIN = "seaweedq"
MAX_TEXT_BYTES = 500  # of the message, and of the reason for a violation
MAX_MEMBER_BYTES, MAX_METADATA_BYTES = 1000, 2000
MAX_STATUS_BYTES = 4500  # a violation beyond is left out
MAX_VIOLATIONS = 20
Code = grpc.StatusCode
_BY_STATUS = {
    400: Code.INVALID_ARGUMENT,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.NOT_FOUND,
    405: Code.UNIMPLEMENTED,
    406: Code.INVALID_ARGUMENT,
    408: Code.DEADLINE_EXCEEDED,
    409: Code.FAILED_PRECONDITION,
    410: Code.FAILED_PRECONDITION,
    413: Code.INVALID_ARGUMENT,
    415: Code.INVALID_ARGUMENT,
    416: Code.OUT_OF_RANGE,
    421: Code.PERMISSION_DENIED,
    422: Code.INVALID_ARGUMENT,
    429: Code.RESOURCE_EXHAUSTED,
    503: Code.UNAVAILABLE,
}
_BY_SLUG = {
    "topic-exists": Code.ALREADY_EXISTS,
    "subscription-exists": Code.ALREADY_EXISTS,
    "below-retention": Code.OUT_OF_RANGE,
    "topic-being-deleted": Code.ABORTED,
}
_TOLD = ("type", "title", "status", "detail")
_FIELDS = {"Producer-Id": "producer_id", "Producer-Sequence": "producer_sequence", "Schema-Id": "schema_id"}
"""The fields of messages that are headers in HTTP, by these."""


def status_of_error(error: SeaweedqError) -> status_pb2.Status:
    """Returns the status of an error."""
    status, headers, body = problem(error)
    return status_of_problem(status, headers, body)


def status_of_problem(status: int, headers: Mapping[str, str], body: bytes) -> status_pb2.Status:
    """Returns the status of an answer with a problem."""
    told: dict[str, Any] = msgspec.json.decode(body)
    for header, field in _FIELDS.items():
        told["detail"] = str(told["detail"]).replace(header, field)
        if told.get("field") == header:
            told["field"] = field
    slug = str(told["type"]).rpartition("/")[2]
    code = _BY_SLUG.get(slug) or _BY_STATUS.get(status, Code.INTERNAL)
    found = status_pb2.Status(code=code.value[0], message=_cut(str(told["detail"])))
    info = error_details_pb2.ErrorInfo(reason=slug.upper().replace("-", "_"), domain=DOMAIN)
    info.metadata.update(_metadata(told))
    found.details.add().Pack(info)
    if violations := _violations(told):
        bad = error_details_pb2.BadRequest()
        for field, description in violations:
            bad.field_violations.add(field=_cut(field), description=_cut(description))
            if found.ByteSize() + bad.ByteSize() > MAX_STATUS_BYTES:
                del bad.field_violations[-1]
                break
        found.details.add().Pack(bad)
    if (wait := headers.get("retry-after")) is not None and wait.isdigit():
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.seconds = int(wait)
        found.details.add().Pack(retry)
    return found


def _cut(text: str) -> str:
    return text.encode()[:MAX_TEXT_BYTES].decode(errors="ignore")


def _metadata(told: Mapping[str, Any]) -> dict[str, str]:
    """Returns the type, and the members of the problem as text, as long as they are short together."""
    found, size = {"type": str(told["type"])}, 0
    for name, value in told.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        more = len(text.encode())
        if name not in _TOLD and more <= MAX_MEMBER_BYTES and size + more <= MAX_METADATA_BYTES:
            found[name] = text
            size += more
    return found


def _violations(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the fields that a problem names, with the reason for each."""
    if isinstance(field := told.get("field"), str):
        return [(field, str(told["detail"]))]
    invalid = told.get("errors")
    if not isinstance(invalid, list):
        return []
    return [(f"messages[{one.get('index')}]", str(one.get("reason", ""))) for one in invalid[:MAX_VIOLATIONS]]

"""JSON bodies of requests that are not messages: strict JSON, then a typed struct. Nothing here trusts Python's own json."""

from typing import TypeVar

import msgspec

from seaweedq.api.http import Scope, header
from seaweedq.errors import InvalidRequest, UnreadableBody, UnsupportedContentType

T = TypeVar("T")


def decode_request(content: bytes, scope: Scope, decoder: msgspec.json.Decoder[T]) -> T:
    """The request in a body; an empty one is `{}`.

    Raises UnsupportedContentType, UnreadableBody (no JSON), InvalidRequest (unknown field, wrong type).
    """
    media = (header(scope, b"content-type") or "application/json").partition(";")[0].strip().lower()
    if media != "application/json":
        raise UnsupportedContentType(
            f"the content type {media!r} is not application/json", supported=["application/json"]
        )
    try:
        return decoder.decode(content or b"{}")
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the request is not valid: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableBody(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise UnreadableBody("the body is nested too deeply") from None

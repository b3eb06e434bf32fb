"""Between FastAPI and us: requests and answers are msgspec structs, OpenAPI is made of them.

FastAPI routes and documents; it neither parses bodies nor parameters, since Python's json and int take what later
fails.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from fastapi import Request, Response

from seaweedq.api.asgi.http import body
from seaweedq.api.asgi.json_requests import check_free_form, decode_request
from seaweedq.api.asgi.problems import responses
from seaweedq.broker.broker import Broker
from seaweedq.segments.names import NAME

T = TypeVar("T")
REF = "#/components/schemas/{name}"
NAME_SCHEMA = {"type": "string", "pattern": f"^{NAME}$"}
_types: list[type] = []


def broker_of(request: Request) -> Broker:
    """The broker that serves this request; it must be ready. Raises NotReady."""
    broker: Broker = request.app.state.broker
    broker.readiness.check_ready()
    return broker


async def read_request(request: Request, decoder: msgspec.json.Decoder[T], free_form: bool = False) -> T:
    """The request's JSON body, bounded and strict; `free_form` where some field may hold anything.

    Raises the errors of `http.body` and `decode_request`.
    """
    broker: Broker = request.app.state.broker
    async with body(request.scope, request.receive, broker.environment.settings, broker.core.budget) as content:
        decoded = decode_request(content, request.scope, decoder)
        if free_form:
            check_free_form(content)
        return decoded


def json_answer(document: Any, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(msgspec.json.encode(document), status, media_type="application/json")


def integer(name: str, default: int, low: int, high: int, about: str) -> dict[str, Any]:
    """A whole-number query parameter, for OpenAPI."""
    return {
        "name": name,
        "in": "query",
        "description": about,
        "schema": {"type": "integer", "minimum": low, "maximum": high, "default": default},
    }


def described(
    takes: type | Mapping[str, Any] | None = None,
    gives: Mapping[int, type | Mapping[str, Any] | None] | None = None,
    refuses: Sequence[int] = (),
    parameters: Sequence[Mapping[str, Any]] = (),
    example: Any = None,
    shows: Any = None,
    required: bool = False,
) -> dict[str, Any]:
    """What OpenAPI says of a route: arguments for `add_api_route`. Types are structs, or contents by media type.

    `example` is one of the request's body, `shows` one of the answer's; a body that is not `required` may be empty.
    """
    answers = responses(*sorted({422, 503, *refuses}))
    for status, content in (gives or {200: None}).items():
        answers[status] = {"description": "done"}
        if content:
            answers[status]["content"] = _content(content, shows)
    extra: dict[str, Any] = {}
    if takes:
        extra["requestBody"] = {"content": _content(takes, example), "required": required}
    if parameters:
        extra["parameters"] = list(parameters)
    return {"responses": answers, "openapi_extra": extra, "response_class": Response}


def schema_ref(struct: type) -> dict[str, str]:
    """A reference to the schema of a struct, which `schemas` will hold."""
    _types.append(struct)
    return {"$ref": REF.format(name=struct.__name__)}


def schemas() -> dict[str, Any]:
    """The JSON schemas of all structs that routes mention."""
    _, components = msgspec.json.schema_components(_types, ref_template=REF)
    return dict(components)


def _content(what: type | Mapping[str, Any], example: Any) -> dict[str, Any]:
    """The content by media type; the example is of JSON."""
    content = dict(what) if isinstance(what, Mapping) else {"application/json": {"schema": schema_ref(what)}}
    if example is not None:
        content["application/json"] = {**content["application/json"], "example": example}
    return content

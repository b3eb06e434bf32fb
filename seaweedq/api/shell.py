"""Between FastAPI and us: requests and answers are msgspec structs, OpenAPI is made of them.

FastAPI routes and documents; it neither parses bodies nor parameters, since Python's json and int take what later fails.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from fastapi import Request, Response

from seaweedq.api.http import body
from seaweedq.api.json_bodies import decode_request
from seaweedq.api.problems import responses
from seaweedq.broker.broker import Broker

T = TypeVar("T")
REF = "#/components/schemas/{name}"
NAME_SCHEMA = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,126}$"}
_types: list[type] = []


def broker_of(request: Request) -> Broker:
    """The broker that serves this request; it must be ready. Raises NotReady."""
    broker: Broker = request.app.state.broker
    broker.check_ready()
    return broker


async def read_request(request: Request, decoder: msgspec.json.Decoder[T]) -> T:
    """The request's JSON body, bounded and strict. Raises the errors of `http.body` and `decode_request`."""
    broker: Broker = request.app.state.broker
    async with body(request.scope, request.receive, broker.settings, broker.budget) as content:
        return decode_request(content, request.scope, decoder)


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
) -> dict[str, Any]:
    """What OpenAPI says of a route: arguments for `add_api_route`. Types are msgspec structs, or contents by media type."""
    answers = responses(*sorted({422, 503, *refuses}))
    for status, content in (gives or {200: None}).items():
        answers[status] = {"description": "done"} | ({"content": _content(content)} if content else {})
    extra: dict[str, Any] = {}
    if takes:
        content = _content(takes)
        if example is not None:
            content["application/json"]["example"] = example
        extra["requestBody"] = {"content": content}
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


def _content(what: type | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(what, Mapping):
        return dict(what)
    return {"application/json": {"schema": schema_ref(what)}}

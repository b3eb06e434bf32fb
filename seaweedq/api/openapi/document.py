"""OpenAPI from msgspec structs: requests and answers of routes are structs, and the document describes them.

FastAPI routes and documents. It parses neither bodies nor parameters, since Python's json and int accept values that
fail later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi

from seaweedq.api.openapi.operations import arrange
from seaweedq.api.openapi.route_errors import titles
from seaweedq.api.parameters import MAX_NUMBER
from seaweedq.api.problems import Problem, responses
from seaweedq.api.routes import Kind, routes_of
from seaweedq.segments.entry import NAME
from seaweedq.units import AGO_PATTERN, DURATION_PATTERN, SIZE_PATTERN, unit_of

REF = "#/components/schemas/{name}"
NAME_SCHEMA = {"type": "string", "pattern": f"^{NAME}$"}
PATH_PARAMETERS = {
    "topic": (NAME_SCHEMA, "flights"),
    "subscription": (NAME_SCHEMA, "billing"),
    "upload": (NAME_SCHEMA, "20260131-0-5f2b8a6c"),
    "segment": ({"type": "integer", "minimum": 0, "maximum": MAX_NUMBER}, 0),
    "principal": ({"type": "string", "pattern": rf"^({NAME}|\*)$"}, "importer"),
    "token": ({"type": "string", "pattern": "^[0-9a-f]{16}$"}, "5f2b8a6c90d1e2f3"),
    "offset": ({"type": "integer", "minimum": 0, "maximum": MAX_NUMBER}, 17),
}
NUMBERS = ("number", "integer")
TEXTS = {
    "s": {"type": "string", "pattern": DURATION_PATTERN, "description": "a duration, such as 90s, 1h30m or 7d"},
    "bytes": {"type": "string", "pattern": SIZE_PATTERN, "description": "a size, such as 10GB or 512MiB"},
}
TIME = {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "string", "pattern": AGO_PATTERN}]}
Content = type | Mapping[str, Any]  # a struct, or contents by media type
_types: list[type] = []


@dataclass(frozen=True)
class Takes:
    """The body of a request, with an example; one that is not `required` may be empty."""

    content: Content
    example: Any = None
    required: bool = False


def described(
    takes: Takes | None = None,
    gives: Mapping[int, Content | None] | None = None,
    refuses: Sequence[int] = (),
    parameters: Sequence[Mapping[str, Any]] = (),
    shows: Any = None,
) -> dict[str, Any]:
    """Returns the arguments for `add_api_route` that describe a route. `gives` are the answers by status, `refuses` the
    problems, `shows` an example of an answer."""
    answers = responses(*sorted({422, 503, *refuses}))
    for status, content in (gives or {200: None}).items():
        answers[status] = {"description": "done"}
        if content:
            answers[status]["content"] = _content(content, shows)
    extra: dict[str, Any] = {}
    if takes:
        extra["requestBody"] = {"content": _content(takes.content, takes.example), "required": takes.required}
    if parameters:
        extra["parameters"] = list(parameters)
    return {"responses": answers, "openapi_extra": extra, "response_class": Response}


def json_answer(document: Any, status: int = 200) -> Response:
    """Returns a JSON answer."""
    return Response(msgspec.json.encode(document), status, media_type="application/json")


def integer(name: str, default: int, low: int, high: int, about: str) -> dict[str, Any]:
    """Returns the description of a whole-number query parameter."""
    return {
        "name": name,
        "in": "query",
        "description": about,
        "schema": {"type": "integer", "minimum": low, "maximum": high, "default": default},
    }


def schema_ref(struct: type) -> dict[str, str]:
    """Returns a reference to the schema of a struct, which the document will hold."""
    _types.append(struct)
    return {"$ref": REF.format(name=struct.__name__)}


def document_of(app: FastAPI) -> dict[str, Any]:
    """Returns the OpenAPI document of all routes, made once."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        _, components = msgspec.json.schema_components(_types, ref_template=REF)
        schemas.update(components)
        _take_texts(document["paths"], schemas)
        schemas["Problem"] = Problem.model_json_schema()
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                _name_parameters(operation)
                _name_right(path, method, operation)
                _name_errors(path, method, operation)
        arrange(document)
        app.openapi_schema = document
    return app.openapi_schema


def _name_parameters(operation: dict[str, Any]) -> None:
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            parameter["schema"], parameter["example"] = PATH_PARAMETERS[parameter["name"]]


def _take_texts(paths: Mapping[str, Any], schemas: dict[str, Any]) -> None:
    """Says of each number of a request whose name ends in its unit that a text with a unit is taken, too."""
    bodies = [one.get("requestBody", {}) for operations in paths.values() for one in operations.values()]
    left, done = _refs(bodies), set[str]()
    while left:
        done.add(name := left.pop())
        left |= _refs(schemas[name]) - done
        for field, schema in schemas[name].get("properties", {}).items():
            if unit := unit_of(field):
                _take_text(schema, TEXTS[unit])


def _refs(schema: Any) -> set[str]:
    """Returns the names of the schemas to which one refers."""
    if isinstance(schema, Mapping):
        ref = schema.get("$ref")
        return {ref.rpartition("/")[2]} if isinstance(ref, str) else set[str]().union(*map(_refs, schema.values()))
    return set[str]().union(*map(_refs, schema)) if isinstance(schema, list) else set()


def _take_text(schema: dict[str, Any], text: Mapping[str, Any]) -> None:
    forms = schema.get("anyOf", [schema])
    for one in forms:
        if one.get("type") == "array":
            _take_text(one["items"], text)
    if forms[0] is not schema and any(one.get("type") in NUMBERS for one in forms):
        forms.append(dict(text))
    elif schema.get("type") in NUMBERS:
        number = {name: schema.pop(name) for name in list(schema) if name not in ("description", "default")}
        schema["anyOf"] = [number, dict(text)]


def _name_right(path: str, method: str, operation: dict[str, Any]) -> None:
    """Says of a route that it needs a token, where one is required, and for which action; and that limits may refuse
    it."""
    rule = routes_of(path)[method.upper()]
    if rule.kind in (Kind.OPEN, Kind.OWN_RIGHT):
        return
    operation["security"] = [{"token": []}]
    operation["responses"] |= {str(status): one for status, one in responses(401, 403, 429).items()}
    if rule.action:
        operation["x-action"] = str(rule.action)


def _name_errors(path: str, method: str, operation: dict[str, Any]) -> None:
    """Says of each status which errors of it are the route's, in the order of statuses."""
    answers = operation["responses"]
    operation["responses"] = {status: answers[status] for status in sorted(answers)}
    for status, answer in operation["responses"].items():
        if status >= "400":
            named = titles(int(status), method.upper(), path)
            assert named, f"{method} {path} has no error of {status}"
            answer["description"] = "; ".join(named)


def _content(described: Content, example: Any) -> dict[str, Any]:
    """Returns the content by media type; the example is of JSON."""
    if isinstance(described, Mapping):
        content = dict(described)
    else:
        content = {"application/json": {"schema": schema_ref(described)}}
    if example is not None:
        content["application/json"] = {**content["application/json"], "example": example}
    return content

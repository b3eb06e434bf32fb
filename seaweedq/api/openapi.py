"""FastAPI, which has the cold routes as path operations; and the OpenAPI document of all routes that have an operation,
from their declarations, docstrings and structs.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import version
from inspect import cleandoc, signature
from typing import Any, get_args

import msgspec
from fastapi import FastAPI, params
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from starlette.routing import Mount

from seaweedq import errors
from seaweedq.api.parameters import MAX_NUMBER, NAME_SCHEMA, TEXTS, WRITER, QueryParameter
from seaweedq.api.problems import CONTENT_TYPE, STATUS, Note, Problem, handlers
from seaweedq.api.routes import COLD, Content, Kind, Route, RouteTable, nobody
from seaweedq.api.services import JsonBody
from seaweedq.rows.bodies import JSON
from seaweedq.segments.entry import NAME
from seaweedq.units import unit_of

TITLE = "seaweedq"
SUMMARY = "A message queue whose storage is a directory of Parquet files."
REF = "#/components/schemas/{name}"
TAGS: Mapping[str, str] = {
    "topics": "Create, list, change and delete topics. Publishing to an unknown topic creates it.",
    "publish": "Publish messages. Once the broker answers 200, the messages are durable.",
    "subscriptions": "Consume messages. A subscription keeps unacked messages, and shares them among its consumers.",
    "read": "Read messages without a subscription: from an offset, as a stream, or as files.",
    "uploads": "Upload large payloads, to which messages refer. If the store signs URLs, clients send the bytes "
    "directly to the store.",
    "imports": "Publish the rows of uploaded files as messages: an import of one file, or a write of many.",
    "segments": "List a topic's segments; split, merge, roll and move them manually.",
    "access": "Principals and their tokens, for clusters that require tokens.",
    "cluster": "The cluster's brokers and level; health and metrics of one broker.",
}
PATH_PARAMETERS = {
    "topic": (NAME_SCHEMA, "flights"),
    "subscription": (NAME_SCHEMA, "billing"),
    "upload": (NAME_SCHEMA, "20260131-0-5f2b8a6c"),
    "writer": ({"type": "string", "pattern": f"^{WRITER}$"}, "nightly"),
    "number": ({"type": "integer", "minimum": 0, "maximum": MAX_NUMBER}, 17),
    "segment": ({"type": "integer", "minimum": 0, "maximum": MAX_NUMBER}, 0),
    "schema": ({"type": "integer", "minimum": 0, "maximum": MAX_NUMBER}, 1),
    "principal": ({"type": "string", "pattern": rf"^({NAME}|\*)$"}, "importer"),
    "token": ({"type": "string", "pattern": "^[0-9a-f]{16}$"}, "5f2b8a6c90d1e2f3"),
    "denial": ({"type": "string", "pattern": "^[a-z]+-[0-9a-f]{32}$"}, "sub-2bd806c97f0e00af1a1fc3328fa763a9"),
    "offset": ({"type": "integer", "minimum": 0, "maximum": MAX_NUMBER}, 17),
}
COMMON = (422, 503)  # statuses of every operation
JUDGED = (401, 403, 429)  # and of those that need a right
# Errors about what is in a path, by its name there.
ABOUT: Mapping[str, tuple[type[errors.SeaweedqError], ...]] = {
    "topic": (
        errors.TopicNotFound,
        errors.TopicBeingDeleted,
        errors.InvalidName,
        errors.PeerTooOld,
        errors.NotOwner,
        errors.StoreUnavailable,
    ),
    "segment": (errors.SegmentNotFound,),
    "schema": (errors.SchemaNotFound,),
    "subscription": (errors.SubscriptionNotFound, errors.SubscriptionConflict),
    "principal": (errors.PrincipalNotFound, errors.InvalidName),
    "token": (errors.TokenNotFound,),
    "denial": (errors.DenialNotFound,),
    "upload": (
        errors.UploadNotFound,
        errors.UploadIncomplete,
        errors.UploadConflict,
        errors.UploadExpired,
        errors.UploadMismatch,
        errors.InvalidUpload,
    ),
}
# Errors of every route that no client of the document meets, and those whose kinds have titles of their own.
NEVER = {
    errors.ForeignOrigin,
    errors.PeerRefused,
    errors.RouteNotFound,
    errors.BadRequest,
    errors.Unavailable,
    errors.Fenced,
}
NUMBERS = ("number", "integer")
NEVER_SENT = {"bad-request", "unfit-store", "level-mismatch", "data-folder-in-use"}  # bases, and what ends a start
INTERNAL = "An unexpected error occurred in the broker. The broker's log describes the error in detail."
_MEMBER = re.compile(r"(?:(?<=, )|^)`?(\w+)`?(?= \(|,|$)")


def path_operations(table: RouteTable, note: Note) -> FastAPI:
    """Returns the FastAPI of the cold routes of a table, which tells `note` of each error. Raises ValueError as
    `check_rights` does."""
    app = FastAPIOffline(
        title=TITLE,
        summary=SUMMARY,
        version=version(TITLE),
        docs_url=None,  # a page of ours, with a policy (console/pages)
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=handlers(note),
    )
    for route in table.routes:
        if route.mode is COLD and route.handler is not nobody:
            path = route.path.replace("*", "{name:path}")
            app.router.routes.append(_shared_route(path, route.method, route.handler))
    check_rights(app, table)

    def openapi() -> dict[str, Any]:
        """Returns the document, made once."""
        app.openapi_schema = app.openapi_schema or document_of(table)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app


@cache
def _shared_route(path: str, method: str, handler: Callable[..., Any]) -> APIRoute:
    """Returns FastAPI's route of a handler. It has no state, and takes a millisecond to make: all apps share it."""
    return APIRoute(path, handler, methods=[method], include_in_schema=False)


def check_rights(app: FastAPI, table: RouteTable) -> None:
    """Raises ValueError for a route that the table does not have, so that it has no right: nobody could reach it, or
    everybody."""
    known = {(route.method, route.path) for route in table.routes}
    if unknown := sorted(set(_reachable(app.routes)) - known):
        raise ValueError(f"routes without an action: {unknown}")


def _reachable(routes: Iterable[Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields method and path of all routes that FastAPI has, however they came there."""
    for route in routes:
        if isinstance(route, Mount):
            yield from ((method, f"{prefix}{route.path}/*") for method in ("GET", "HEAD"))
        elif inner := getattr(route, "original_router", None):
            yield from _reachable(inner.routes, prefix)
        else:
            path = f"{prefix}{route.path}".replace("{name:path}", "*")
            yield from ((method, path) for method in route.methods)


def document_of(table: RouteTable) -> dict[str, Any]:
    """Returns the OpenAPI document of a table of routes."""
    documented = [route for route in table.routes if route.operation.id]
    named = {kind for route in documented for kind in route.operation.refuses if isinstance(kind, type)}
    common = set(STATUS) - named - {kind for about in ABOUT.values() for kind in about} - NEVER
    common = {kind for kind in common if not issubclass(kind, errors.ClientError)}
    structs: list[type] = []
    paths: dict[str, dict[str, Any]] = {}
    for route in documented:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, common, structs)
    _, schemas = msgspec.json.schema_components(structs, ref_template=REF)
    for schema in schemas.values():
        if text := schema.get("description"):
            schema["description"] = cleandoc(text)
    _take_texts(paths, schemas)
    schemas["Problem"] = _problem_schema()
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "summary": SUMMARY, "version": version(TITLE)},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "tags": [{"name": name, "description": about} for name, about in TAGS.items()],
    }


def sent_errors() -> list[tuple[int, str, str, str]]:
    """Returns the errors that brokers send: status and slug, by which they are sorted, the meaning, and what is said of
    the members of the problem. Both texts are from the docstring of the error's class, the members behind `fields:`."""
    found = []
    for slug, kind in errors.by_slug().items():
        if slug not in NEVER_SENT and not issubclass(kind, errors.ClientError):
            text = INTERNAL if kind is errors.SeaweedqError else cleandoc(kind.__doc__ or "").split("\n\n")[0]
            meaning, _, members = " ".join(text.split()).partition("; fields: ")
            found.append((STATUS[kind], slug, meaning.rstrip("."), _MEMBER.sub(r"`\1`", members.rstrip("."))))
    return sorted(found)


def _problem_schema() -> dict[str, Any]:
    """Returns the schema of problems, with the members of each error."""
    schema = Problem.model_json_schema()
    members = [f"- `{slug}`: {members}" for _, slug, _, members in sent_errors() if members]
    schema["description"] = "\n".join((cleandoc(Problem.__doc__ or ""), "", *members))
    return schema


def _operation(route: Route, common: set[type[errors.SeaweedqError]], structs: list[type]) -> dict[str, Any]:
    said, in_path = route.operation, re.findall(r"\{(\w+)\}", route.path)
    operation: dict[str, Any] = {"tags": [said.tag], "summary": said.summary}
    operation |= {"description": cleandoc(route.handler.__doc__ or ""), "operationId": said.id}
    dependencies = list(_dependencies(route.handler))
    read = [one.described for one in dependencies if isinstance(one, QueryParameter)]
    if parameters := [*map(_path_parameter, in_path), *read, *said.parameters]:
        operation["parameters"] = parameters
    if takes := said.takes or next((one.takes for one in dependencies if isinstance(one, JsonBody)), None):
        content = _content(takes.content, takes.example, structs)
        operation["requestBody"] = {"content": content, "required": takes.required}
    answers: dict[int, dict[str, Any]] = {status: {"description": "done"} for status in said.answers}
    for status, one in said.answers.items():
        if one is not None:
            answers[status]["content"] = _content(one, said.shows, structs)
        if links := _links(route):
            answers[status]["links"] = links
    own = {kind for name in in_path for kind in ABOUT.get(name, ())}
    own |= {one for one in said.refuses if isinstance(one, type)}
    statuses = {STATUS[one] if isinstance(one, type) else one for one in said.refuses} | {*COMMON}
    for status in sorted(statuses | {*(JUDGED if route.is_judged else ())}):
        answers[status] = _problem(status, own | common)
    operation["responses"] = {str(status): answers[status] for status in sorted(answers)}
    if route.is_judged:
        operation["security"] = [{"token": []}]
    if route.kind is Kind.ACTION:
        operation["x-action"] = str(route.action)
    return operation


def _dependencies(handler: Callable[..., Any]) -> Iterator[Any]:
    """Yields the dependencies of a path operation, in the order of its parameters."""
    for parameter in signature(handler).parameters.values():
        yield from (one.dependency for one in get_args(parameter.annotation) if isinstance(one, params.Depends))


def _path_parameter(name: str) -> dict[str, Any]:
    schema, example = PATH_PARAMETERS.get(name, (NAME_SCHEMA, name))
    return {"name": name, "in": "path", "required": True, "schema": schema, "example": example}


def _links(route: Route) -> dict[str, Any]:
    links: dict[str, Any] = {}
    for lead in route.operation.leads:
        body = {} if lead.body is None else {"requestBody": lead.body}
        links |= {one: {"operationId": one, "parameters": {**lead.parameters}, **body} for one in lead.operations}
    return links


def _problem(status: int, kinds: set[type[errors.SeaweedqError]]) -> dict[str, Any]:
    """Returns the answer with a problem of a status, which names the errors that it can be."""
    titles = sorted({kind.title for kind in kinds if STATUS[kind] == status})
    assert titles, f"no error has the status {status}"
    schema = {"$ref": REF.format(name=Problem.__name__)}
    return {"description": "; ".join(titles), "content": {CONTENT_TYPE: {"schema": schema}}}


def _content(told: Content, example: Any, structs: list[type]) -> dict[str, Any]:
    """Returns the content by media type; the example is of JSON."""
    content: dict[str, Any] = _referring({JSON: {"schema": told}} if isinstance(told, type) else told, structs)
    if example is not None:
        content[JSON] = {**content[JSON], "example": _referring(example, structs)}
    return content


def _referring(told: Any, structs: list[type]) -> Any:
    """Returns what is told of a content with references in the place of its structs, which are added, and without
    members that are null."""
    if isinstance(told, type):
        structs.append(told)
        return {"$ref": REF.format(name=told.__name__)}
    if isinstance(told, Mapping):
        return {name: _referring(one, structs) for name, one in told.items() if one is not None}
    return [_referring(one, structs) for one in told] if isinstance(told, list) else told


def _take_texts(paths: Mapping[str, Any], schemas: dict[str, Any]) -> None:
    """Says of each number of a request whose name ends in its unit that a text with a unit is taken, too."""
    bodies = [one.get("requestBody", {}) for operations in paths.values() for one in operations.values()]
    left, done = _refs(bodies), set[str]()
    while left:
        done.add(name := min(left))
        left = (left | _refs(schemas[name])) - done
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

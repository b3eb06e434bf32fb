"""The ASGI application: hot routes ahead of FastAPI, everything else through it, all of them in one OpenAPI document.

Publish, pull and ack are matched by hand in `__call__` and run as plain ASGI, which is several times faster than a
FastAPI function; they are declared as routes too, so that OpenAPI shows them.
"""

import asyncio
from collections.abc import Awaitable, MutableMapping
from contextlib import suppress
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.routing import compile_path
from starlette.types import ExceptionHandler

from seaweedq.api.asgi.http import Answer, ClientGone, Receive, Scope, Send, send
from seaweedq.api.asgi.openapi import NAME_SCHEMA, described, schemas
from seaweedq.api.asgi.parameters import MAX_NUMBER
from seaweedq.api.asgi.problems import Insides, Problem, problem, unexpected
from seaweedq.api.internal import server as internal
from seaweedq.api.routes import (
    cluster,
    imports,
    payloads,
    publish,
    segment_map,
    subscriptions,
    topics,
    upload_content,
    uploads,
)
from seaweedq.api.routes import (
    fetch as segments,
)
from seaweedq.api.routes import (
    pull_ack as deliver,
)
from seaweedq.api.routes import (
    segment_changes as reshape,
)
from seaweedq.api.routes.upload_content import Body
from seaweedq.broker.broker import Broker
from seaweedq.errors import MethodNotAllowed, NotReady, RouteNotFound, SeaweedqError

MESSAGES = "/v1/topics/{topic}/messages"
PULL = "/v1/topics/{topic}/subscriptions/{subscription}/pull"
ACK = "/v1/topics/{topic}/subscriptions/{subscription}/ack"
CONTENT = uploads.ONE + "/content"

PATH_PARAMETERS = {
    "topic": (NAME_SCHEMA, "flights"),
    "subscription": (NAME_SCHEMA, "billing"),
    "upload": (NAME_SCHEMA, "20260131-0-5f2b8a6c"),
    "segment": ({"type": "integer", "minimum": 0, "maximum": MAX_NUMBER}, 0),
    "offset": ({"type": "integer", "minimum": 0, "maximum": MAX_NUMBER}, 17),
}

Work = Awaitable[Answer]


class Application:
    """The ASGI app of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._insides = Insides(broker.environment.clock)
        self.fastapi = _fastapi(broker, self._insides)

    async def __call__(self, scope: Scope, receive: Receive, out: Send) -> None:
        """Hot routes here, the rest in FastAPI. Who is still waiting when the serving ends gets 503."""
        begun = False

        async def noted(message: MutableMapping[str, Any]) -> None:
            nonlocal begun
            begun = True
            await out(message)

        try:
            await self._serve(scope, receive, noted)
        except asyncio.CancelledError:  # uvicorn breaks off what still runs, and would answer with a bare 500
            if not self._broker.readiness.stopping:
                raise
            if not begun:
                status, headers, content = problem(NotReady("the broker is stopping; what became of this is unknown"))
                await send(Answer(status, content, headers), out)

    async def _serve(self, scope: Scope, receive: Receive, out: Send) -> None:
        if self._broker.readiness.draining and scope["type"] == "http":
            out = _last_answer(out)
        work: Work | None = None
        if scope["type"] == "http" and scope["path"].startswith(internal.PREFIX):
            work = internal.answer(self._broker, scope, receive)
        elif scope["type"] == "http" and scope["method"] == "POST":
            work = self._hot(scope, receive)
        elif scope["type"] == "http" and (streamed := self._streamed(scope, body := Body(scope, receive), out)):
            if answer := await answered(streamed, self._insides):
                await send(answer, out if await body.drained() else _last_answer(out))
            return
        if work is None:
            with suppress(Exception):  # answered and logged; starlette raises it once more
                await self.fastapi(scope, receive, out)
        elif answer := await answered(work, self._insides):
            await send(answer, out)

    def _hot(self, scope: Scope, receive: Receive) -> Work | None:
        match scope["path"].split("/"):
            case ["", "v1", "topics", topic, "messages"]:
                return publish.publish(self._broker, scope, receive, topic)
            case ["", "v1", "topics", topic, "subscriptions", name, "pull"]:
                return deliver.pull(self._broker, scope, receive, topic, name)
            case ["", "v1", "topics", topic, "subscriptions", name, "ack"]:
                return deliver.ack(self._broker, scope, receive, topic, name)
        return None

    def _streamed(self, scope: Scope, body: Body, out: Send) -> Awaitable[Answer | None] | None:
        """What takes or sends bytes as they come; None as an answer: it was sent."""
        match scope["path"].split("/"):
            case ["", "v1", "topics", topic, "uploads", upload, "content"] if scope["method"] in upload_content.METHODS:
                return upload_content.serve(self._broker, scope, body, out, topic, upload)
        return None


def _last_answer(out: Send) -> Send:
    """The last one on its connection, so that the client turns to another broker."""

    async def closing(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await out(message)

    return closing


async def answered(work: Awaitable[Answer | None], insides: Insides) -> Answer | None:
    """The answer, or the problem that came of it; None where nobody is left to answer."""
    try:
        return await work
    except SeaweedqError as error:
        insides.note(error)
        status, headers, content = problem(error)
    except ClientGone:
        return None
    except Exception as error:
        status, headers, content = unexpected(error)
    return Answer(status, content, headers)


def _fastapi(broker: Broker, insides: Insides) -> FastAPI:
    app = FastAPIOffline(
        title="seaweedq",
        summary="A message queue whose storage is a directory of Parquet files.",
        version=version("seaweedq"),
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=_handlers(insides),
    )
    app.state.broker = broker
    _declare_hot(app, broker)
    for part in (topics, imports, segment_map, segments, payloads, reshape, subscriptions, uploads, cluster):
        app.include_router(part.router)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _declare_hot(app: FastAPI, broker: Broker) -> None:
    async def messages(request: Request, topic: str) -> Response:
        return await _through(publish.publish(broker, request.scope, request.receive, topic))

    async def pull(request: Request, topic: str, subscription: str) -> Response:
        return await _through(deliver.pull(broker, request.scope, request.receive, topic, subscription))

    async def ack(request: Request, topic: str, subscription: str) -> Response:
        return await _through(deliver.ack(broker, request.scope, request.receive, topic, subscription))

    refuses = (400, 404, 408, 409, 413, 415)
    pulls = described(
        deliver.PullRequest,
        {200: deliver.PullAnswer},
        refuses,
        example={"max_messages": 100, "wait_s": 0.1},
        shows={"messages": [{**segments.EXAMPLE, "attempt": 1}]},
    )
    acks = described(
        deliver.AckRequest,
        {200: deliver.AckAnswer},
        refuses,
        example={"ids": ["0-17", "0-18"]},
        shows={"acked": 1, "unknown": ["0-18"]},
        required=True,
    )
    _declare_content(app)
    publishes = described(
        publish.TAKES,
        {200: publish.PublishAnswer},
        (*refuses, 410),
        publish.PARAMETERS,
        shows={"count": 1, "segments": [{"segment": 0, "first_offset": 17, "count": 1}], "ids": ["0-17"]},
        required=True,
    )
    app.add_api_route(
        MESSAGES, messages, methods=["POST"], tags=["publish"], description=publish.publish.__doc__, **publishes
    )
    app.add_api_route(PULL, pull, methods=["POST"], tags=["subscriptions"], description=deliver.pull.__doc__, **pulls)
    app.add_api_route(ACK, ack, methods=["POST"], tags=["subscriptions"], description=deliver.ack.__doc__, **acks)


def _declare_content(app: FastAPI) -> None:
    async def content(request: Request) -> Response:
        raise RouteNotFound("answered ahead of FastAPI")

    octets = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    signed = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in ("expires", "token")]
    shown = {"upload_id": uploads.SHOWN["upload_id"], "size": 73400320, "sha256": uploads.SHOWN["sha256"]}
    puts = described(octets, {201: upload_content.Received}, upload_content.PUT_REFUSES, signed, shows=shown)
    gets = described(None, {200: octets, 206: octets}, upload_content.GET_REFUSES, signed)
    for method, status, work, options in (
        ("PUT", 201, upload_content.put, puts),
        ("GET", 200, upload_content.get, gets),
    ):
        told = {"description": work.__doc__, "status_code": status, **options}
        app.add_api_route(CONTENT, content, methods=[method], tags=["uploads"], **told)


async def _through(work: Work) -> Response:
    answer = await work
    return Response(bytes(answer.body), answer.status, dict(answer.headers))


def _handlers(insides: Insides) -> dict[Any, ExceptionHandler]:
    async def known(request: Request, error: Exception) -> Response:
        assert isinstance(error, SeaweedqError)
        insides.note(error)
        return _response(problem(error))

    async def routing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path, method = request.url.path[:200], request.method
        if error.status_code == 405:
            allowed = _methods(request)
            names = ", ".join(allowed)
            answer = problem(MethodNotAllowed(f"{method} is not allowed on {path}, only {names}", allowed=allowed))
            answer[1]["allow"] = names
            return _response(answer)
        return _response(problem(RouteNotFound(f"there is nothing at {method} {path}; see /docs")))

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=499)

    async def unknown(request: Request, error: Exception) -> Response:
        return _response(unexpected(error))

    return {SeaweedqError: known, HTTPException: routing, ClientGone: gone, Exception: unknown}


def _methods(request: Request) -> list[str]:
    """What the path takes, over all of its routes: starlette names the methods of the first one alone."""
    paths: dict[str, Any] = request.app.openapi()["paths"]
    return sorted(
        method.upper()
        for path, operations in paths.items()
        if compile_path(path)[0].fullmatch(request.url.path)
        for method in operations
    ) or ["GET"]


def _response(answer: tuple[int, dict[str, str], bytes]) -> Response:
    status, headers, content = answer
    return Response(content, status, headers)


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        parts = document.setdefault("components", {}).setdefault("schemas", {})
        parts.update(schemas())
        parts["Problem"] = Problem.model_json_schema()
        for operations in document["paths"].values():
            for operation in operations.values():
                _name_parameters(operation)
        app.openapi_schema = document
    return app.openapi_schema


def _name_parameters(operation: dict[str, Any]) -> None:
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            parameter["schema"], parameter["example"] = PATH_PARAMETERS[parameter["name"]]

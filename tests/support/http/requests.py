"""Requests as the pipeline makes them, for its steps alone; and the routes that they meet."""

import asyncio
from collections.abc import Iterator
from typing import Any

from seaweedq.api.app import route_table
from seaweedq.api.request import Request
from seaweedq.api.routes import SOCKET, Route

TABLE = route_table()
find = TABLE.find


def every() -> Iterator[tuple[str, str, Route]]:
    """Method and path of each route, and the route."""
    for route in TABLE.routes:
        yield route.method, route.path, route


async def no_body() -> Any:
    """Nothing comes, and the client stays."""
    await asyncio.Event().wait()


def of_scope(scope: dict[str, Any]) -> Request:
    """A request with these members in its scope, else `GET /`."""
    return Request({"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": [], **scope}, no_body)


def request_of(method: str, path: str, *headers: tuple[bytes, bytes], **more: Any) -> Request:
    """A request that has not been matched."""
    kind = "websocket" if method == SOCKET else "http"
    return of_scope({"type": kind, "method": method, "path": path, "headers": list(headers), **more})


def matched(request: Request) -> Request:
    """The same, with its route. Raises RouteNotFound and MethodNotAllowed."""
    request.route, request.resource, request.names = find(request.method, request.path)
    return request

"""The FastAPI application: its routes, and the OpenAPI document of all routes, those ahead of FastAPI too."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from starlette.routing import Mount

from seaweedq.api import declared
from seaweedq.api.console import pages
from seaweedq.api.handlers import (
    cluster,
    fetch,
    files,
    imports,
    principals,
    segments,
    subscriptions,
    tokens,
    topics,
    uploads,
)
from seaweedq.api.openapi.document import document_of
from seaweedq.api.problems import handlers as error_handlers
from seaweedq.api.request import Request
from seaweedq.api.routes import every
from seaweedq.api.services import provide
from seaweedq.api.streams.declared import declare_streams
from seaweedq.errors import SeaweedqError

HANDLERS = (topics, imports, segments, files, fetch, subscriptions, uploads, cluster, principals, tokens, pages)


def documented_routes(
    note: Callable[[SeaweedqError, Request], None], service: Callable[[type], Any], handlers: Sequence[Any] = HANDLERS
) -> FastAPI:
    """Returns FastAPI's routes, which find their services by `service`, and tell `note` of each error. Raises
    ValueError for one that the table of routes gives no right."""
    app = FastAPIOffline(
        title="seaweedq",
        summary="A message queue whose storage is a directory of Parquet files.",
        version=version("seaweedq"),
        docs_url=None,  # a page of ours, with a policy (console/pages)
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=error_handlers(note),
    )
    provide(app, service)
    declared.declare(app)
    declare_streams(app)
    for one in handlers:
        app.include_router(one.router)
    check_rights(app.routes)
    app.openapi = lambda: document_of(app)  # type: ignore[method-assign]
    return app


def check_rights(routes: Iterable[Any]) -> None:
    """Raises ValueError for a route of FastAPI without a right: nobody could reach it, or everybody."""
    known = {(method, path) for method, path, _ in every()}
    if unknown := sorted(set(reachable(routes)) - known):
        raise ValueError(f"routes without an action, which api/routes names: {unknown}")


def reachable(routes: Iterable[Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields method and path of all routes that FastAPI has, however they came there."""
    for route in routes:
        if isinstance(route, Mount):
            yield from ((method, f"{prefix}{route.path}/*") for method in ("GET", "HEAD"))
        elif inner := getattr(route, "original_router", None):
            yield from reachable(inner.routes, prefix)
        else:
            path = f"{prefix}{route.path}".replace("{name:path}", "*")
            yield from ((method, path) for method in route.methods)

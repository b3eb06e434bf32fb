"""The FastAPI application: its routes, and the OpenAPI document of all routes, those ahead of FastAPI too."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

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
from seaweedq.api.problems import handlers
from seaweedq.api.request import Scope
from seaweedq.api.services import provide
from seaweedq.api.streams.declared import declare_streams
from seaweedq.errors import SeaweedqError

ROUTES = (topics, imports, segments, files, fetch, subscriptions, uploads, cluster, principals, tokens, pages)


def documented_routes(note: Callable[[SeaweedqError, Scope], None], service: Callable[[type], Any]) -> FastAPI:
    """Returns FastAPI's routes, which find their services by `service`, and tell `note` of each error."""
    app = FastAPIOffline(
        title="seaweedq",
        summary="A message queue whose storage is a directory of Parquet files.",
        version=version("seaweedq"),
        docs_url=None,  # a page of ours, with a policy (console/pages)
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=handlers(note),
    )
    provide(app, service)
    declared.declare(app)
    declare_streams(app)
    for routes in ROUTES:
        app.include_router(routes.router)
    app.openapi = lambda: document_of(app)  # type: ignore[method-assign]
    return app

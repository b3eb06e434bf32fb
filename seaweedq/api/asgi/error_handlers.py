"""The errors of FastAPI's routes, as problems."""

from collections.abc import Callable
from typing import Any

from fastapi import Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ExceptionHandler

from seaweedq.api.asgi.http import ClientGone, Scope
from seaweedq.api.asgi.problems import problem, unexpected
from seaweedq.errors import RouteNotFound, SeaweedqError

Note = Callable[[SeaweedqError, Scope], None]


def handlers(note: Note) -> dict[Any, ExceptionHandler]:
    """Returns FastAPI's handlers of errors: each becomes a problem, and `note` hears of the project's own, with the
    scope of their requests."""

    async def known(request: Request, error: Exception) -> Response:
        """Answers with an error of the project's own."""
        assert isinstance(error, SeaweedqError)
        note(error, request.scope)
        return _response(problem(error))

    async def routing(request: Request, error: Exception) -> Response:
        """Answers that there is no such route. The gate has found its rule: a part of the path is empty, or names no
        file."""
        return _response(
            problem(RouteNotFound(f"there is no route {request.method} {request.url.path[:200]}; see /docs"))
        )

    async def gone(request: Request, error: Exception) -> Response:
        """Ends a request whose client has gone: nobody reads the answer."""
        return Response(status_code=499)

    async def unknown(request: Request, error: Exception) -> Response:
        """Answers 500, and logs the error."""
        return _response(unexpected(error))

    return {SeaweedqError: known, HTTPException: routing, ClientGone: gone, Exception: unknown}


def _response(answer: tuple[int, dict[str, str], bytes]) -> Response:
    status, headers, content = answer
    return Response(content, status, headers)

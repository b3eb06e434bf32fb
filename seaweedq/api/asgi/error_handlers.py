"""The errors of FastAPI's routes, as problems."""

from collections.abc import Callable
from typing import Any

from fastapi import Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import compile_path
from starlette.types import ExceptionHandler

from seaweedq.api.asgi.http import ClientGone
from seaweedq.api.asgi.problems import problem, unexpected
from seaweedq.errors import MethodNotAllowed, RouteNotFound, SeaweedqError

Note = Callable[[SeaweedqError], None]


def handlers(note: Note) -> dict[Any, ExceptionHandler]:
    """Returns FastAPI's handlers of errors: each becomes a problem, and `note` hears of the project's own."""

    async def known(request: Request, error: Exception) -> Response:
        """Answers with an error of the project's own."""
        assert isinstance(error, SeaweedqError)
        note(error)
        return _response(problem(error))

    async def routing(request: Request, error: Exception) -> Response:
        """Answers that there is no such route, or that the method is another one."""
        assert isinstance(error, HTTPException)
        path, method = request.url.path[:200], request.method
        if error.status_code == 405:
            allowed = _methods(request)
            names = ", ".join(allowed)
            answer = problem(MethodNotAllowed(f"{method} is not allowed on {path}, only {names}", allowed=allowed))
            answer[1]["allow"] = names
            return _response(answer)
        return _response(problem(RouteNotFound(f"there is no route {method} {path}; see /docs")))

    async def gone(request: Request, error: Exception) -> Response:
        """Ends a request whose client has gone: nobody reads the answer."""
        return Response(status_code=499)

    async def unknown(request: Request, error: Exception) -> Response:
        """Answers 500, and logs the error."""
        return _response(unexpected(error))

    return {SeaweedqError: known, HTTPException: routing, ClientGone: gone, Exception: unknown}


def _methods(request: Request) -> list[str]:
    """Returns the methods of all routes of a path: starlette names those of the first route alone."""
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

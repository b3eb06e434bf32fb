"""Gives the routes of FastAPI their request, and the services that they use: each handler has a frozen group of them.

TopicDep = Annotated[TopicServices, given(TopicServices)]

async def show_topic(services: TopicDep, request: RequestDep, topic: str) -> Response: ...
"""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI
from starlette.requests import HTTPConnection

from seaweedq.api.request import Request

T = TypeVar("T")
Find = Callable[[type[Any]], Any]


def provide(app: FastAPI, find: Find) -> None:
    """Has the app's routes get their groups of services from `find`, which raises NotReady."""
    app.state.find_services = find


def given(group: type[T]) -> Any:
    """Returns the dependency of a route on a group of services. A request before the broker is ready gets NotReady."""

    async def find(connection: HTTPConnection) -> T:  # a plain function would be called in a thread
        """Returns the group of services."""
        found: T = connection.app.state.find_services(group)
        return found

    return Depends(find)


async def _request(connection: HTTPConnection) -> Request:
    found: Request = connection.state.request  # as the pipeline has put it there
    return found


RequestDep = Annotated[Request, Depends(_request)]

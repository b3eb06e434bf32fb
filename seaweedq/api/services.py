"""Gives the routes of FastAPI the services that they use: each route module has a frozen group of them.

Services = Annotated[TopicServices, given(TopicServices)]

async def show_topic(services: Services, topic: str) -> Response: ...
"""

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Depends, FastAPI, Request

T = TypeVar("T")
Find = Callable[[type[Any]], Any]


def provide(app: FastAPI, find: Find) -> None:
    """Has the app's routes get their groups of services from `find`, which raises NotReady."""
    app.state.find_services = find


def given(group: type[T]) -> Any:
    """Returns the dependency of a route on a group of services. A request before the broker is ready gets NotReady."""

    async def find(request: Request) -> T:  # a plain function would be called in a thread
        """Returns the group of services."""
        return services_of(request, group)

    return Depends(find)


def services_of(request: Request, group: type[T]) -> T:
    """Returns a group of services, for a hot route that spares the costs of a dependency. Raises NotReady."""
    found: T = request.app.state.find_services(group)
    return found

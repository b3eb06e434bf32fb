"""Routes: each is declared once, beside its handler, by a `Router`. What has no route there has none.

A declaration has the method and the path, the right that the route asks for, and all that OpenAPI says of it. The rest
derives from it: the tree that matches paths, limits, the audit, labels of metrics, the document. A right is an action,
on the topic and the subscription in the path, or one of these:

- OPEN: for everybody, also with a wrong token;
- OWN_RIGHT: the request shows a right of its own, which the handler judges: a signed link, or that it is a broker's;
- KNOWN: for every caller that counts. What it lists, and whose tokens it shows, the handler judges for each of them.

A handler is cold, hot or a stream. Cold ones are path operations of FastAPI. The others are methods of a group of
services (services), and run as plain ASGI. A hot one takes the request and the names in its path, and returns the
answer. A stream takes the way out as well, behind the request, and may have sent the answer itself.

Names in paths are judged as handlers see them, decoded. The tree of paths has at each place either words or one name,
so that a path never has two routes.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from seaweedq.access.rights import Action, Resource
from seaweedq.errors import (
    InvalidUpload,
    MessageTooLarge,
    MethodNotAllowed,
    PartlyTaken,
    RouteNotFound,
    SeaweedqError,
    SequenceOutOfOrder,
    TooManySegments,
    TooManyTopics,
    UploadConflict,
    UploadExpired,
    UploadIncomplete,
    UploadMismatch,
    UploadNotFound,
)

SOCKET = "WEBSOCKET"  # in the place of a method
CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
WITH_BODIES = CHANGING - {"DELETE"}
OF_BODIES = (400, 408, 413, 415)  # refusals of requests with a body
OF_CREATION = (TooManyTopics, TooManySegments)  # of requests that may create a topic
OF_UPLOADS = (UploadNotFound, UploadIncomplete, UploadConflict, UploadExpired, UploadMismatch, InvalidUpload)
OF_ROWS = (SequenceOutOfOrder, MessageTooLarge, PartlyTaken)  # of requests that publish
TOPIC = "/v1/topics/{topic}"
SEGMENT = f"{TOPIC}/segments/{{segment}}"
UPLOAD = f"{TOPIC}/uploads/{{upload}}"
SUBSCRIPTION = f"{TOPIC}/subscriptions/{{subscription}}"
OF_TOPIC = {"topic": "$request.path.topic"}  # parameters of links
OF_SUBSCRIPTION = {**OF_TOPIC, "subscription": "$request.path.subscription"}
REMEMBERED, REMEMBERED_CHARACTERS = 4096, 512
SHOWN = 200
Handler = TypeVar("Handler", bound=Callable[..., Any])
Content = type | Mapping[str, Any]  # a struct, or contents by media type


class Kind(Enum):
    """The kinds of rights that routes ask for."""

    OPEN = auto()
    OWN_RIGHT = auto()
    KNOWN = auto()
    ACTION = auto()


class Mode(Enum):
    """The kinds of handlers."""

    COLD = auto()
    HOT = auto()
    STREAM = auto()


OPEN, OWN_RIGHT, KNOWN = Kind.OPEN, Kind.OWN_RIGHT, Kind.KNOWN
COLD, HOT, STREAM = Mode.COLD, Mode.HOT, Mode.STREAM


@dataclass(frozen=True)
class Takes:
    """The body of a request, with an example; one that is not `required` may be empty."""

    content: Content
    example: Any = None
    required: bool = False


class Lead(NamedTuple):
    """Operations to which an answer leads, with their parameters and, for some, a body."""

    operations: tuple[str, ...]
    parameters: Mapping[str, str]
    body: Any = None


@dataclass(frozen=True, slots=True)
class Operation:
    """A route in OpenAPI, if it has an `id`. `answers` are the contents by status, `shows` an example of one;
    `refuses` are problems: an error of the route's own, or a status for the errors that are common, or about what is in
    the path. Generated clients have their functions by the ids: they are as public as the routes."""

    id: str = ""
    summary: str = ""
    tag: str = ""
    takes: Takes | None = None
    answers: Mapping[int, Content | None] = field(default_factory=dict)
    refuses: Sequence[int | type[SeaweedqError]] = ()
    parameters: Sequence[Mapping[str, Any]] = ()
    shows: Any = None
    leads: Sequence[Lead] = ()


@dataclass(frozen=True, slots=True, eq=False)  # it is a key of what is kept by kind of request
class Route:
    """A route of one method. With an `action` it is of kind ACTION; `lasts` says that the request may wait or stream,
    so that it ends with its caller's right. `costs` is what such a request takes of limits before its body is read,
    beside the stated length (or 0) of what `has_body`; a cost of 0 asks whether all is paid. The audit is told of each
    request that `is_change`.

    `group` is the class of a handler that is not cold; one that is `early` answers before the broker is ready. Metrics
    have the durations of a route that is `timed` under this name, by `outcomes` beside the usual ones."""

    method: str
    path: str
    kind: Kind
    handler: Callable[..., Any]
    action: Action | None = None
    mode: Mode = COLD
    group: type[Any] = object
    operation: Operation = Operation()
    has_topic: bool = False
    has_subscription: bool = False
    lasts: bool = False
    early: bool = False
    costs: tuple[tuple[str, float], ...] = ()
    has_body: bool = False
    is_change: bool = False
    is_judged: bool = False
    timed: str = ""
    outcomes: tuple[str, ...] = ()


def nobody() -> None:
    """Handles no request: FastAPI has such a route by itself, or there is none."""


class Router:
    """The routes of one module, in the order of use. `tag` is their part of the OpenAPI document."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.routes: list[Route] = []

    def route(
        self,
        methods: str,
        path: str,
        right: Action | Kind,
        id: str = "",
        summary: str = "",
        *,
        mode: Mode = COLD,
        lasts: bool = False,
        early: bool = False,
        timed: str = "",
        outcomes: tuple[str, ...] = (),
        **told: Any,
    ) -> Callable[[Handler], Handler]:
        """Declares a handler for these methods of a path; `told` are members of `Operation`. One without an id is not
        in the document, and of several methods the first one is."""
        action = right if isinstance(right, Action) else None
        kind = right if isinstance(right, Kind) else Kind.ACTION
        is_judged, has_topic = kind in (Kind.ACTION, Kind.KNOWN), action is not None and path.startswith(TOPIC)

        def declare(handler: Handler) -> Handler:
            for at, method in enumerate(methods.split()):
                self.routes.append(
                    Route(
                        method,
                        path,
                        kind,
                        handler,
                        action,
                        mode,
                        operation=Operation("" if at else id, summary, self.tag, **told),
                        has_topic=has_topic,
                        has_subscription=has_topic and path.startswith(SUBSCRIPTION),
                        lasts=lasts,
                        early=early,
                        costs=costs_of(method, action, lasts),
                        has_body=method in WITH_BODIES,
                        is_change=is_judged and method in CHANGING and action not in (Action.PUBLISH, Action.CONSUME),
                        is_judged=is_judged,
                        timed=timed,
                        outcomes=outcomes,
                    )
                )
            return handler

        return declare


def costs_of(method: str, action: Action | None, lasts: bool) -> tuple[tuple[str, float], ...]:
    """Returns the cost of a request against limits before its body is read."""
    costs = [("requests", 1.0)]
    if action is Action.PUBLISH and method == "POST":
        costs.append(("messages", 0.0))
    elif action not in (Action.PUBLISH, Action.CONSUME) and method in CHANGING:
        costs.append(("changes", 1.0))
    if method == "GET" or lasts:  # an ack is let in: else leases would end
        costs.append(("bytes_out", 0.0))
    return tuple(costs)


@dataclass(slots=True)
class _Node:
    """A place in the tree of paths: what may follow, and the routes of the path that ends here, by method."""

    words: dict[str, "_Node"] = field(default_factory=dict)
    name: "_Node | None" = None
    rest: dict[str, Route] = field(default_factory=dict)
    routes: dict[str, Route] = field(default_factory=dict)

    def add(self, parts: list[str], route: Route) -> None:
        """Adds the route of a path. Raises ValueError if there is another one."""
        if not parts or parts == ["*"]:
            routes = self.rest if parts else self.routes
            if route.method in routes:
                raise ValueError(f"two routes for {route.method} {route.path}")
            routes[route.method] = route
        elif parts[0].startswith("{"):
            self.name = self.name or _Node()
            self.name.add(parts[1:], route)
        else:
            self.words.setdefault(parts[0], _Node()).add(parts[1:], route)
        if self.words and self.name:
            raise ValueError(
                f"route {route.path} has a parameter at a position at which other routes have the "
                f"fixed words {sorted(self.words)}"
            )


class Match(NamedTuple):
    """The route of a request, what its action is about, and the names in its path."""

    route: Route
    resource: Resource
    names: tuple[str, ...]


NO_RESOURCE = Resource()
NO_ROUTE = Route("", "none", Kind.OPEN, nobody)  # of a request that has not been matched, or cannot be


class RouteTable:
    """All routes of one broker, in the order of their declarations."""

    def __init__(self, routers: Iterable[Router]) -> None:
        declared = [route for router in routers for route in router.routes]
        self.routes = tuple(one if one.mode is COLD else replace(one, group=_group(one.handler)) for one in declared)
        self._tree = _Node()
        for route in self.routes:
            self._tree.add(route.path.split("/"), route)
        self._remembered = lru_cache(REMEMBERED)(self._find)

    def find(self, method: str, path: str) -> Match:
        """Returns the match of a request. Raises RouteNotFound and MethodNotAllowed. Those of short paths are
        remembered: this is asked for each request."""
        found = self._remembered(method, path) if len(path) <= REMEMBERED_CHARACTERS else self._find(method, path)
        if found is None:
            raise self._no_route(method, path)
        return found

    def _find(self, method: str, path: str) -> Match | None:
        route = self._routes_of(path).get(method)
        if route is None:
            return None
        parts = zip(route.path.split("/"), path.split("/"), strict=False)  # a rest may be longer, and has no names
        names = tuple(part for form, part in parts if form.startswith("{"))
        subscription = names[1] if route.has_subscription else None
        return Match(route, Resource(names[0], subscription) if route.has_topic else NO_RESOURCE, names)

    def _no_route(self, method: str, path: str) -> RouteNotFound | MethodNotAllowed:
        shown = path[:SHOWN]
        if method == SOCKET:
            return RouteNotFound(f"there is no WebSocket at {shown}; /docs lists all routes")
        allowed = sorted(self._routes_of(path).keys() - {SOCKET, "HEAD"})  # who may GET knows that
        if allowed:
            return MethodNotAllowed(f"{method} is not allowed on {shown}, only {', '.join(allowed)}", allowed=allowed)
        return RouteNotFound(f"there is no route {method} {shown}; /docs lists all routes")

    def _routes_of(self, path: str) -> dict[str, Route]:
        """Returns the routes of a path by method; none if there is no route."""
        node = self._tree
        for part in path.split("/"):
            found = node.words.get(part) or (node.name if part else None)
            if found is None:
                return node.rest
            node = found
        return node.routes


def _group(handler: Callable[..., Any]) -> type[Any]:
    """Returns the class of a method."""
    group: type[Any] = getattr(sys.modules[handler.__module__], handler.__qualname__.rpartition(".")[0])
    return group

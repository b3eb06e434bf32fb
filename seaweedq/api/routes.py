"""The one table of routes: for every route that can be reached, who may ask for it. What has no route has no route.

A route names the action that a route needs on the topic and the subscription in its path. The other kinds:

- OPEN: for everybody, also with a wrong token;
- OWN_RIGHT: the request shows a right of its own, which the route judges: a signed link, or that it is a broker's;
- KNOWN: for every caller that counts. What it lists, and whose tokens it shows, the route judges for each of them.

Names in paths are judged as routes see them, decoded. The tree of a path has at each place either words or one name, so
that a path never has two routes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import lru_cache

from seaweedq.access.rights import Action, Resource
from seaweedq.errors import MethodNotAllowed, RouteNotFound

READS = ("GET", "HEAD")
SOCKET = "WEBSOCKET"  # in the place of a method


class Kind(Enum):
    """The kinds of rights that routes ask for."""

    OPEN = auto()
    OWN_RIGHT = auto()
    KNOWN = auto()
    ACTION = auto()


@dataclass(frozen=True, slots=True, eq=False)  # it is a key of what is kept by kind of request
class Route:
    """The route of a route. With an `action` it is of kind ACTION; `lasts` says that the request may wait or stream, so
    that it ends with its caller's right. `costs` is what such a request takes of limits before its body is read,
    beside the stated length (or 0) of what `has_body`; a cost of 0 asks whether all is paid. `path` is as in
    the table. The audit is told of each request that `is_change`."""

    kind: Kind
    action: Action | None = None
    has_topic: bool = False
    has_subscription: bool = False
    lasts: bool = False
    costs: tuple[tuple[str, float], ...] = ()
    path: str = ""
    has_body: bool = False
    is_change: bool = False
    is_judged: bool = False

    def resource(self, parts: list[str]) -> Resource:
        """Returns what the action is about, from the parts of a path."""
        if not self.has_topic:
            return Resource()
        return Resource(parts[TOPIC_AT], parts[SUBSCRIPTION_AT] if self.has_subscription else None)


CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
WITH_BODIES = CHANGING - {"DELETE"}
REMEMBERED, REMEMBERED_CHARACTERS = 4096, 512
SHOWN = 200
TOPIC_AT, SUBSCRIPTION_AT = 3, 5  # in "/v1/topics/{topic}/subscriptions/{subscription}", cut at its slashes
TOPIC = "/v1/topics/{topic}"
SEGMENT = f"{TOPIC}/segments/{{segment}}"
UPLOAD = f"{TOPIC}/uploads/{{upload}}"
SUBSCRIPTION = f"{TOPIC}/subscriptions/{{subscription}}"
OPEN, OWN_RIGHT, KNOWN = Kind.OPEN, Kind.OWN_RIGHT, Kind.KNOWN
LASTS = "lasts"

TABLE: tuple[tuple[str, str, Kind | Action, str], ...] = (
    ("GET HEAD", "/", OPEN, ""),
    ("GET HEAD", "/console", OPEN, ""),
    ("GET HEAD", "/console/*", OPEN, ""),
    ("GET", "/healthz", OPEN, ""),
    ("GET", "/readyz", OPEN, ""),
    ("GET", "/docs", OPEN, ""),
    ("GET HEAD", "/openapi.json", OPEN, ""),
    ("GET HEAD", "/static-offline-docs/*", OPEN, ""),
    ("GET", "/metrics", Action.METRICS, ""),
    ("POST", "/internal/*", OWN_RIGHT, ""),
    ("GET", "/v1/whoami", KNOWN, ""),
    ("GET", "/v1/cluster", Action.CLUSTER, ""),
    ("POST", "/v1/cluster/level", Action.CLUSTER, ""),
    ("POST", "/v1/cluster/confirm", Action.CLUSTER, ""),
    ("GET", "/v1/principals", Action.ACCESS, ""),
    ("GET PUT DELETE", "/v1/principals/{principal}", Action.ACCESS, ""),
    ("GET POST", "/v1/tokens", KNOWN, ""),
    ("GET DELETE", "/v1/tokens/{token}", KNOWN, ""),
    ("GET", "/v1/topics", KNOWN, ""),
    ("PUT", TOPIC, Action.CREATE, ""),
    ("GET", TOPIC, Action.DESCRIBE, ""),
    ("PATCH", TOPIC, Action.ALTER, ""),
    ("DELETE", TOPIC, Action.DELETE, ""),
    ("POST", f"{TOPIC}/flush", Action.ALTER, ""),
    ("POST", f"{TOPIC}/messages", Action.PUBLISH, ""),
    ("GET", f"{TOPIC}/offsets", Action.DESCRIBE, ""),
    ("GET", f"{TOPIC}/files", Action.READ, ""),
    ("GET", f"{TOPIC}/stream", Action.READ, LASTS),
    (SOCKET, f"{TOPIC}/stream", Action.READ, LASTS),
    ("GET", f"{TOPIC}/segments", Action.DESCRIBE, ""),
    ("GET", SEGMENT, Action.DESCRIBE, ""),
    ("GET", f"{TOPIC}/history", Action.DESCRIBE, ""),
    ("GET", f"{SEGMENT}/messages", Action.READ, LASTS),
    ("GET HEAD", f"{SEGMENT}/messages/{{offset}}/payload", Action.READ, LASTS),
    ("POST", f"{SEGMENT}/split", Action.RESHAPE, ""),
    ("POST", f"{SEGMENT}/merge", Action.RESHAPE, ""),
    ("POST", f"{SEGMENT}/roll", Action.RESHAPE, ""),
    ("POST", f"{SEGMENT}/move", Action.RESHAPE, ""),
    ("POST", f"{TOPIC}/uploads", Action.PUBLISH, ""),
    ("GET DELETE", UPLOAD, Action.PUBLISH, ""),
    ("POST", f"{UPLOAD}/parts", Action.PUBLISH, ""),
    ("POST", f"{UPLOAD}/complete", Action.PUBLISH, ""),
    ("GET HEAD PUT", f"{UPLOAD}/content", OWN_RIGHT, ""),
    ("POST", f"{TOPIC}/imports", Action.PUBLISH, ""),
    ("GET", f"{TOPIC}/imports/{{upload}}", Action.PUBLISH, ""),
    ("GET", "/v1/subscriptions", KNOWN, ""),
    ("GET", f"{TOPIC}/subscriptions", Action.DESCRIBE, ""),
    ("PUT PATCH DELETE", SUBSCRIPTION, Action.SUBSCRIBE, ""),
    ("GET", SUBSCRIPTION, Action.DESCRIBE, ""),
    ("POST", f"{SUBSCRIPTION}/seek", Action.SUBSCRIBE, ""),
    ("POST", f"{SUBSCRIPTION}/pull", Action.CONSUME, LASTS),
    ("POST", f"{SUBSCRIPTION}/ack", Action.CONSUME, ""),
    ("POST", f"{SUBSCRIPTION}/nack", Action.CONSUME, ""),
    ("POST", f"{SUBSCRIPTION}/extend", Action.CONSUME, ""),
    ("GET", f"{SUBSCRIPTION}/stream", Action.CONSUME, LASTS),
    (SOCKET, f"{SUBSCRIPTION}/stream", Action.CONSUME, LASTS),
)


@dataclass(slots=True)
class _Node:
    """A place in the tree of paths: what may follow, and the routes of the path that ends here, by method."""

    words: dict[str, "_Node"] = field(default_factory=dict)
    name: "_Node | None" = None
    rest: dict[str, Route] = field(default_factory=dict)
    routes: dict[str, Route] = field(default_factory=dict)

    def add(self, parts: list[str], routes: dict[str, Route]) -> None:
        """Adds the routes of a path."""
        if not parts:
            assert not self.routes.keys() & routes.keys(), f"two routes for {routes}"
            self.routes |= routes
        elif parts == ["*"]:
            self.rest |= routes
        elif parts[0].startswith("{"):
            self.name = self.name or _Node()
            self.name.add(parts[1:], routes)
        else:
            self.words.setdefault(parts[0], _Node()).add(parts[1:], routes)
        assert not (self.words and self.name), f"at one place there are a name and {sorted(self.words)}"


NO_ROUTE = Route(Kind.OPEN, path="none")  # of a request that has not been matched, or cannot be
NO_RESOURCE = Resource()


def find(method: str, path: str) -> tuple[Route, Resource]:
    """Returns the route of a request, and what its action is about. Raises RouteNotFound and MethodNotAllowed. Those of
    short paths are remembered: this is asked for each request."""
    found = _remembered(method, path) if len(path) <= REMEMBERED_CHARACTERS else _find(method, path)
    if found is None:
        raise _no_route(method, path)
    return found


def _find(method: str, path: str) -> tuple[Route, Resource] | None:
    route = routes_of(path).get(method)
    return None if route is None else (route, route.resource(path.split("/")))


_remembered = lru_cache(REMEMBERED)(_find)


def _no_route(method: str, path: str) -> RouteNotFound | MethodNotAllowed:
    shown = path[:SHOWN]
    if method == SOCKET:
        return RouteNotFound(f"there is no WebSocket at {shown}; see /docs")
    allowed = sorted(routes_of(path).keys() - {SOCKET, "HEAD"})  # who may GET knows that
    if allowed:
        return MethodNotAllowed(f"{method} is not allowed on {shown}, only {', '.join(allowed)}", allowed=allowed)
    return RouteNotFound(f"there is no route {method} {shown}; see /docs")


def routes_of(path: str) -> dict[str, Route]:
    """Returns the routes of a path by method; none where there is no route."""
    node = _TREE
    for part in path.split("/"):
        found = node.words.get(part) or (node.name if part else None)
        if found is None:
            return node.rest
        node = found
    return node.routes


def every() -> Iterator[tuple[str, str, Route]]:
    """Yields method, path and route of all routes."""
    for methods, path, wanted, lasts in TABLE:
        action = wanted if isinstance(wanted, Action) else None
        kind = Kind.ACTION if isinstance(wanted, Action) else wanted
        has_topic = action is not None and path.startswith(TOPIC)
        has_subscription = has_topic and path.startswith(SUBSCRIPTION)
        for method in methods.split():
            costs, has_body = costs_of(method, action, lasts == LASTS), method in WITH_BODIES
            route = Route(kind, action, has_topic, has_subscription, lasts == LASTS, costs, path, has_body)
            is_judged = kind in (Kind.ACTION, Kind.KNOWN)
            yield method, path, replace(route, is_change=is_judged and _is_change(method, route), is_judged=is_judged)


def _is_change(method: str, route: Route) -> bool:
    """Returns whether a request changes something: whatever is no GET, but for what publishes and consumes, and what
    shows a right of its own."""
    return method in CHANGING and route.action not in (Action.PUBLISH, Action.CONSUME)


def costs_of(method: str, action: Action | None, lasts: bool) -> tuple[tuple[str, float], ...]:
    """Returns what a request takes of limits before its body is read."""
    costs = [("requests", 1.0)]
    if action is Action.PUBLISH and method == "POST":
        costs.append(("messages", 0.0))
    elif action not in (Action.PUBLISH, Action.CONSUME) and method in CHANGING:
        costs.append(("changes", 1.0))
    if method == "GET" or lasts:  # an ack is let in: else leases would end
        costs.append(("bytes_out", 0.0))
    return tuple(costs)


def _tree() -> _Node:
    tree = _Node()
    for method, path, route in every():
        tree.add(path.split("/"), {method: route})
    return tree


_TREE = _tree()

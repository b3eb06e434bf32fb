"""The parts of one broker, of which handlers take what they use: no handler knows where in a broker a part is.

Handlers share a group of services, which is a class beside them with a class method `of(parts)`. Each group is made
once, when it is asked for first. Hot routes are methods of their group. Path operations of FastAPI depend on theirs:

TopicDep = Annotated[TopicServices, given(TopicServices)]

async def show_topic(services: TopicDep, topic: PathTopic) -> Response: ...
"""

from collections.abc import Callable
from typing import Annotated, Any, Protocol, Self, TypeVar, cast

import msgspec
from fastapi import Depends
from starlette.requests import HTTPConnection

from seaweedq.api.access.authentication import PeerRequests
from seaweedq.api.connections.request_reader import RequestReader
from seaweedq.api.parameters import RequestDep
from seaweedq.api.proxy import Proxy
from seaweedq.api.routes import Takes
from seaweedq.broker.broker import Broker


class Group(Protocol):
    """A group of services, or the class of hot routes."""

    @classmethod
    def of(cls, parts: "Parts") -> Self:
        """Returns the group of one broker."""


G = TypeVar("G", bound=Group)


class Parts:
    """The rooms of a broker, the reader of bodies, the proxy to other brokers, and the groups that were made of them.
    `metrics` returns what Prometheus reads."""

    def __init__(
        self, broker: Broker, reader: RequestReader, peers: PeerRequests, metrics: Callable[[], bytes]
    ) -> None:
        self.broker, self.reader, self.peers, self.metrics = broker, reader, peers, metrics
        self.proxy = Proxy(broker.process.peers, peers)
        self._made: dict[type[Any], Any] = {}

    def get(self, group: type[G]) -> G:
        """Returns a group, also before the broker is ready."""
        found = self._made.get(group)
        if found is None:
            found = self._made[group] = group.of(self)
        return cast(G, found)

    def ready(self, group: type[G]) -> G:
        """Returns a group. Raises NotReady if the broker may not answer."""
        self.broker.readiness.check_ready()
        return self.get(group)


async def _parts(connection: HTTPConnection) -> Parts:  # a plain function would be called in a thread
    found: Parts = connection.app.state.parts
    return found


PartsDep = Annotated[Parts, Depends(_parts)]


class JsonBody:
    """A dependency of path operations on a body of JSON, which it reads and checks. OpenAPI says what it `takes`."""

    def __init__(self, takes: Takes, struct: type[msgspec.Struct], free_form: bool) -> None:
        self.takes = takes
        self._decoder = msgspec.json.Decoder(struct)
        self._free_form = free_form

    async def __call__(self, parts: PartsDep, request: RequestDep) -> Any:
        """Returns the struct. Raises as `RequestReader.json` does."""
        return await parts.reader.json(request, self._decoder, self._free_form)


def body(struct: type[msgspec.Struct], example: Any, required: bool = False, free_form: bool = False) -> Any:
    """Returns the dependency on a body; one that is not `required` may be empty, and in one that is `free_form` a field
    may hold any JSON. It stands behind the names in the path, so that those are checked before anything is read."""
    return Depends(JsonBody(Takes(struct, example, required), struct, free_form))


def given(group: type[G]) -> Any:
    """Returns the dependency of a path operation on a group of services. Before the broker is ready it is NotReady."""

    async def find(parts: PartsDep) -> G:
        """Returns the group."""
        return parts.ready(group)

    return Depends(find)

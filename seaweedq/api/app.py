"""The application of one broker: it builds the steps of the pipeline, and finds the services of each route."""

from typing import Any, TypeVar, cast

from seaweedq.api.access.audit import RequestAudit
from seaweedq.api.access.authentication import Authentication, PeerRequests
from seaweedq.api.access.origins import CorsRules, HostRules
from seaweedq.api.access.rates import Rates
from seaweedq.api.connections.connections import Addresses, Connections, ForwardedRequests
from seaweedq.api.connections.request_reader import RequestReader
from seaweedq.api.fastapi_routes import documented_routes
from seaweedq.api.handlers.internal import BrokerCalls, Call, InternalServer, SegmentCalls, StreamCalls, TopicCalls
from seaweedq.api.metrics.catalogue import metrics_of
from seaweedq.api.metrics.families import render
from seaweedq.api.pipeline import Pipeline
from seaweedq.api.problems import InsideLog
from seaweedq.api.proxy import Proxy
from seaweedq.api.refusals import Refusals
from seaweedq.api.request import Receive, Request, Scope, Send
from seaweedq.api.traffic import Traffic
from seaweedq.api.wiring import groups_of
from seaweedq.broker.broker import Broker
from seaweedq.errors import SeaweedqError

T = TypeVar("T")


class Application:
    """The ASGI app of one broker."""

    def __init__(self, broker: Broker) -> None:
        process = broker.process
        settings, clock, masked = process.settings, process.clock, broker.callers.masked
        self._broker = broker
        self._readiness = broker.readiness
        self._inside = InsideLog(clock, masked)
        self.refusals, self._traffic = Refusals(clock, masked), Traffic(clock)
        self._reader = RequestReader.of(settings, broker.budget, clock, self.refusals, self._parties)
        self.unread, self.bodies = self._reader.unread, self._reader.bodies
        self.connections = Connections()
        cors = CorsRules(settings.cors_origins.split(","))
        self.addresses = Addresses(settings.trusted_proxies)
        self.forwarded = ForwardedRequests(self.addresses, self.refusals.note)
        self._peers = PeerRequests(broker.verifier, self.refusals)
        self._audit = RequestAudit(broker.audit, self.addresses.of, masked)
        self._groups: dict[type, Any] = {}
        self.fastapi = documented_routes(self._note, self.service)
        self.fastapi.state.readiness, self.fastapi.state.metrics = self._readiness, self.metrics
        self.pipeline = Pipeline(
            readiness=self._readiness,
            traffic=self._traffic,
            forwarded=self.forwarded,
            cors=cors,
            hosts=HostRules(process.url, settings.allowed_hosts.split(","), cors),
            peers=self._peers,
            authentication=Authentication(broker.callers, settings.auth == "required", self._peers.is_authenticated),
            audit=self._audit,
            rates=Rates(clock, broker.accounts, broker.callers, broker.catalog, settings.max_request_bytes),
            catalog=broker.catalog,
            unread=self.unread,
            internal=InternalServer(self._peers, self._readiness, self._reader, self._calls),
            fastapi=self.fastapi,
            service=self.service,
            note=self._note,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request, as ASGI."""
        await self.pipeline(scope, receive, send)

    async def at_peer_port(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request that came at the port for brokers, as ASGI."""
        await self.pipeline(scope, receive, send, at_peer_port=True)

    def service(self, group: type[T]) -> T:
        """Returns a group of services, or a route. Raises NotReady if the broker may not answer."""
        self._readiness.check_ready()
        return cast(T, self._made()[group])

    def metrics(self) -> bytes:
        """Returns the metrics of Prometheus, which are few before the broker is ready."""
        return render(metrics_of(self._broker, self._traffic, self.connections, self.refusals))

    def _parties(self) -> int:
        """Returns how many share the broker: the principals, and all who are anonymous, if they may be."""
        return self._broker.callers.view.count + (self._broker.process.settings.auth != "required")

    def _note(self, error: SeaweedqError, request: Request) -> None:
        """Logs and counts an error with which a client is answered."""
        self._inside.note(error)
        self.refusals.note_error(error)
        self._audit.denied(request, error)

    def _made(self) -> dict[type, Any]:
        """Returns the groups of services by type; they are made once, as soon as the broker is ready."""
        if not self._groups:
            proxy = Proxy(self._broker.process.peers, self._peers)
            self._groups = {type(group): group for group in groups_of(self._broker, self._reader, proxy)}
        return self._groups

    def _calls(self) -> dict[str, Call]:
        groups = self._made()
        calls: dict[str, Call] = {}
        for kind in (BrokerCalls, TopicCalls, SegmentCalls, StreamCalls):
            calls |= groups[kind].by_name()
        return calls

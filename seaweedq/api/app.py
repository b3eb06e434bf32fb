"""The ASGI application: hot routes ahead of FastAPI, everything else through it, all of them in one OpenAPI document.

Publish, pull and ack are matched by hand in `__call__` and run as plain ASGI, which is several times faster than a
FastAPI function. Each request passes the same steps before and after its route, whatever serves it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

from seaweedq.api.access.audit import CREATED, Audited
from seaweedq.api.access.authentication import RULE, Gate, caller_of
from seaweedq.api.access.origins import CorsRules, HostRules, check_client, check_raw_path
from seaweedq.api.access.peers import PEER_PORT, PREFIX, PeerRequests
from seaweedq.api.access.rates import METER, Meter, Rates
from seaweedq.api.access.traffic import SWITCHED, Traffic
from seaweedq.api.bodies.outgoing import Outgoing, end_connection
from seaweedq.api.bodies.request_reader import RequestReader
from seaweedq.api.connections.addresses import Addresses, ForwardedRequests
from seaweedq.api.connections.connections import Connections
from seaweedq.api.fastapi_routes import documented_routes
from seaweedq.api.handlers.acks import Acks
from seaweedq.api.handlers.internal import BrokerCalls, Call, InternalServer, SegmentCalls, StreamCalls, TopicCalls
from seaweedq.api.handlers.publish import Publish
from seaweedq.api.handlers.pulls import Pulls
from seaweedq.api.handlers.uploads import METHODS, StreamedBody, UploadContent
from seaweedq.api.metrics.catalogue import sources_of
from seaweedq.api.metrics.families import render
from seaweedq.api.metrics.requests import ProcessMetrics, RequestMetrics, StrangerMetrics
from seaweedq.api.problems import InsideLog, problem, unexpected
from seaweedq.api.proxy import Proxy
from seaweedq.api.refusals import Refusals
from seaweedq.api.request import Answer, ClientGone, Receive, Scope, Send, check_query, connection_of, send, staying
from seaweedq.api.streams.sse import last_event
from seaweedq.api.streams.subscription_stream import SubscriptionStreamRoute
from seaweedq.api.streams.topic_stream import TopicStreamRoute
from seaweedq.api.streams.web_socket import end, is_accepted, refuse
from seaweedq.api.terminal import ending_lines
from seaweedq.api.wiring import groups_of
from seaweedq.broker.broker import Broker
from seaweedq.errors import NotReady, Overloaded, RouteNotFound, SeaweedqError

Work = Coroutine[Any, Any, Answer | None]
T = TypeVar("T")
A = TypeVar("A", Answer, Answer | None, None)


class Application:
    """The ASGI app of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._readiness = broker.readiness
        environment = broker.process
        masked = broker.callers.masked
        self._inside = InsideLog(environment.clock, masked)
        self.refusals, self._traffic = Refusals(environment.clock, masked), Traffic(environment.clock)
        self._reader = RequestReader.of(
            environment.settings, broker.budget, environment.clock, self.refusals, self._parties
        )
        self.unread, self.bodies = self._reader.unread, self._reader.bodies
        self.connections = Connections()
        settings = environment.settings
        self._cors = CorsRules(settings.cors_origins.split(","))
        self._hosts = HostRules(environment.url, settings.allowed_hosts.split(","), self._cors)
        self.addresses = Addresses(settings.trusted_proxies)
        self.forwarded = ForwardedRequests(self.addresses, self.refusals.note)
        self._peers = PeerRequests(broker.verifier, self.refusals)
        needs_token = environment.settings.auth == "required"
        self._gate = Gate(broker.callers, needs_token, self._peers.authenticated)
        self._audited = Audited(broker.audit, self._peers.was_found, self.addresses.of, masked)
        most_bytes = settings.max_request_bytes
        self._rates = Rates(environment.clock, broker.accounts, broker.callers, broker.catalog, most_bytes)
        self._internal = InternalServer(self._peers, self._readiness, self._reader, self._calls)
        self._groups: dict[type, Any] = {}
        self.fastapi = documented_routes(self._note, self.service)
        self.fastapi.state.readiness, self.fastapi.state.metrics = self._readiness, self.metrics

    def _parties(self) -> int:
        """Returns how many share the broker: the principals, and all who are anonymous, where they may be."""
        return self._broker.callers.view.count + (self._broker.process.settings.auth != "required")

    async def __call__(self, scope: Scope, receive: Receive, out: Send) -> None:
        """Answers hot routes here, the others in FastAPI. Requests that still wait at shutdown get 503."""
        if scope["type"] == "websocket":
            await self._serve_socket(scope, receive, out)
            return
        out = ending_lines(scope, out)
        outgoing = Outgoing(out, self._reader.unread, partial(self._ends_connection, scope))
        if self._cors:
            outgoing.pass_through(partial(self._cors.naming, scope))
        serve = self._serve_forwarded if self.addresses.has_proxies else self._serve
        began_s = self._traffic.begin()
        try:
            await serve(scope, receive, outgoing)
        except asyncio.CancelledError:  # uvicorn cancels the requests that still run, and would answer a bare 500
            if not self._readiness.stopping:
                raise
            if not outgoing.begun:
                error = NotReady("the broker is stopping; whether the request has taken effect is unknown")
                await outgoing.answer(_problem_answer(error))
        finally:
            if outgoing.begun:
                self._traffic.note(scope, outgoing.status, began_s)

    async def at_peer_port(self, scope: Scope, receive: Receive, out: Send) -> None:
        """Answers a request that came at the port for brokers."""
        scope[PEER_PORT] = True
        await self(scope, receive, out)

    def _ends_connection(self, scope: Scope) -> bool:
        """Returns whether an answer is the last one on its connection, so that the client turns to another broker. A
        connection that is idle when the broker ends may be closed under a request. Brokers stay until the hand-over."""
        if scope["type"] != "http" or not (self._readiness.leaving or self._readiness.draining):
            return False
        return self._readiness.draining or not scope["path"].startswith(PREFIX)

    def service(self, group: type[T]) -> T:
        """Returns a group of services, or a route. Raises NotReady where the broker may not answer."""
        self._readiness.check_ready()
        return cast(T, self._made()[group])

    def metrics(self) -> bytes:
        """Returns the metrics of Prometheus, which are few before the broker is ready."""
        sources = sources_of(self._broker) if self._readiness.ready else ()
        requests = RequestMetrics(self._readiness.can_take_work, self._traffic, self.connections)
        strangers = StrangerMetrics(self.refusals, self._broker.audit)
        return render((requests, strangers, *sources, ProcessMetrics()))

    async def _serve_forwarded(self, scope: Scope, receive: Receive, out: Outgoing) -> None:
        """Serves a request where some come from behind trusted proxies."""
        try:
            with self.forwarded.answering(scope):
                await self._serve(scope, receive, out)
        except Overloaded as error:  # nothing was begun: all that the block serves answers its own errors
            await out.answer(_problem_answer(error))

    async def _serve(self, scope: Scope, receive: Receive, out: Outgoing) -> None:
        if refused := self._cors.preflight(scope) or await self._refused(scope):
            await out.answer(refused)
            return
        meter: Meter | None = scope.get(METER)
        if meter is not None:
            receive, out.meter = meter.receiving(scope, receive), meter
        if self._audited.is_change(scope):
            out.pass_through(self._audited.watch(scope))
            try:
                await self._answer(scope, receive, out)
            finally:
                self._audited.end(scope)
            return
        await self._answer(scope, receive, out)
        if CREATED in scope:
            self._audited.end(scope)

    async def _answer(self, scope: Scope, receive: Receive, out: Outgoing) -> None:
        """Answers a request that may be served."""
        work: Work | None = None
        if scope["type"] == "http" and scope["path"].startswith(PREFIX):
            work = self._internal.answer(scope, receive)
        elif scope["type"] == "http" and scope["method"] == "POST":
            work = self._hot(scope, receive)
        elif scope["type"] == "http" and (streamed := self._streamed(scope, body := StreamedBody(scope, receive), out)):
            if answer := await self._answered(scope, streamed):
                if out.begun:  # a stream whose caller has lost the right to it
                    await out(last_event(bytes(answer.body)))
                else:
                    await send(answer, out if await body.drained() else _last_answer(out))
            return
        answer = await self._answered(scope, self._by_fastapi(scope, receive, out) if work is None else work)
        if answer is None:
            return
        if not out.begun:
            await out.answer(answer)
        elif connection := connection_of(scope):  # its caller has lost the right to the rest of what is on its way
            connection.abort()

    async def _by_fastapi(self, scope: Scope, receive: Receive, out: Send) -> Answer | None:
        with suppress(Exception):  # answered and logged; starlette raises it once more
            await self.fastapi(scope, receive, out)
        return None

    async def _answered(self, scope: Scope, work: Coroutine[Any, Any, A]) -> Answer | None:
        """Returns the answer of a route; None where it is sent, or nobody is left to answer."""
        return await answered(self._gate.while_allowed(scope, work), partial(self._note, scope=scope))

    async def _refused(self, scope: Scope) -> Answer | None:
        """Returns the answer to a request that names a foreign host, comes from a foreign page, hides its path, repeats
        a parameter, or may not be served to its caller."""
        try:
            if not self._peers.check_port(scope):  # no page reaches the other port
                self._hosts.check(scope)
            check_raw_path(scope)
            check_query(scope)
            await self._gate.admit_or_learn(scope)
            check_client(scope, scope[RULE][0].action)
            self._rates.admit(caller_of(scope), scope)
        except SeaweedqError as error:
            self._note(error, scope)
            return _problem_answer(error)
        return None

    def _note(self, error: SeaweedqError, scope: Scope) -> None:
        """Logs and counts an error with which a client is answered."""
        self._inside.note(error)
        self.refusals.note_error(error)
        self._audited.denied(scope, error)

    def _hot(self, scope: Scope, receive: Receive) -> Work | None:
        match scope["path"].split("/"):
            case ["", "v1", "topics", topic, "messages"]:
                return self._call(Publish, Publish.publish, scope, receive, topic)
            case ["", "v1", "topics", topic, "subscriptions", name, "pull"]:
                return self._call(Pulls, Pulls.pull, scope, receive, topic, name)
            case ["", "v1", "topics", topic, "subscriptions", name, ("ack" | "nack" | "extend") as verb]:
                return self._call(Acks, getattr(Acks, verb), scope, receive, topic, name)
        return None

    def _streamed(self, scope: Scope, body: StreamedBody, out: Send) -> Work | None:
        """Returns the work of a route that receives or sends bytes as they come; its answer is None once it is sent."""
        match scope["path"].split("/"):
            case ["", "v1", "topics", topic, "uploads", upload, "content"] if scope["method"] in METHODS:
                return self._call(UploadContent, UploadContent.serve, scope, body, out, topic, upload)
            case ["", "v1", "topics", topic, "stream"] if scope["method"] == "GET":
                return self._call_staying(TopicStreamRoute, TopicStreamRoute.serve, scope, body, out, topic)
            case ["", "v1", "topics", topic, "subscriptions", name, "stream"] if scope["method"] == "GET":
                return self._call_staying(
                    SubscriptionStreamRoute, SubscriptionStreamRoute.serve, scope, body, out, topic, name
                )
        return None

    async def _serve_socket(self, scope: Scope, receive: Receive, out: Send) -> None:
        """Serves a WebSocket, or refuses it before it is one."""
        began_s = self._traffic.begin()
        answer = await self._refused(scope)
        if answer is None:
            answer = await self._answered(scope, self._counted_socket(scope, *_metered(scope, receive, out)))
        if answer or is_accepted(scope):
            self._traffic.note(scope, SWITCHED if answer is None or is_accepted(scope) else answer.status, began_s)
        if answer:
            await (end(answer, out) if is_accepted(scope) else refuse(answer, out))

    async def _counted_socket(self, scope: Scope, receive: Receive, out: Send) -> Answer | None:
        with self.forwarded.answering(scope):
            return await self._socket(scope, receive, out)

    def _socket(self, scope: Scope, receive: Receive, out: Send) -> Work:
        """Returns the work of a WebSocket, which raises RouteNotFound where there is none at the path."""
        match scope["path"].split("/"):
            case ["", "v1", "topics", topic, "stream"]:
                return self._call_staying(TopicStreamRoute, TopicStreamRoute.serve_socket, scope, receive, out, topic)
            case ["", "v1", "topics", topic, "subscriptions", name, "stream"]:
                serve = SubscriptionStreamRoute.serve_socket
                return self._call_staying(SubscriptionStreamRoute, serve, scope, receive, out, topic, name)
        return _no_route(scope["path"])

    async def _call(self, group: type[T], route: Callable[..., Awaitable[A]], *arguments: Any) -> A:
        return await route(self.service(group), *arguments)

    async def _call_staying(self, group: type[T], route: Callable[..., Awaitable[A]], scope: Scope, *more: Any) -> A:
        with staying(scope):
            return await self._call(group, route, scope, *more)

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


def _metered(scope: Scope, receive: Receive, out: Send) -> tuple[Receive, Send]:
    """Returns what receives and sends, and counts both where the principal has limits."""
    meter: Meter | None = scope.get(METER)
    return (receive, out) if meter is None else (meter.receiving(scope, receive), meter.sending(out))


async def _no_route(path: str) -> Answer | None:
    raise RouteNotFound(f"there is no WebSocket at {path[:200]}; see /docs")


def _last_answer(out: Send) -> Send:
    """Makes the answer the last one on its connection, so that the client turns to another broker."""

    async def closing(message: MutableMapping[str, Any]) -> None:
        """Sends a part of the answer on, and has its start say that the connection ends."""
        if message["type"] == "http.response.start":
            end_connection(message)
        await out(message)

    return closing


async def answered(work: Awaitable[Answer | None], note: Callable[[SeaweedqError], None]) -> Answer | None:
    """Returns the answer, or the problem in its place; None where nobody is left to answer."""
    try:
        return await work
    except SeaweedqError as error:
        note(error)
        return _problem_answer(error)
    except ClientGone:
        return None
    except Exception as error:
        status, headers, content = unexpected(error)
        return Answer(status, content, headers)


def _problem_answer(error: SeaweedqError) -> Answer:
    status, headers, content = problem(error)
    return Answer(status, content, headers)

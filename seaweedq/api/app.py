"""The application of one broker: its routes, and the way of every request, as one list: bounds, host and origin, peer,
match, authenticate, authorise, limit, handle, answer. WebSockets and streams go the same way. The audit encloses the
last four of a change.

Publish, pull and ack are hot: they are handled as plain ASGI, which is several times faster than a path operation of
FastAPI. What a step refuses is an error that it raises; `_answer` makes the problem of it, counts and logs it. Bounds
come before anything is looked up, and which routes there are is the same for everybody: unknown paths get 404 and
unsupported methods 405 before authentication.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, MutableMapping
from contextlib import suppress
from typing import Any

from seaweedq.access.limits import NO_LIMITS
from seaweedq.api.access.audit import RequestAudit
from seaweedq.api.access.authentication import PEER_PREFIX, Authentication, PeerRequests
from seaweedq.api.access.origins import CorsRules, HostRules, check_client, check_raw_path
from seaweedq.api.access.rates import Rates
from seaweedq.api.connections.answers import KeptAnswer, Outgoing, SocketOutgoing
from seaweedq.api.connections.connections import Addresses, Connections, ForwardedRequests
from seaweedq.api.connections.request_reader import RequestReader, StreamedBody
from seaweedq.api.console import pages
from seaweedq.api.handlers import (
    acks,
    cluster,
    denials,
    fetch,
    files,
    imports,
    internal,
    principals,
    publish,
    pulls,
    rebuild,
    schemas,
    seek,
    segments,
    subscriptions,
    tokens,
    topics,
    uploads,
)
from seaweedq.api.metrics.catalogue import metrics_of
from seaweedq.api.metrics.families import render
from seaweedq.api.openapi import path_operations
from seaweedq.api.problems import InsideLog, Refusals, problem_answer, unexpected_answer
from seaweedq.api.request import Answer, ClientGone, Receive, Request, Scope, Send, Traffic
from seaweedq.api.routes import COLD, HOT, KNOWN, Route, RouteTable, nobody
from seaweedq.api.services import Parts
from seaweedq.api.streams import subscription_stream, topic_stream
from seaweedq.broker.broker import Broker
from seaweedq.errors import NotReady, SeaweedqError
from seaweedq.traces import Traces

_ANY_CALL = Route("", "none", KNOWN, nobody, is_judged=True)
Work = Coroutine[Any, Any, Answer | None]
Out = Outgoing | SocketOutgoing | KeptAnswer
# The modules with routes, in the order of use, which is that of the OpenAPI document.
HANDLERS = (
    *(topics, schemas, publish, subscriptions, pulls, acks, subscription_stream, seek, fetch, topic_stream, files),
    *(uploads, imports, segments, principals, tokens, denials, cluster, rebuild, pages, internal),
)


async def _nothing() -> MutableMapping[str, Any]:
    return {"type": "http.disconnect"}


def route_table() -> RouteTable:
    """Returns all routes. Raises ValueError if two are the same."""
    return RouteTable(one.router for one in HANDLERS)


class Application:
    """The ASGI app of one broker."""

    def __init__(self, broker: Broker) -> None:
        process = broker.process
        settings, clock, masked = process.settings, process.clock, broker.callers.masked
        self._broker, self._readiness, self._catalog, self._clock = broker, broker.readiness, broker.catalog, clock
        self.table = route_table()
        self._inside = InsideLog(clock, masked)
        self.refusals, self._traffic = Refusals(clock, masked), Traffic(clock, self.table.routes)
        reader = RequestReader.of(settings, broker.budget, clock, self.refusals, self._parties)
        self.unread, self.bodies = reader.unread, reader.bodies
        self.connections = Connections()
        self.addresses = Addresses(settings.trusted_proxies)
        self.forwarded = ForwardedRequests(self.addresses, self.refusals.note)
        self._traces = process.traces
        self._cors = CorsRules(settings.cors_origins.split(","))
        self._has_cors = bool(self._cors)
        self._hosts = HostRules(process.url, settings.allowed_hosts.split(","), self._cors)
        self._peers = PeerRequests(broker.verifier, self.refusals)
        self._authentication = Authentication(broker.callers, settings.auth == "required", self._peers.is_authenticated)
        self._audit = RequestAudit(broker.audit, self.addresses.of, masked)
        self._rates = Rates(clock, broker.accounts, broker.callers, broker.catalog, settings.max_request_bytes)
        self.parts = Parts(broker, reader, self._peers, self.metrics)
        self.grpc_calls: Counter[tuple[str, str]] = Counter()  # by method and code
        self._bound: dict[Route, Callable[..., Work]] = {}
        self.fastapi = path_operations(self.table, self._note)
        self.fastapi.state.parts = self.parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send, at_peer_port: bool = False) -> None:
        """Serves a request, as ASGI. One that still waits at shutdown gets 503."""
        request = Request(scope, receive, at_peer_port)
        if request.is_socket:
            out: Out = SocketOutgoing(request, send)
        else:
            more = self._cors.headers(request) if self._has_cors else ()
            out = Outgoing(request, send, self.unread, self._readiness, more)
        await self._serve(request, out)

    async def ask(self, scope: Scope, receive: Receive) -> KeptAnswer:
        """Returns the answer to a request that this process makes of a client's call."""
        request = Request(scope, receive)
        kept = KeptAnswer(request)
        await self._serve(request, kept)
        return kept

    async def _serve(self, request: Request, out: Out) -> None:
        began_s = self._clock.monotonic_s()
        try:
            way = self._counted if self.forwarded.has_proxies else self._pass
            await self._answer(request, out, way(request, out))
        except asyncio.CancelledError:  # uvicorn cancels the requests that still run, and would answer a bare 500
            if request.is_socket or not self._readiness.stopping:
                raise
            if not out.begun:
                if isinstance(out, Outgoing):
                    out.body = None  # is not waited for
                error = NotReady("the broker is stopping; it is unknown whether the request took effect")
                await out.answer(problem_answer(error))
        finally:
            if out.begun:
                self._traffic.note(request, out.status, began_s)

    async def check_caller(self, scope: Scope) -> str:
        """Returns the key of a call's caller, whose resource is in a message that has not been read yet. Raises as
        `authenticate`, and Unauthenticated if no caller counts that could do anything."""
        request = Request(scope, _nothing)
        request.route = _ANY_CALL
        await self._check(request)
        return request.key

    async def while_known(self, scope: Scope, work: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        """Does the `work` of a call that lasts, with the key of its caller, as long as that one counts. Raises as
        `check_caller`."""
        request = Request(scope, _nothing)
        request.route = _ANY_CALL
        await self._check(request)
        await self._authentication.while_allowed(request, work(request.key))

    async def check_right(self, scope: Scope) -> None:
        """Raises what a request would whose caller has no right to it, before its body is made."""
        request = Request(scope, _nothing)
        request.route, request.resource, request.names = self.table.find(request.method, request.path)
        await self._check(request)

    async def _check(self, request: Request) -> None:
        try:
            await self._authentication.authenticate(request)
            self._authentication.authorise(request)
        except SeaweedqError as error:
            self._note(error, request)
            raise

    async def _counted(self, request: Request, out: Out) -> Answer | None:
        """Counts a request of a proxy for its client's address until its answer is taken."""
        with self.forwarded.answering(request):
            await self._answer(request, out, self._pass(request, out))
        return None

    async def _pass(self, request: Request, out: Out) -> Answer | None:
        """The way of a request, from top to bottom. Returns an answer that is still to be sent. Bounds were judged
        before: those of connections and heads, and those of addresses behind proxies."""
        if self._has_cors and (answer := self._cors.preflight(request)):
            return answer
        if not request.at_peer_port:  # no page reaches the other port
            self._hosts.check(request)
        if request.at_peer_port or request.path.startswith(PEER_PREFIX):
            self._peers.check_port(request)
        check_raw_path(request)
        request.check_query()
        request.route, request.resource, request.names = self.table.find(request.method, request.path)  # match
        await self._authentication.authenticate(request)
        if not (request.route.is_change and self._audit.begin(request)):
            return await self._granted(request, out)
        try:
            await self._answer(request, out, self._granted(request, out))
        finally:
            self._audit.end(request, out.status)
        return None

    async def _granted(self, request: Request, out: Out) -> Answer | None:
        """The rest of the way, which the audit encloses."""
        self._authentication.authorise(request)
        check_client(request)
        if request.caller.limits is not NO_LIMITS or self._catalog.limited:
            self._rates.admit(request)
        try:
            work = self._handle(request, out)
            return await (self._authentication.while_allowed(request, work) if request.route.lasts else work)
        finally:
            if request.has_created:
                self._audit.created(request)

    async def _answer(self, request: Request, out: Out, work: Work) -> None:
        """Sends the answer of `work`, or the problem in its place."""
        try:
            answer = await work
        except SeaweedqError as error:
            self._note(error, request)
            answer = problem_answer(error)
        except ClientGone:
            return
        except Exception as error:
            answer = unexpected_answer(error)
        if answer is not None:
            await out.answer(answer)

    def _handle(self, request: Request, out: Out) -> Work:
        """Returns the work of a request's handler. Its answer is None if it has sent it. Raises NotReady."""
        route = request.route
        if route.mode is COLD:
            return self._by_fastapi(request, out)
        if not route.early:
            self._readiness.check_ready()
        handler = self._bound.get(route)
        if handler is None:
            handler = self._bound[route] = getattr(self.parts.get(route.group), route.handler.__name__)
        if route.mode is HOT:
            work: Work = handler(request, *request.names)
            return work if self._traces is None or not route.timed else self._traced(self._traces, request, work)
        if isinstance(out, Outgoing):
            out.body = StreamedBody(request)
        return self._staying(handler, request, out) if route.lasts else handler(request, out, *request.names)

    async def _by_fastapi(self, request: Request, out: Send) -> Answer | None:
        request.scope["state"] = {"request": request}
        with suppress(Exception):  # answered and logged; starlette raises it once more
            await self.fastapi(request.scope, request.receive, out)
        return None

    async def _traced(self, traces: Traces, request: Request, work: Work) -> Answer | None:
        """Does the work of a hot request within a span, if its client has a sampled one."""
        name = request.resource.subscription
        contexts = (request.header(b"traceparent") or "",)
        return await traces.around(work, request.route.timed, request.names[0], contexts, "SERVER", subscription=name)

    async def _staying(self, handler: Callable[..., Work], request: Request, out: Out) -> Answer | None:
        with request.staying():
            return await handler(request, out, *request.names)

    async def at_peer_port(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request that came at the port for brokers, as ASGI."""
        await self(scope, receive, send, at_peer_port=True)

    def metrics(self) -> bytes:
        """Returns the metrics of Prometheus, which are few before the broker is ready."""
        return render(metrics_of(self._broker, self._traffic, self.grpc_calls, self.connections, self.refusals))

    def _parties(self) -> int:
        """Returns how many share the broker: the principals, and all who are anonymous, if they may be."""
        return self._broker.callers.view.count + (self._broker.process.settings.auth != "required")

    def _note(self, error: SeaweedqError, request: Request) -> None:
        """Logs and counts an error with which a client is answered."""
        self._inside.note(error)
        self.refusals.note_error(error)
        self._audit.denied(request, error)

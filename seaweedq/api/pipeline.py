"""The way of every request, as one list: bounds, host and origin, peer, match, authenticate, authorise, limit, handle,
answer. WebSockets and streams go the same way. The audit encloses the last four of a change.

Publish, pull and ack are hot: they are answered here, as plain ASGI, which is several times faster than a function of
FastAPI. What a step refuses is an error that it raises; `_answered` makes the problem of it, counts and logs it. Bounds
come before anything is looked up, and which routes there are is the same for everybody: unknown paths get 404 and
unsupported methods 405 before authentication.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import FastAPI

from seaweedq.access.limits import NO_LIMITS
from seaweedq.api.access.audit import RequestAudit
from seaweedq.api.access.authentication import PEER_PREFIX, Authentication, PeerRequests
from seaweedq.api.access.origins import CorsRules, HostRules, check_client, check_raw_path
from seaweedq.api.access.rates import Rates
from seaweedq.api.connections.answers import Outgoing, SocketOutgoing
from seaweedq.api.connections.connections import ForwardedRequests
from seaweedq.api.connections.memory import UnreadAnswers
from seaweedq.api.connections.request_reader import StreamedBody
from seaweedq.api.handlers.acks import Acks
from seaweedq.api.handlers.internal import InternalServer
from seaweedq.api.handlers.publish import Publish
from seaweedq.api.handlers.pulls import Pulls
from seaweedq.api.handlers.uploads import METHODS, UploadContent
from seaweedq.api.problems import problem_answer, unexpected_answer
from seaweedq.api.request import Answer, ClientGone, Receive, Request, Scope, Send
from seaweedq.api.routes import find
from seaweedq.api.streams.subscription_stream import SubscriptionStreamRoute
from seaweedq.api.streams.topic_stream import TopicStreamRoute
from seaweedq.api.traffic import Traffic
from seaweedq.broker.broker import Readiness
from seaweedq.broker.topics import Catalog
from seaweedq.errors import NotReady, RouteNotFound, SeaweedqError

Work = Coroutine[Any, Any, Answer | None]
Out = Outgoing | SocketOutgoing
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The steps of one broker. `service` returns the services of a route, or raises NotReady."""

    readiness: Readiness
    traffic: Traffic
    forwarded: ForwardedRequests
    cors: CorsRules
    hosts: HostRules
    peers: PeerRequests
    authentication: Authentication
    audit: RequestAudit
    rates: Rates
    catalog: Catalog
    unread: UnreadAnswers
    internal: InternalServer
    fastapi: FastAPI
    service: Callable[[type[Any]], Any]
    note: Callable[[SeaweedqError, Request], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send, at_peer_port: bool = False) -> None:
        """Serves a request. One that still waits at shutdown gets 503."""
        request = Request(scope, receive, at_peer_port)
        out: Out = SocketOutgoing(request, send) if request.is_socket else self._outgoing(request, send)
        began_s = self.traffic.begin()
        try:
            way = self._counted if self.forwarded.has_proxies else self._pass
            await self._answer(request, out, way(request, out))
        except asyncio.CancelledError:  # uvicorn cancels the requests that still run, and would answer a bare 500
            if request.is_socket or not self.readiness.stopping:
                raise
            if not out.begun and isinstance(out, Outgoing):
                out.body = None  # is not waited for
                error = NotReady("the broker is stopping; whether the request has taken effect is unknown")
                await out.answer(problem_answer(error))
        finally:
            if out.begun:
                self.traffic.note(request, out.status, began_s)

    async def _counted(self, request: Request, out: Out) -> Answer | None:
        """Counts a request of a proxy for its client's address until its answer is taken."""
        with self.forwarded.answering(request):
            await self._answer(request, out, self._pass(request, out))
        return None

    async def _pass(self, request: Request, out: Out) -> Answer | None:
        """The way of a request, from top to bottom. Returns an answer that is still to be sent. Bounds were judged
        before: those of connections and heads, and those of addresses behind proxies."""
        if self.cors and (answer := self.cors.preflight(request)):
            return answer
        if not request.at_peer_port:  # no page reaches the other port
            self.hosts.check(request)
        if request.at_peer_port or request.path.startswith(PEER_PREFIX):
            self.peers.check_port(request)
        check_raw_path(request)
        request.check_query()
        request.route, request.resource = find(request.method, request.path)  # match
        await self.authentication.authenticate(request)
        if not (request.route.is_change and self.audit.begin(request)):
            return await self._granted(request, out)
        try:
            await self._answer(request, out, self._granted(request, out))
        finally:
            self.audit.end(request, out.status)
        return None

    async def _granted(self, request: Request, out: Out) -> Answer | None:
        """The rest of the way, which the audit encloses."""
        self.authentication.authorise(request)
        check_client(request)
        if request.caller.limits is not NO_LIMITS or self.catalog.limited:
            self.rates.admit(request)
        try:
            work = self._handle(request, out)
            return await (self.authentication.while_allowed(request, work) if request.route.lasts else work)
        finally:
            if request.has_created:
                self.audit.created(request)

    async def _answer(self, request: Request, out: Out, work: Work) -> None:
        """Sends the answer of `work`, or the problem in its place."""
        try:
            answer = await work
        except SeaweedqError as error:
            self.note(error, request)
            answer = problem_answer(error)
        except ClientGone:
            return
        except Exception as error:
            answer = unexpected_answer(error)
        if answer is not None:
            await out.answer(answer)

    def _outgoing(self, request: Request, send: Send) -> Outgoing:
        more = self.cors.headers(request) if self.cors else ()
        return Outgoing(request, send, self.unread, self.readiness, more)

    def _handle(self, request: Request, out: Out) -> Work:
        """Returns the work of a request's route. Its answer is None if it has sent it."""
        if isinstance(out, SocketOutgoing):
            return self._socket(request, out)
        if request.method == "POST":
            if request.path.startswith(PEER_PREFIX):
                return self.internal.answer(request)
            if work := self._hot(request):
                return work
        return self._streamed(request, out) or self._by_fastapi(request, out)

    async def _by_fastapi(self, request: Request, out: Send) -> Answer | None:
        request.scope["state"] = {"request": request}
        with suppress(Exception):  # answered and logged; starlette raises it once more
            await self.fastapi(request.scope, request.receive, out)
        return None

    def _hot(self, request: Request) -> Work | None:
        match request.path.split("/"):
            case ["", "v1", "topics", topic, "messages"]:
                return self._call(Publish, Publish.publish, request, topic)
            case ["", "v1", "topics", topic, "subscriptions", name, "pull"]:
                return self._call(Pulls, Pulls.pull, request, topic, name)
            case ["", "v1", "topics", topic, "subscriptions", name, ("ack" | "nack" | "extend") as verb]:
                return self._call(Acks, getattr(Acks, verb), request, topic, name)
        return None

    def _streamed(self, request: Request, out: Outgoing) -> Work | None:
        """Returns the work of a route that receives or sends bytes as they come."""
        match request.path.split("/"):
            case ["", "v1", "topics", topic, "uploads", upload, "content"] if request.method in METHODS:
                out.body = StreamedBody(request)
                return self._call(UploadContent, UploadContent.serve, request, out, topic, upload)
            case ["", "v1", "topics", topic, "stream"] if request.method == "GET":
                out.body = StreamedBody(request)
                return self._call_staying(TopicStreamRoute, TopicStreamRoute.serve, request, out, topic)
            case ["", "v1", "topics", topic, "subscriptions", name, "stream"] if request.method == "GET":
                out.body = StreamedBody(request)
                serve = SubscriptionStreamRoute.serve
                return self._call_staying(SubscriptionStreamRoute, serve, request, out, topic, name)
        return None

    def _socket(self, request: Request, out: SocketOutgoing) -> Work:
        match request.path.split("/"):
            case ["", "v1", "topics", topic, "stream"]:
                return self._call_staying(TopicStreamRoute, TopicStreamRoute.serve_socket, request, out, topic)
            case ["", "v1", "topics", topic, "subscriptions", name, "stream"]:
                serve = SubscriptionStreamRoute.serve_socket
                return self._call_staying(SubscriptionStreamRoute, serve, request, out, topic, name)
        raise RouteNotFound(f"there is no WebSocket at {request.path[:200]}; see /docs")

    async def _call(self, group: type[T], route: Callable[..., Awaitable[Any]], *arguments: Any) -> Answer | None:
        found: Answer | None = await route(self.service(group), *arguments)
        return found

    async def _call_staying(
        self, group: type[T], route: Callable[..., Awaitable[Any]], request: Request, *more: Any
    ) -> Answer | None:
        with request.staying():
            return await self._call(group, route, request, *more)

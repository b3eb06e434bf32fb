"""The async shell's I/O: httpx carries the core's requests, over HTTP/1.1 with kept connections."""

import os
import threading
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar

import httpx

from seaweedq.client.aio.stop import NEVER, AsyncStop, Stopped
from seaweedq.client.core.attempts import Brokers
from seaweedq.client.core.effects import (
    Attempt,
    BlockingCall,
    Chunk,
    Effect,
    Pause,
    Read,
    Reply,
    Request,
    SignedRequest,
    Steps,
    Together,
)
from seaweedq.client.files import Slice
from seaweedq.client.http import LIMITS, Credentials, build, failed
from seaweedq.errors import ClientError, ConnectionFailed, SeaweedqError

T = TypeVar("T")


class _Stream:
    """The body of an answer, as it arrives."""

    def __init__(self, url: str, response: httpx.Response) -> None:
        self._url, self._response = url, response
        self._chunks = response.aiter_raw()

    async def read(self) -> bytes:
        """Returns the next bytes, or no bytes at the end. Raises ConnectionFailed."""
        try:
            return await anext(self._chunks, b"")
        except httpx.RequestError as error:
            raise failed(self._url, error) from error

    async def close(self) -> None:
        """Returns the connection to the pool, or closes the connection if it has unread bytes."""
        await self._response.aclose()


class AsyncTransport:
    """Drives the core's steps. For one event loop."""

    def __init__(
        self,
        brokers: Brokers,
        timeout_s: float,
        headers: Mapping[str, str] | None,
        transport: httpx.AsyncBaseTransport | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._brokers, self._timeout_s, self._mock = brokers, timeout_s, transport
        self._credentials = credentials or Credentials()
        own_secret = any(name.lower() == "authorization" for name in headers or {})
        brokers.has_secret = self._credentials.has_token or own_secret
        self._headers = headers
        self._connect()

    def _connect(self) -> None:
        self._process = os.getpid()
        self._http = httpx.AsyncClient(
            headers=self._headers,
            limits=LIMITS,
            verify=self._credentials.verify(self._brokers.urls[0]),
            transport=self._mock,
        )
        self._store_http: httpx.AsyncClient | None = None
        self._lock = threading.Lock()

    async def run(self, steps: Steps[T], stop: AsyncStop = NEVER) -> T:
        """Runs the steps and returns their result, or raises their error. Cancelling
        the call, or setting `stop`, throws an exception into the steps."""
        answer: Any = None
        failure: BaseException | None = None
        while True:
            try:
                effect = steps.throw(failure) if failure else steps.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            except SeaweedqError as error:
                raise error.with_traceback(None) from error.__cause__  # the steps' frames would hide the caller's line
            answer, failure = None, None
            try:
                stop.check()
                answer = await self._perform(effect, stop)
            except BaseException as error:  # the steps may have something to tidy up
                failure = error
                if isinstance(error, Stopped):
                    stop = NEVER  # the steps' own reaction is not stopped

    async def chunks(self, steps: Steps[None]) -> AsyncIterator[bytes]:
        """Runs the steps of a payload and yields its bytes. Ending it returns connections."""
        answer: Any = None
        failure: ConnectionFailed | None = None
        stream: _Stream | None = None
        try:
            while True:
                try:
                    effect = steps.throw(failure) if failure else steps.send(answer)
                except StopIteration:
                    return
                answer, failure = None, None
                if isinstance(effect, Chunk):
                    yield effect.data
                    continue
                try:
                    answer = await self._perform(effect)
                except ConnectionFailed as error:
                    failure = error
                if isinstance(answer, Reply) and answer.stream:
                    stream = await _replaced(stream, answer.stream)
        finally:
            await _replaced(stream, None)

    async def _perform(self, effect: Effect, stop: AsyncStop = NEVER) -> Any:
        match effect:
            case Request():
                return await self.run(self._brokers.send(effect), stop)
            case Attempt() | SignedRequest():
                return await self._send(effect, stop)
            case Read():
                return await effect.stream.read()
            case BlockingCall():
                return await stop.run_blocking(effect.run)
            case Pause():
                return await stop.pause(effect.seconds)
            case Together():
                return await stop.together(self.run, effect)
        raise TypeError(f"{type(effect).__name__} can be used only where the response is read as a stream")

    async def _send(self, effect: Attempt | SignedRequest, stop: AsyncStop) -> Reply:
        request = effect.request if isinstance(effect, Attempt) else effect
        http = self._http_for(effect)
        chunks = stop.chunks(request.content) if isinstance(request.content, Slice) else None
        made = build(http, effect, chunks, self._timeout_s, self._credentials)
        try:
            response = await http.send(made, stream=request.streamed)
            if request.streamed and response.is_success:
                return Reply(response.status_code, response.headers, b"", effect.url, _Stream(effect.url, response))
            if request.streamed:
                try:
                    await response.aread()
                finally:
                    await response.aclose()
        except httpx.RequestError as error:
            raise failed(effect.url, error) from error
        return Reply(response.status_code, response.headers, response.content, effect.url)

    def _http_for(self, effect: Attempt | SignedRequest) -> httpx.AsyncClient:
        """Returns the HTTP client for a request: only the user's brokers get the user's headers, stores do not.

        A forked process gets connections of its own: on shared ones it would read its parent's answers.
        """
        if self._process != os.getpid():
            self._connect()
        if self._http.is_closed:
            raise ClientError("this client is closed")
        if isinstance(effect, Attempt) or any(effect.url.startswith(f"{one}/") for one in self._brokers.urls):
            return self._http
        with self._lock:
            self._store_http = self._store_http or httpx.AsyncClient(limits=LIMITS, transport=self._mock)
        return self._store_http

    async def close(self) -> None:
        """Closes the connections. In a forked process, the connections of the parent process stay open."""
        if self._process != os.getpid():
            return
        await self._http.aclose()
        if self._store_http is not None:
            await self._store_http.aclose()


async def _replaced(old: _Stream | None, new: _Stream | None) -> _Stream | None:
    if old is not None:
        await old.close()
    return new

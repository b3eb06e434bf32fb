"""The sync shell's I/O: httpx carries the core's requests, over HTTP/1.1 with kept connections.

A thread's work is stopped between two effects, and between two chunks of a body.
"""

import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Optional, TypeVar

import httpx

from seaweedq.client.core.broker_choice import Brokers
from seaweedq.client.core.effects import (
    Attempt,
    Chunk,
    Effect,
    Pause,
    Read,
    Reply,
    Request,
    Signed,
    Steps,
    Together,
    Work,
)
from seaweedq.client.files import Slice
from seaweedq.client.http import (
    LIMITS,
    Credentials,
    build,
    check_open,
    failed,
    is_ours,
    is_secure,
    reply_of,
    shows_secret,
)
from seaweedq.errors import ConnectionFailed, SeaweedqError

_LOOK_S = 0.05


class Stopped(Exception):
    """The work was cancelled."""


class Stop:
    """A flag that any thread may set once; it is also set with its `parent`."""

    def __init__(self, parent: Optional["Stop"] = None) -> None:
        self._parent, self._set = parent, threading.Event()

    def set(self) -> None:
        """Asks the work to stop."""
        self._set.set()

    def is_set(self) -> bool:
        """Tells whether to stop."""
        return self._set.is_set() or (self._parent is not None and self._parent.is_set())

    def check(self) -> None:
        """Raises Stopped if the flag is set."""
        if self.is_set():
            raise Stopped("stopped")

    def pause(self, seconds: float) -> None:
        """Sleeps, but not beyond a stop."""
        end_s = time.monotonic() + seconds
        while not self.is_set() and (left_s := end_s - time.monotonic()) > 0:
            self._set.wait(min(left_s, _LOOK_S))


T = TypeVar("T")


class _Stream:
    """The body of an answer, as it arrives."""

    def __init__(self, url: str, response: httpx.Response) -> None:
        self._url, self._response = url, response
        self._chunks = response.iter_raw()

    def read(self) -> bytes:
        """Returns the next bytes, none at the end. Raises ConnectionFailed."""
        try:
            return next(self._chunks, b"")
        except httpx.RequestError as error:
            raise failed(self._url, error) from error

    def close(self) -> None:
        """Returns the connection, or closes it if bytes are left."""
        self._response.close()


class SyncTransport:
    """Drives the core's steps, blocking. Threads may share it."""

    def __init__(
        self,
        brokers: Brokers,
        timeout_s: float,
        headers: Mapping[str, str] | None,
        transport: httpx.BaseTransport | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._brokers, self._timeout_s, self._mock = brokers, timeout_s, transport
        self._credentials = credentials or Credentials()
        brokers.has_secret = shows_secret(self._credentials, headers)
        self._headers = headers
        self._connect()

    def _connect(self) -> None:
        self._process = os.getpid()
        self._http = httpx.Client(
            headers=self._headers,
            limits=LIMITS,
            verify=self._credentials.verify(is_secure(self._brokers)),
            transport=self._mock,
        )
        self._store_http: httpx.Client | None = None
        self._lock = threading.Lock()

    def run(self, steps: Steps[T], stop: Stop | None = None) -> T:
        """Runs the steps and returns their result, or raises their error. Once `stop` is set, Stopped is thrown into
        them."""
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
                if stop is not None:
                    stop.check()
                answer = self._perform(effect, stop)
            except BaseException as error:  # the steps may have something to tidy up
                failure = error
                if isinstance(error, Stopped):
                    stop = None  # what they do about it is not stopped

    def chunks(self, steps: Steps[None]) -> Iterator[bytes]:
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
                    answer = self._perform(effect)
                except ConnectionFailed as error:
                    failure = error
                if isinstance(answer, Reply) and answer.stream:
                    stream = _replaced(stream, answer.stream)
        finally:
            _replaced(stream, None)

    def _perform(self, effect: Effect, stop: Stop | None = None) -> Any:
        match effect:
            case Request():
                return self.run(self._brokers.send(effect), stop)
            case Attempt() | Signed():
                return self._send(effect, stop)
            case Read():
                return effect.stream.read()
            case Work():
                return effect.run()
            case Pause():
                return stop.pause(effect.seconds) if stop else time.sleep(effect.seconds)
            case Together():
                return self._together(effect, stop)
        raise TypeError(f"{type(effect).__name__} is only for callers that read pieces")

    def _send(self, effect: Attempt | Signed, stop: Stop | None) -> Reply:
        request = effect.request if isinstance(effect, Attempt) else effect
        http = self._http_for(effect)
        chunks = _chunks(request.content, stop) if isinstance(request.content, Slice) else None
        made = build(http, effect, chunks, self._timeout_s, self._credentials)
        try:
            response = http.send(made, stream=request.streamed)
            if not request.streamed:
                return reply_of(effect.url, response)
            if response.is_success:
                return reply_of(effect.url, response, _Stream(effect.url, response))
            try:
                response.read()
            finally:
                response.close()
        except httpx.RequestError as error:
            raise failed(effect.url, error) from error
        return reply_of(effect.url, response)

    def _http_for(self, effect: Attempt | Signed) -> httpx.Client:
        """Returns the HTTP client for a request: only the user's brokers get the user's headers, stores do not.

        A forked process gets connections of its own: on shared ones it would read its parent's answers.
        """
        if self._process != os.getpid():
            self._connect()
        check_open(self._http)
        if isinstance(effect, Attempt) or is_ours(self._brokers, effect.url):
            return self._http
        with self._lock:
            self._store_http = self._store_http or httpx.Client(limits=LIMITS, transport=self._mock)
        return self._store_http

    def _together(self, effect: Together, stop: Stop | None) -> None:
        todo, lock, inner = iter(effect.steps), threading.Lock(), Stop(stop)
        errors: list[BaseException] = []

        def work() -> None:
            try:
                while not inner.is_set():
                    with lock:
                        steps = next(todo, None)
                    if steps is None:
                        return
                    self.run(steps, inner)
            except BaseException as error:
                errors.append(error)
                inner.set()

        threads = [threading.Thread(target=work, name="together", daemon=True) for _ in range(effect.most - 1)]
        started = [thread for thread in threads if _start(thread)]
        try:
            work()
            for thread in started:
                thread.join()
        except BaseException:
            inner.set()
            for thread in started:
                thread.join()
            raise
        if errors:
            raise errors[0]
        if stop is not None:
            stop.check()

    def close(self) -> None:
        """Closes the connections; in a forked process, those of its parent stay open."""
        if self._process != os.getpid():
            return
        self._http.close()
        if self._store_http is not None:
            self._store_http.close()


def _chunks(body: Slice, stop: Stop | None) -> Iterator[bytes]:
    for chunk in body.chunks():
        if stop is not None:
            stop.check()
        yield chunk


def _replaced(old: _Stream | None, new: _Stream | None) -> _Stream | None:
    if old is not None:
        old.close()
    return new


def _start(thread: threading.Thread) -> bool:
    # While a program exits, no thread can start: then whoever asked does it all.
    try:
        thread.start()
    except RuntimeError:
        return False
    return True

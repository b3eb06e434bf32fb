"""The shells' I/O: httpx carries the core's requests, over HTTP/1.1 with kept connections."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, TypeVar

import httpx

from seaweedq.client.brokers import Brokers
from seaweedq.client.effects import Attempt, Effect, Pause, Reply, Request, Steps, Work
from seaweedq.errors import ConnectionFailed

T = TypeVar("T")
# Shorter than servers keep idle connections (uvicorn: 5 s), so that none is used just as it is closed.
_LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=3)
# A broker that takes longer is as good as gone, and there are others.
_CONNECT_S = 5.0
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class SyncTransport:
    """Drives the core's steps, blocking. Threads may share it."""

    def __init__(
        self,
        brokers: Brokers,
        timeout_s: float,
        headers: Mapping[str, str] | None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._brokers, self._timeout_s = brokers, timeout_s
        self._http = httpx.Client(headers=headers, limits=_LIMITS, verify=_secure(brokers), transport=transport)

    def run(self, steps: Steps[T]) -> T:
        """What the steps return, or the error that they raise."""
        answer: Any = None
        failure: ConnectionFailed | None = None
        while True:
            try:
                effect = steps.throw(failure) if failure else steps.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            answer, failure = None, None
            try:
                answer = self._perform(effect)
            except ConnectionFailed as error:
                failure = error

    def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Request):
            return self.run(self._brokers.send(effect))
        if isinstance(effect, Work):
            return effect.run()
        if isinstance(effect, Pause):
            return time.sleep(effect.seconds)
        try:
            response = self._http.request(**_arguments(effect, self._timeout_s))
        except httpx.RequestError as error:
            raise _failed(effect.url, error) from error
        return _reply(effect.url, response)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


class AsyncTransport:
    """Drives the core's steps on the running event loop."""

    def __init__(
        self,
        brokers: Brokers,
        timeout_s: float,
        headers: Mapping[str, str] | None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._brokers, self._timeout_s = brokers, timeout_s
        self._http = httpx.AsyncClient(headers=headers, limits=_LIMITS, verify=_secure(brokers), transport=transport)

    async def run(self, steps: Steps[T]) -> T:
        """What the steps return, or the error that they raise."""
        answer: Any = None
        failure: ConnectionFailed | None = None
        while True:
            try:
                effect = steps.throw(failure) if failure else steps.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            answer, failure = None, None
            try:
                answer = await self._perform(effect)
            except ConnectionFailed as error:
                failure = error

    async def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Request):
            return await self.run(self._brokers.send(effect))
        if isinstance(effect, Work):
            return await asyncio.to_thread(effect.run)
        if isinstance(effect, Pause):
            return await asyncio.sleep(effect.seconds)
        try:
            response = await self._http.request(**_arguments(effect, self._timeout_s))
        except httpx.RequestError as error:
            raise _failed(effect.url, error) from error
        return _reply(effect.url, response)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()


def _secure(brokers: Brokers) -> bool:
    # Loading certificates takes longer than a request, and plain HTTP has no use for them.
    return brokers.urls[0].startswith("https:")


def _arguments(attempt: Attempt, timeout_s: float) -> dict[str, Any]:
    request = attempt.request
    return {
        "method": request.method,
        "url": attempt.url + request.path,
        "params": dict(request.params) or None,
        "headers": dict(request.headers),
        "content": request.content or None,
        "timeout": httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_S), read=timeout_s + request.wait_s),
    }


def _reply(url: str, response: httpx.Response) -> Reply:
    return Reply(response.status_code, response.headers, response.content, url)


def _failed(url: str, error: httpx.RequestError) -> ConnectionFailed:
    reason = str(error) or type(error).__name__
    return ConnectionFailed(f"no answer from {url}: {reason}", url=url, sent=not isinstance(error, _UNSENT))

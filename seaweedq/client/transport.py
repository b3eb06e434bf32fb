"""The shells' I/O: httpx carries the core's requests, over HTTP/1.1 with kept connections."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from seaweedq.client.effects import Pause, Reply, Request, Steps, Work
from seaweedq.errors import ConnectionFailed

T = TypeVar("T")
# Shorter than servers keep idle connections (uvicorn: 5 s), so that none is used just as it is closed.
_LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=3)


class SyncTransport:
    """Drives the core's steps, blocking. Threads may share it."""

    def __init__(
        self,
        url: str,
        timeout_s: float,
        headers: Mapping[str, str] | None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._url, self._timeout_s = _base(url), timeout_s
        self._http = httpx.Client(
            base_url=self._url,
            headers=headers,
            timeout=timeout_s,
            limits=_LIMITS,
            verify=_secure(url),
            transport=transport,
        )

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

    def _perform(self, effect: Request | Pause | Work) -> Any:
        if isinstance(effect, Work):
            return effect.run()
        if isinstance(effect, Pause):
            return time.sleep(effect.seconds)
        try:
            response = self._http.request(**_arguments(effect, self._timeout_s))
        except httpx.RequestError as error:
            raise _failed(self._url, error) from error
        return _reply(response)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


class AsyncTransport:
    """Drives the core's steps on the running event loop."""

    def __init__(
        self,
        url: str,
        timeout_s: float,
        headers: Mapping[str, str] | None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._url, self._timeout_s = _base(url), timeout_s
        self._http = httpx.AsyncClient(
            base_url=self._url,
            headers=headers,
            timeout=timeout_s,
            limits=_LIMITS,
            verify=_secure(url),
            transport=transport,
        )

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

    async def _perform(self, effect: Request | Pause | Work) -> Any:
        if isinstance(effect, Work):
            return await asyncio.to_thread(effect.run)
        if isinstance(effect, Pause):
            return await asyncio.sleep(effect.seconds)
        try:
            response = await self._http.request(**_arguments(effect, self._timeout_s))
        except httpx.RequestError as error:
            raise _failed(self._url, error) from error
        return _reply(response)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()


def _base(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"url is {url!r}; it should be like http://127.0.0.1:8080")
    return url.rstrip("/")


def _secure(url: str) -> bool:
    # Loading certificates takes longer than a request, and plain HTTP has no use for them.
    return url.startswith("https:")


def _arguments(request: Request, timeout_s: float) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "method": request.method,
        "url": request.path,
        "params": dict(request.params) or None,
        "headers": dict(request.headers),
        "content": request.content or None,
    }
    if request.wait_s:
        arguments["timeout"] = httpx.Timeout(timeout_s, read=timeout_s + request.wait_s)
    return arguments


def _reply(response: httpx.Response) -> Reply:
    return Reply(response.status_code, response.headers, response.content)


def _failed(url: str, error: httpx.RequestError) -> ConnectionFailed:
    reason = str(error) or type(error).__name__
    return ConnectionFailed(f"no answer from {url}: {reason}", url=url)

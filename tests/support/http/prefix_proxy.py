"""A small proxy that has a broker below a path prefix, and may answer some requests in its place."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn

Answers = Mapping[str, Callable[[], Any]]
"""What is answered in the broker's place, by path: a document that is made for each request, or its JSON."""


class PrefixProxy:
    """The proxy as an ASGI application: what is not below the prefix is 404, and noted in `astray`."""

    def __init__(self, http: httpx.AsyncClient, prefix: str, answers: Answers) -> None:
        self.astray: list[str] = []
        self._http = http
        self._prefix = prefix
        self._answers = answers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        if not path.startswith(self._prefix):
            self.astray.append(path)
            await _send(send, 404, {}, b"")
        elif (found := self._answers.get(path.removeprefix(self._prefix))) is not None:
            headers = {"content-type": "application/json"}
            made = found()
            await _send(send, 200, headers, made if isinstance(made, bytes) else json.dumps(made).encode())
        else:
            await self._relay(scope, receive, send, path)

    async def _relay(self, scope: Any, receive: Any, send: Any, path: str) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        raw = scope["raw_path"].decode()[len(self._prefix) :]
        query = f"?{scope['query_string'].decode()}" if scope["query_string"] else ""
        kept = {name.decode(): value.decode() for name, value in scope["headers"] if name not in (b"host",)}
        answer = await self._http.request(scope["method"], f"/{raw}{query}", headers=kept, content=body)
        dropped = ("content-length", "content-encoding", "transfer-encoding", "connection", "date", "server")
        headers = {name: value for name, value in answer.headers.items() if name not in dropped}
        await _send(send, answer.status_code, headers, answer.content)


async def _send(send: Any, status: int, headers: Mapping[str, str], body: bytes) -> None:
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    encoded.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def proxied(url: str, prefix: str = "/queue/", answers: Answers | None = None) -> AsyncIterator[tuple[str, Any]]:
    """The URL of the broker behind the proxy, which ends with a slash; and the proxy."""
    listener = socket.create_server(("127.0.0.1", 0))
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http:
        proxy = PrefixProxy(http, prefix, answers or {})
        server = uvicorn.Server(uvicorn.Config(proxy, log_level="warning", lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}{prefix}", proxy
        finally:
            server.should_exit = True
            await serving

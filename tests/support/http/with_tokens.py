"""Brokers in one loop that need tokens, and requests to them with tokens."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from seaweedq.access.tokens import draw
from seaweedq.clock import SystemIds
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until

EVERYTHING = [{"actions": ["describe", "create", "publish", "read", "consume", "subscribe"], "topics": ["*"]}]


class Http:
    """Requests to the brokers of a cluster, each with a token; `admin` is that of the administrators."""

    def __init__(self, together: InLoop, admin: str) -> None:
        self.together = together
        self.admin = admin

    async def __call__(
        self, method: str, path: str, token: str | None = None, broker: int = 0, **more: Any
    ) -> httpx.Response:
        url = f"http://b{broker}"
        headers = {**more.pop("headers", {}), **({"authorization": f"Bearer {token}"} if token else {})}
        transport = httpx.ASGITransport(self.together.apps[url])
        async with httpx.AsyncClient(transport=transport, base_url=url, timeout=None) as http:
            return await http.request(method, path, headers=headers, **more)

    async def stream(self, path: str, token: str, broker: int, sent: list[Any], query: bytes = b"") -> None:
        """Listen to a stream; `sent` gets its messages as they come."""

        async def receive() -> Any:
            await asyncio.Event().wait()

        await self.call("GET", path, token, receive, sent, broker, query)

    async def call(
        self,
        method: str,
        path: str,
        token: str,
        receive: Callable[[], Any],
        sent: list[Any],
        broker: int = 0,
        query: bytes = b"",
    ) -> None:
        """Makes a request of which the client's part is `receive`; `sent` gets the broker's messages as they come."""

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"authorization", f"Bearer {token}".encode()), (b"host", f"b{broker}".encode())]
        headers += [(b"content-type", b"application/json")] if method != "GET" else []
        scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query}
        await self.together.apps[f"http://b{broker}"]({**scope, "headers": headers}, receive, send)

    async def principal(self, name: str, grants: list[Any], **more: Any) -> None:
        """Put a principal, and wait until all brokers know it."""
        answer = await self("PUT", f"/v1/principals/{name}", self.admin, json={"grants": grants, **more})
        assert answer.status_code in (200, 201), answer.text
        views = [inside.callers(one).view for one in self.together.brokers]
        here = views[0].principals[name]
        await until(lambda: all(view.principals.get(name) == here for view in views))

    async def delete(self, name: str) -> None:
        """Delete a principal, and wait until all brokers know it."""
        assert await self.status("DELETE", f"/v1/principals/{name}", self.admin) == 204
        views = [inside.callers(one).view for one in self.together.brokers]
        await until(lambda: not any(name in view.principals for view in views))

    async def token(self, issuer: str | None = None, **wanted: Any) -> str:
        """Issue a token, and wait until all brokers know it."""
        answer = await self("POST", "/v1/tokens", issuer or self.admin, json=wanted)
        assert answer.status_code == 201, answer.text
        assert answer.headers["cache-control"] == "no-store"
        await self.known(answer.json()["id"], True)
        return str(answer.json()["token"])

    async def known(self, token: str, there: bool) -> None:
        views = [inside.callers(one).view for one in self.together.brokers]
        await until(lambda: all((token in view.tokens) == there for view in views))

    async def status(self, method: str, path: str, token: str | None, broker: int = 0, **more: Any) -> int:
        return (await self(method, path, token, broker, **more)).status_code


@asynccontextmanager
async def access(folder: Path, count: int = 1, **settings: Any) -> AsyncIterator[Http]:
    """Brokers that need tokens."""
    folder.mkdir(exist_ok=True)
    file = folder / "admin"
    file.write_text(admin := draw(SystemIds()))
    async with in_loop(folder, count, **{"auth": "required", "admin_token_file": str(file), **settings}) as together:
        yield Http(together, admin)


def id_of(token: str) -> str:
    return token.split("_")[1]


class ByHost(httpx.AsyncBaseTransport):
    """Requests go to the broker that their URL names."""

    def __init__(self, http: Http) -> None:
        self._apps = http.together.apps

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As its base."""
        return await httpx.ASGITransport(self._apps[f"http://{request.url.host}"]).handle_async_request(request)

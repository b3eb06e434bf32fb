"""A request that got no answer is sent again by whoever knows that it was sent, and not by the HTTP library."""

import asyncio

import pytest

from seaweedq.broker.rpc.client import Peers
from seaweedq.errors import Unavailable

ANSWER = b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize("method", ["DELETE", "PUT", "GET", "POST"])
async def test_a_request_on_a_kept_connection_that_breaks_is_sent_once(method: str) -> None:
    """Its repeat would find what the first one has deleted: 404 for a deletion that worked."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := (await reader.readuntil(b"\r\n\r\n"))[:10]:
            heard.append(line.split()[0])
            if len(heard) == 2:
                writer.close()
                return
            writer.write(ANSWER)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    peers = Peers("secret")
    try:
        assert (await peers.relay("GET", url, "/", {}, b"", 30)).status == 204
        with pytest.raises(Unavailable, match="does not answer"):
            await peers.relay(method, url, "/", {}, b"", 30)
        assert heard == [b"GET", method.encode()]
        assert (await peers.relay(method, url, "/", {}, b"", 30)).status == 204
    finally:
        await peers.close()
        server.close()

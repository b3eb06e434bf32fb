"""The frames of a WebSocket, as a client of another library reads them."""

import asyncio
import json
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed


async def told(socket: ClientConnection) -> dict[str, Any]:
    """The next frame."""
    found: dict[str, Any] = json.loads(await asyncio.wait_for(socket.recv(), 20))
    return found


async def closed(socket: ClientConnection) -> int | None:
    """The code with which the broker has closed; what comes before is left out."""
    try:
        while True:
            await asyncio.wait_for(socket.recv(), 20)
    except ConnectionClosed as found:
        return found.rcvd.code if found.rcvd else None

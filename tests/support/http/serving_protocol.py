"""A server of the broker's HTTP protocol in the test's own loop, over any application."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from seaweedq.api.connections.connections import ConnectionBounds, Connections
from seaweedq.api.connections.memory import IncompleteBodies, UnreadAnswers
from seaweedq.api.connections.protocol import BoundedProtocol
from seaweedq.api.connections.web_sockets import socket_options
from seaweedq.api.problems import Refusals
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.clock import SystemClock


class Shifted(SystemClock):
    """The time of the machine, and what a test adds."""

    more_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.more_s


@dataclass
class Limits:
    """What bounds the connections of the server."""

    clock: Shifted = field(default_factory=Shifted)
    budget: Budget = field(default_factory=lambda: Budget(64 << 20))
    connections: Connections = field(default_factory=Connections)
    timeout_s: float = 60.0
    head_timeout_s: float = 10.0
    message_timeout_s: float = 60.0
    keep_alive_s: float = 75.0

    def __post_init__(self) -> None:
        self.refusals = Refusals(self.clock)
        self.answers = UnreadAnswers(self.budget, self.clock, self.timeout_s, self.refusals)
        self.bodies = IncompleteBodies(self.budget, 16 << 20, self.clock.monotonic_s)


@asynccontextmanager
async def serving(app: Any, limits: Limits) -> AsyncIterator[int]:
    """The server's port."""
    config = uvicorn.Config(
        app,
        lifespan="off",
        access_log=False,
        log_config=None,
        timeout_keep_alive=limits.keep_alive_s,  # type: ignore[arg-type]
        **socket_options(limits.timeout_s),
    )
    bounds = ConnectionBounds(
        limits.head_timeout_s,
        limits.timeout_s,
        limits.answers,
        limits.connections,
        limits.refusals,
        limits.bodies,
        limits.message_timeout_s,
    )
    make = partial(BoundedProtocol, config=config, server_state=ServerState(), app_state={}, bounds=bounds)
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()

"""A stand-in for kube-proxy: each port of a service is a TCP proxy, round robin over the endpoints that are ready."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from typing import Any

Address = tuple[str, int]
CHUNK = 65536


def routes(services: Iterable[dict[str, Any]], slices: Iterable[dict[str, Any]]) -> dict[Address, list[Address]]:
    """Where connections to each address of a service go: ready endpoints, or, without any, those that still serve."""
    held = list(slices)
    made: dict[Address, list[Address]] = {}
    for service in services:
        name = service["metadata"]["name"]
        own = [one for one in held if one["metadata"]["labels"]["kubernetes.io/service-name"] == name]
        for port in service["spec"]["ports"]:
            made[service["spec"]["clusterIP"], port["port"]] = _ends(own, port["name"])
    return made


def _ends(slices: list[dict[str, Any]], port: str) -> list[Address]:
    """Where connections to a port of a service go."""
    found = [
        (endpoint["conditions"], (endpoint["addresses"][0], there["port"]))
        for one in slices
        for there in one["ports"] or []
        if there["name"] == port
        for endpoint in one["endpoints"] or []
    ]
    ready = [address for conditions, address in found if conditions.get("ready")]
    return ready or [address for conditions, address in found if conditions.get("serving")]


class ServiceProxy:
    """Listens at each address it is given, and copies bytes. A connection without an endpoint is refused."""

    def __init__(self) -> None:
        self.routes: dict[Address, list[Address]] = {}
        self._servers: dict[Address, asyncio.Server] = {}
        self._turn = count()

    async def update(self, wanted: dict[Address, list[Address]]) -> None:
        """Listen at these addresses and no others; connections that there are stay where they are."""
        self.routes = wanted
        for address in self._servers.keys() - wanted.keys():
            self._servers.pop(address).close()
        for address in wanted.keys() - self._servers.keys():
            self._servers[address] = await asyncio.start_server(self._serving(address), *address)

    async def close(self) -> None:
        """Listen no more."""
        await self.update({})

    def _serving(self, address: Address) -> Any:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ends = self.routes.get(address) or []
            try:
                there = await asyncio.open_connection(*ends[next(self._turn) % len(ends)]) if ends else None
            except OSError:
                there = None
            if there is None:
                writer.transport.abort()
                return
            await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))

        return serve


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.close()
        await writer.wait_closed()

"""A subscription `s` of the topic `t`, over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import cycle
from typing import Any

import httpx

from tests.support.brokers.in_process_cluster import InLoop
from tests.support.brokers.reshaped import TOPIC, Row, at, messages_of

SUBSCRIPTION = f"{TOPIC}/subscriptions/s"


@asynccontextmanager
async def everywhere(together: InLoop) -> AsyncIterator[list[httpx.AsyncClient]]:
    """A client for each broker."""
    clients = [at(together, broker) for broker in together.brokers]
    try:
        yield clients
    finally:
        for client in clients:
            await client.aclose()


async def create(http: httpx.AsyncClient, start: Any = "earliest") -> None:
    answer = await http.put(SUBSCRIPTION, json={"start": start})
    assert answer.status_code == 201, answer.text


async def pull(http: httpx.AsyncClient, count: int = 100, consumer: str = "c", wait_s: float = 0) -> list[Any]:
    body = {"max_messages": count, "consumer": consumer, "wait_s": wait_s, "ahead": True}
    answer = await http.post(f"{SUBSCRIPTION}/pull", json=body)
    assert answer.status_code == 200, answer.text
    found: list[Any] = answer.json()["messages"]
    assert all(message["attempt"] == 1 for message in found)
    return found


async def ack(http: httpx.AsyncClient, ids: list[str]) -> None:
    answer = await http.post(f"{SUBSCRIPTION}/ack", json={"ids": ids})
    assert answer.json() == {"acked": len(ids), "late": 0, "unknown": []}


async def lag(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    answer = await http.get(SUBSCRIPTION)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["lag"]
    return found


async def publish(http: httpx.AsyncClient, n: int, keys: int = 40) -> list[str]:
    answer = await http.post(f"{TOPIC}/messages", json={"messages": messages_of("k", n, keys)})
    assert answer.status_code == 200, answer.text
    ids: list[str] = answer.json()["ids"]
    return ids


async def consume(clients: list[httpx.AsyncClient], enough: Callable[[], bool]) -> list[Row]:
    """Pull and ack at each broker in turn, until there is nothing more and `enough` was true before."""
    rows: list[Row] = []
    turns = cycle(clients)
    while True:
        last = enough()
        found = await pull(next(turns), wait_s=0 if last else 0.05)
        rows += [(m["segment"], m["offset"], m["key"], m["value"]) for m in found]
        if found:
            await ack(next(turns), [message["id"] for message in found])
        elif last:
            return rows
        await asyncio.sleep(0)

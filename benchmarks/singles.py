"""Single-message publishes on 64 connections, beside the same requests to an empty app."""

import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks import server
from benchmarks.http import per_s, request, run
from benchmarks.result import Result

ROUNDS, COUNT, CONNECTIONS = 3, 20_000, 64


def measure(folder: Path) -> Iterator[Result]:
    """Broker and empty app take turns; the best round of each."""
    bodies = [
        b'{"key":"key-%08d","value":{"n":%d,"noise":"%b"}}' % (n, n, os.urandom(16).hex().encode())
        for n in range(COUNT)
    ]
    with server.broker(folder / "data") as broker, server.empty_app() as empty:
        run(broker.port, 1, lambda opened: opened[0].ask_json("PUT", "/v1/topics/singles", {}))
        turns = [
            (
                requests_per_s(broker.port, "/v1/topics/singles/messages", bodies),
                requests_per_s(empty.port, "/90", bodies),
            )
            for _ in range(ROUNDS)
        ]
    figure, limit = (max(column) for column in zip(*turns, strict=True))
    yield Result(
        name="singles",
        figure=figure,
        unit="msg/s",
        limit=limit,
        limit_is="the same requests to an empty uvicorn app",
        target=0.5,
        target_of="ratio",
        note=f"{CONNECTIONS} connections, one request at a time each, fsynced; best of {ROUNDS}",
    )


def requests_per_s(port: int, path: str, bodies: list[bytes]) -> float:
    """All bodies, one a request."""
    prepared = [request(path, body, "application/json") for body in bodies]
    return float(run(port, CONNECTIONS, lambda opened: per_s(opened, prepared)))

"""A trickle of single messages becomes a flood, 20 times as much: how long until the topic has split by itself, at
three brokers of one machine. The policy is the demo's: what asks for the split is a rate over 10 s, five times the
target."""

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from benchmarks.brokers_together import brokers_together
from benchmarks.http import NDJSON, Connection, Failed, request
from benchmarks.result import Result

BROKERS, ROUNDS, CONNECTIONS = 3, 3, 8
SCALING = {"target_messages_per_s": 50, "cool_down_s": 5}
TRICKLE_PER_S, TIMES, TRICKLE_S, MOST_S, POLL_S = 25.0, 20, 15.0, 60.0, 0.05
TARGET_S = 15.0


def measure(folder: Path) -> Iterator[Result]:
    """Topics one after the other; the slowest."""
    with brokers_together(folder / "data", BROKERS) as brokers:
        rounds = [uvloop.run(Spike(f"spike-{n}", brokers.ports).run()) for n in range(ROUNDS)]
    took = [one for one, _ in rounds]
    note = (
        f"{TRICKLE_PER_S:g} messages/s for {TRICKLE_S:g} s, then {TIMES} times as much; a segment's target is "
        f"{SCALING['target_messages_per_s']}; each: {', '.join(f'{one:.1f}' for one in took)}"
    )
    yield Result(name="spike to first split", figure=max(took), unit="s", target=TARGET_S, better="lower", note=note)
    errors = [error for _, errors in rounds for error in errors]
    said = "; ".join(errors[:3])
    yield Result(name="spike, errors", figure=len(errors), unit="", target=0, better="lower", note=said)


class Spike:
    """One topic; messages go to all brokers, on a schedule."""

    def __init__(self, topic: str, ports: Sequence[int]) -> None:
        self._topic = topic
        self._ports = ports
        self._errors: list[str] = []
        self._began = 0.0
        self._stopped = False

    async def run(self) -> tuple[float, list[str]]:
        """Seconds from the flood's beginning to the end of the first split, and what failed. Raises TimeoutError."""
        asking = await Connection.to(self._ports[0])
        await asking.ask_json("PUT", f"/v1/topics/{self._topic}", {"scaling": SCALING})
        opened = [await Connection.to(self._ports[n % len(self._ports)]) for n in range(CONNECTIONS)]
        self._began = time.perf_counter()
        producing = asyncio.gather(*(self._produce(n, connection) for n, connection in enumerate(opened)))
        try:
            async with asyncio.timeout(TRICKLE_S + MOST_S):
                while len(await self._segments(asking)) < 2:
                    await asyncio.sleep(POLL_S)
            took = time.perf_counter() - self._began - TRICKLE_S
        finally:
            self._stopped = True
            await producing
        for connection in (asking, *opened):
            connection.close()
        return took, self._errors

    async def _segments(self, asking: Connection) -> list[Any]:
        found = await asking.ask_json("GET", f"/v1/topics/{self._topic}/segments")
        return [one for one in found["segments"] if one["state"] == "open"]

    async def _produce(self, number: int, connection: Connection) -> None:
        """One of CONNECTIONS shares of the messages."""
        for at in itertools.count(number, CONNECTIONS):
            if self._stopped:
                break
            await asyncio.sleep(max(0.0, self._began + _due_s(at) - time.perf_counter()))
            body = msgspec.json.encode({"key": f"key-{at % 997}", "value": {"n": at}})
            try:
                await connection.ask(request(f"/v1/topics/{self._topic}/messages", body, NDJSON))
            except Failed as error:
                self._errors.append(str(error))


def _due_s(at: int) -> float:
    """When a message is due: the trickle's, then the flood's."""
    before = TRICKLE_PER_S * TRICKLE_S
    return at / TRICKLE_PER_S if at < before else TRICKLE_S + (at - before) / (TIMES * TRICKLE_PER_S)

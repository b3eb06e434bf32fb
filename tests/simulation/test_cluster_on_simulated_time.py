"""A cluster in one thread on simulated time: minutes with deaths, splits and moves take seconds, and a seed decides
all of them."""

import asyncio
import hashlib
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import pytest

from seaweedq.broker.broker import Broker
from tests.support.brokers.machine import simulated_machine
from tests.support.brokers.simulated_loop import clock, simulate
from tests.support.paths import ROOT
from tests.support.reshape.lives import Lives, lives
from tests.support.tiers import later

pytestmark = pytest.mark.brokers

SIMULATED_S = 180
TOPIC = "/v1/topics/t"
POLICY = {"target_messages_per_s": 2, "max_segments": 8}


class World:
    """Publishers of numbered messages, a reaper of brokers, and what was acknowledged."""

    def __init__(self, together: Lives, seed: int) -> None:
        self.together = together
        self.random = random.Random(seed)
        self.acknowledged: dict[str, list[int]] = {}
        self.in_doubt: dict[str, set[int]] = {}
        self.deaths = 0

    def any_broker(self) -> Broker:
        return self.random.choice(self.together.living)

    async def publish(self, key: str, end_s: float) -> None:
        """Numbers of one key, each once: what was not acknowledged is in doubt, and not sent again."""
        number = 0
        while clock().time() < end_s:
            try:
                async with self.together.client(self.any_broker()) as http:
                    answer = await http.post(f"{TOPIC}/messages", json={"key": key, "value": number})
                taken = answer.status_code == 200
            except Exception:  # the broker died over it
                taken = False
            (self.acknowledged[key].append if taken else self.in_doubt[key].add)(number)
            number += 1
            await asyncio.sleep(self.random.uniform(0.1, 1.0))

    async def kill(self, end_s: float) -> None:
        """Every now and then a broker dies, and begins again."""
        while clock().time() < end_s - 60:
            await asyncio.sleep(self.random.uniform(30, 90))
            dead = self.any_broker()
            await self.together.crash(dead)
            self.deaths += 1
            await asyncio.sleep(self.random.uniform(1, 20))
            await self.together.begin_again(dead)

    async def read(self) -> dict[str, list[int]]:
        """All messages by key, in the order of segments' ids and offsets, which is that of the lineage."""
        found: dict[str, list[int]] = {}
        async with self.together.client(self.any_broker()) as http:
            segments = (await http.get(f"{TOPIC}/segments")).json()["segments"]
            for segment in segments:
                await self._read_segment(http, segment["id"], found)
        return found

    async def _read_segment(self, http: httpx.AsyncClient, segment: int, found: dict[str, list[int]]) -> None:
        offset = 0
        while True:
            path = f"{TOPIC}/segments/{segment}/messages?offset={offset}&limit=1000"
            page = (await http.get(path)).json()
            if not page["messages"]:
                return
            for message in page["messages"]:
                found.setdefault(message["key"], []).append(message["value"])
            offset = page["next_offset"]


async def live(folder: Path, seed: int) -> tuple[World, dict[str, list[int]], str]:
    """The world after its time, what is read then, and a digest of it and of all that was written to coordination."""
    loop = clock()
    keys = [f"k{number}" for number in range(6)]
    async with lives(folder, 3, machine=simulated_machine(loop, seed), lease_s=5.0, publish_timeout_s=15) as together:
        world = World(together, seed)
        world.acknowledged = {key: [] for key in keys}
        world.in_doubt = {key: set() for key in keys}
        async with together.client(together.brokers[0]) as http:
            made = await http.put(TOPIC, json={"initial_segments": 2, "scaling": POLICY})
            assert made.status_code == 201, made.text
        end_s = loop.time() + SIMULATED_S
        await asyncio.gather(world.kill(end_s), *(world.publish(key, end_s) for key in keys))
        await asyncio.sleep(30)
        found = await world.read()
        history = repr(found) + repr(together.coordination.history).replace(str(folder), "folder")
    return world, found, hashlib.sha256(history.encode()).hexdigest()


def run(seed: int) -> tuple[World, dict[str, list[int]], str]:
    with tempfile.TemporaryDirectory() as folder:
        return simulate(live(Path(folder), seed))


@pytest.mark.parametrize("seed", [1, later(2), later(3), later(4)])
def test_nothing_is_lost_doubled_or_out_of_order_in_simulated_minutes(seed: int) -> None:
    began_s = time.monotonic()
    world, found, _ = run(seed)
    print(f"{SIMULATED_S} simulated seconds in {time.monotonic() - began_s:.1f} s, {world.deaths} deaths")
    assert world.deaths >= 1
    for key, acknowledged in world.acknowledged.items():
        assert len(acknowledged) > SIMULATED_S / 2
        read = found[key]
        assert read == sorted(set(read)), "doubled or out of order"
        assert set(acknowledged) <= set(read), "lost"
        assert set(read) <= set(acknowledged) | world.in_doubt[key], "nobody sent it"


@pytest.mark.process
@pytest.mark.long
def test_a_seed_decides_all_of_it() -> None:
    """Two processes, whose sets and dicts of strings have different orders, write the same to coordination."""
    program = f"import sys; sys.path.insert(0, '.'); from {__name__} import run; print(run(7)[2])"
    ended = [
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "PATH": os.environ["PATH"]},
        ).stdout
        for seed in ("1", "2")
    ]
    assert ended[0] == ended[1]
    assert len(ended[0]) > 60

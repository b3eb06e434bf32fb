"""A refused request leaves nothing behind that only a full garbage collection finds: its error, the frames of that and
the future that brought it form cycles easily, and hold the body, and all that was decoded of it."""

import asyncio
import gc
import json
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import pyarrow as pa
import pytest

from seaweedq.concurrency.pools import Pool
from seaweedq.rows import bodies
from tests.api.connections.test_bodies_of_strangers import PATH, Asked, serving
from tests.support.brokers import inside
from tests.support.paths import ROOT

MIB = 1 << 20
LIMIT = 4 * MIB
BUDGET, BESIDE, BOMBS = 64 * MIB, 64 * MIB, 200
SUBSCRIPTION = "/v1/topics/t/subscriptions/none"


def zstd(content: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(content))


REFUSED: dict[str, tuple[str, str, bytes, str | None, int]] = {
    "no json": (PATH, bodies.JSON, b'{"value', None, 400),
    "no json in a thread": (PATH, bodies.JSON, b'{"value' + b" " * 20_000, None, 400),
    "a large message": (PATH, bodies.JSON, zstd(b'{"value":"' + b"a" * (LIMIT - 20) + b'"}'), "zstd", 413),
    "a bomb": (PATH, bodies.JSON, zstd(bytes(LIMIT + 1)), "zstd", 413),
    "no zstd": (PATH, bodies.JSON, b"x" * 100, "zstd", 400),
    "no gzip": (PATH, bodies.JSON, b"x" * 100, "gzip", 400),
    "invalid lines": (PATH, bodies.NDJSON, b'{"v":1}\n' * 5_000, None, 422),
    "no arrow": (PATH, bodies.ARROW, b"\xff" * 300_000, None, 400),
    "no subscription": (f"{SUBSCRIPTION}/pull", bodies.JSON, b"{}", None, 404),
    "no ids": (f"{SUBSCRIPTION}/ack", bodies.JSON, b'{"ids":1}', None, 422),
    "no fields": ("/v1/topics/t/segments/0/split", bodies.JSON, b'{"x":1}', None, 422),
}


@pytest.mark.parametrize("pieces", [1, 2])
async def test_a_refused_request_leaves_no_cycle(tmp_path: Path, pieces: int) -> None:
    asyncio.get_running_loop().set_default_executor(Pool("compute", 2))
    async with serving(tmp_path, max_request_bytes=LIMIT) as (broker, app, _):

        async def refused(path: str, kind: str, body: bytes, encoding: str | None, status: int) -> None:
            asked = Asked(app, path, kind, encoding=encoding)
            await asked.send(body[: len(body) // pieces], more=pieces > 1)
            if pieces > 1:
                await asked.send(body[len(body) // pieces :], more=False)
            assert await asked.status() == status

        found = {}
        for name, case in REFUSED.items():
            await refused(*case)  # what a first one makes for good
            left = await _left_by(refused(*case))
            frames = [one for one in left if isinstance(one, FrameType)]
            if frames or any(isinstance(one, BaseException | TracebackType) for one in left):
                found[name] = sorted({frame.f_code.co_qualname for frame in frames})
        assert found == {}
        assert inside.budget(broker).in_flight == len(app.parts.reader.fair) == 0


async def _left_by(request: Coroutine[Any, Any, None]) -> list[Any]:
    """What a request leaves for the collector."""
    gc.collect()
    gc.disable()
    try:
        await asyncio.create_task(request)
        await asyncio.sleep(0)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return list(gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


ATTACK = """
import asyncio, gc, json, tempfile
from pathlib import Path
from tests.api.connections.test_bodies_of_strangers import Asked, serving
from tests.api.connections.test_memory import PEAK
from tests.api.connections.test_refused_bodies import BOMBS, LIMIT, REFUSED
from seaweedq.concurrency.pools import Pool
exec(PEAK)

async def attack():
    asyncio.get_running_loop().set_default_executor(Pool("compute", 2))
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder), max_request_bytes=LIMIT) as (broker, app, _):
            path, kind, bomb, encoding, status = REFUSED["a large message"]

            async def refused():
                asked = Asked(app, path, kind, encoding=encoding)
                await asked.send(bomb, more=False)
                assert await asked.status() == status

            await refused()
            gc.collect()
            gc.disable()
            before = begin()
            for _ in range(BOMBS // 4):
                await asyncio.gather(*(refused() for _ in range(4)))
            return before

print(json.dumps([asyncio.run(attack()), peak()]))
"""


@pytest.mark.long
@pytest.mark.process
def test_bombs_stay_within_the_budget_without_a_collection() -> None:
    """200 of a few hundred bytes, of which each becomes 4 MiB: measured at the process."""
    done = subprocess.run([sys.executable, "-c", ATTACK], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    before, peak = json.loads(done.stdout.splitlines()[-1])
    assert peak - before < BUDGET + BESIDE < BOMBS * LIMIT // 4

"""Bodies that are announced, trickle or never end cost others nothing: an application asked in the test's own loop."""

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from seaweedq.api.app import Application
from seaweedq.api.connections.memory import LOOK_S, STEP_BYTES, WINDOW_S, DecodingMemory, FairMemory, needed
from seaweedq.broker.broker import Broker
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.rows import bodies
from seaweedq.settings import Settings
from seaweedq.storage.memory import MemoryStore
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.environments import environment
from tests.support.brokers.in_process import Held, make_topic
from tests.support.brokers.in_process_cluster import until
from tests.support.brokers.machine import Machine
from tests.support.http.requests import request_of

MIB = 1 << 20
PATH = "/v1/topics/t/messages"


def arrow_of(count: int) -> bytes:
    """A stream of short values."""
    table = pa.table({"value": ["1"] * count})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


class Asked:
    """A request whose body the test sends."""

    def __init__(
        self,
        app: Application,
        path: str = PATH,
        kind: str = bodies.NDJSON,
        length: int | None = None,
        encoding: str | None = None,
    ) -> None:
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[Any] = []
        headers = [(b"content-type", kind.encode())]
        headers += [] if length is None else [(b"content-length", b"%d" % length)]
        headers += [] if encoding is None else [(b"content-encoding", encoding.encode())]
        scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": path, "raw_path": path.encode()}
        self.task = asyncio.create_task(
            app({**scope, "query_string": b"", "headers": headers}, self._incoming.get, self._out)
        )

    async def _out(self, message: Any) -> None:
        self.sent.append(message)

    async def send(self, chunk: bytes, more: bool = True) -> None:
        """Have bytes arrive."""
        self._incoming.put_nowait({"type": "http.request", "body": chunk, "more_body": more})
        for _ in range(5):
            await asyncio.sleep(0)

    async def status(self) -> int:
        """The answer's status."""
        await asyncio.wait_for(self.task, 30)
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        """Those of the answer."""
        return dict(self.sent[0]["headers"])

    async def leave(self) -> None:
        """As a client that goes."""
        self._incoming.put_nowait({"type": "http.disconnect"})
        await self.task


@asynccontextmanager
async def serving(folder: Path, **settings: Any) -> AsyncIterator[tuple[Broker, Application, Machine]]:
    """A broker with the topic `t`, and its application; the machine has a clock that the test moves."""
    machine, coordination = Machine(), Held()
    given = Settings(data_dir=folder, lease_s=60, memory_budget_bytes=64 * MIB, **settings)
    broker = Broker(environment(given, MemoryStore(), coordination, machine=machine))
    broker.lock()
    try:
        await broker.start()
        await make_topic(broker)
        yield broker, Application(broker), machine
    finally:
        await broker.stop()
        await coordination.close()


async def publishes(app: Application) -> int:
    """The status of a publish of somebody else."""
    other = Asked(app)
    await other.send(b'{"value":1}\n', more=False)
    return await other.status()


async def test_heads_that_announce_much_hold_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, app, _):
        heads = [Asked(app, length=16 * MIB) for _ in range(70)]
        await asyncio.sleep(0)
        assert inside.budget(broker).held == 0
        assert await publishes(app) == 200
        for one in heads:
            await one.leave()


async def test_slow_bodies_make_no_tail_flush_and_are_dismissed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as (broker, app, machine):
        budget, shift = inside.budget(broker), 0.0
        real = machine.clock.monotonic_s
        monkeypatch.setattr(app.parts.reader.bodies, "_now", lambda: real() + shift)
        slow = [Asked(app, length=16 * MIB) for _ in range(300)]
        for one in slow:
            await one.send(b"x")
        assert budget.incomplete == 16 * MIB
        assert sum(one.task.done() for one in slow) == 300 - 16 * MIB // STEP_BYTES
        assert {await one.status() for one in slow if one.task.done()} == {503}
        assert budget.excess < 0
        assert await publishes(app) == 200
        shift = WINDOW_S + LOOK_S
        long = Asked(app)
        for _ in range(8):
            await long.send(b'{"value":1}\n' * 10_000)
        await long.send(b"", more=False)
        assert await long.status() == 200
        await until(lambda: sum(one.task.done() for one in slow) > 300 - 16 * MIB // STEP_BYTES)
        gone = [one for one in slow if one.task.done() and one.sent[0]["status"] == 408]
        assert len(gone) == 15  # 960,000 bytes are 15 steps
        assert gone[0].headers[b"connection"] == b"close"
        counts = app.refusals.counts
        assert (counts["slow_body"], counts["bodies"]) == (15, 300 - 16 * MIB // STEP_BYTES)
        for one in slow:
            if not one.task.done():
                await one.leave()
        assert (budget.incomplete, budget.requests) == (0, 0)


async def test_a_body_in_pieces_holds_what_came_and_then_itself(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, app, _):
        budget, one = inside.budget(broker), Asked(app, length=3 * STEP_BYTES)
        await one.send(b" " * STEP_BYTES)
        assert (budget.incomplete, budget.requests) == (STEP_BYTES, 0)
        await one.send(b" " * (STEP_BYTES + 1))
        assert (budget.incomplete, budget.requests) == (3 * STEP_BYTES, 0)
        await one.send(b"x", more=False)
        assert await one.status() == 422
        assert budget.held == 0


@pytest.mark.parametrize(
    ("media", "content", "bare", "at_least"),
    [
        (bodies.NDJSON, b'{"value":1}\n' * 990_000, False, 195 * MIB),  # measured, before lines were decoded in slices
        (bodies.NDJSON, b'{"value":1,"headers":{"a":"b"}}\n' * 524_288, False, 353 * MIB),
        (bodies.NDJSON, b"1\n" * 990_000, True, 157 * MIB),
        (bodies.JSON, b'{"messages":[' + b'{"value":1},' * 990_000 + b"]}", False, 165 * MIB),
        (bodies.ARROW, arrow_of(990_000), False, 92 * MIB),
        (bodies.ARROW, b"\x28\xb5\x2f\xfd", False, 64 * MIB),
        ("image/png", bytes(MIB), False, 2 * MIB),
    ],
    ids=["lines", "headers", "bare", "json", "arrow", "compressed", "bytes"],
)
def test_what_decoders_need(media: str, content: bytes, bare: bool, at_least: int) -> None:
    assert at_least <= needed(media, content, bare, 16 * MIB) < 2 * at_least + 4 * MIB


async def test_decoders_wait_for_one_another() -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    budget = Budget(100)
    memory, entered = DecodingMemory(budget, FairMemory(budget)), []
    budget.tails = 60

    def decode(name: str, size: int) -> None:
        entered.append(name)
        assert budget.held <= 100 or budget.decoding == size
        assert budget.decoding <= 50 or budget.decoding == size

    sizes = {"large": 500, "small": 5, "another": 6}
    await asyncio.gather(*(memory.run(None, 0, size, decode, name, size) for name, size in sizes.items()))
    assert entered == ["large", "small", "another"]
    assert budget.decoding == 0


async def test_a_decoder_holds_its_memory_also_when_nobody_waits_for_it() -> None:
    budget, begun, may_end = Budget(100), threading.Event(), threading.Event()
    memory = DecodingMemory(budget, FairMemory(budget))

    def decode() -> None:
        begun.set()
        may_end.wait()

    gone = asyncio.create_task(memory.run(None, 0, 40, decode))
    waits = asyncio.create_task(memory.run(None, 0, 20, str))
    await asyncio.to_thread(begun.wait)
    gone.cancel()
    await asyncio.wait([gone])
    assert budget.decoding == 40
    assert not waits.done()
    may_end.set()
    assert await waits == ""
    assert budget.decoding == 0


async def test_a_decoder_that_waits_for_room_never_begins_once_abandoned() -> None:
    budget, begun = Budget(100), []
    memory = DecodingMemory(budget, FairMemory(budget))
    budget.decoding = 40
    waits = asyncio.create_task(memory.run(None, 0, 20, begun.append, 1))
    await asyncio.sleep(0)
    waits.cancel()
    await asyncio.wait([waits])
    assert (budget.decoding, begun) == (40, [])


async def test_a_fetch_without_room_for_its_answer_is_refused_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, app, _):
        other = Asked(app)
        await other.send(b'{"value":"%b"}\n' % bytes(100_000).replace(b"\0", b"x"), more=False)
        assert await other.status() == 200
        path = "/v1/topics/t/segments/0/messages"
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as http:
            with app.unread.streaming(app.unread.limit_bytes):
                answer = await http.get(path)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert app.refusals.counts["answers"] == 1
            assert len((await http.get(path)).content) > 100_000


async def test_a_body_out_of_time_is_dismissed_by_another_in_the_same_turn(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, app, _):
        body = app.parts.reader.body(request_of("POST", "/", (b"content-type", b"text/plain")))
        errors: list[Any] = []

        def dismiss() -> None:  # as the request does that asks for a step
            try:
                privates.dismiss(body)()
            except RuntimeError as error:
                errors.append(error)

        with suppress(TimeoutError):
            async with asyncio.timeout(0) as body._deadline:
                asyncio.get_running_loop().call_soon(dismiss)
                await asyncio.sleep(30)
        assert errors == []

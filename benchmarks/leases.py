"""Leases at full speed: shared and keyed subscriptions with many consumers and acks in random order, Arrow pulls acked
by lease, and a topic's files read by the client. Each beside an empty app that answers as many bytes, or the files
read by pyarrow alone."""

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds

from benchmarks import messages, server
from benchmarks.http import ARROW, Connection, Connections, ask_all, request, run
from benchmarks.pulled import JSON, PULL, SIZE, ack, ids_of, sample
from benchmarks.result import Result
from seaweedq import Client

CONSUMERS, ROUNDS = 50, 2
ARROW_CONSUMERS, ARROW_SIZE = 4, 5_000
BATCHES, ARROW_BATCHES = 60, 300
COUNT, ARROW_COUNT = BATCHES * messages.BATCH, ARROW_BATCHES * messages.BATCH
DEADLINE_S = 600  # what is chosen late, on a busy machine, must not come twice
HELD = 1_000  # messages that a consumer has before it begins to ack
TARGETS = {"shared": 250_000, "keyed": 175_000}


def measure(folder: Path) -> Iterator[Result]:
    """JSON in both modes, Arrow, files."""
    with server.broker(folder / "data") as broker, server.empty_app() as empty:
        run(broker.port, CONSUMERS, _publish)
        for mode, target in TARGETS.items():
            speed, size = run(broker.port, CONSUMERS, lambda opened, mode=mode: _by_ids(opened, mode))
            limit = run(empty.port, CONSUMERS, lambda opened, size=size: _empty(opened, size))
            yield Result(
                name=f"{mode}, JSON",
                figure=speed,
                unit="msg/s",
                limit=limit,
                limit_is="an empty uvicorn app that answers as many bytes, ids read and sent back all the same",
                target=target,
                note=f"{COUNT:,} messages, {SIZE} a pull, {CONSUMERS} consumers, random acks; best of {ROUNDS}",
            )
        run(broker.port, ARROW_CONSUMERS, _publish_arrow)
        speed, size = run(broker.port, ARROW_CONSUMERS, _by_lease)
        limit = run(empty.port, ARROW_CONSUMERS, lambda opened: _empty_arrow(opened, size))
        yield Result(
            name="shared, Arrow",
            figure=speed,
            unit="msg/s",
            limit=limit,
            limit_is="an empty uvicorn app that answers as many bytes",
            target=1_000_000,
            note=f"{ARROW_COUNT:,} messages, {ARROW_SIZE} a pull, {ARROW_CONSUMERS} consumers, acked by lease, "
            f"tables opened; best of {ROUNDS}",
        )
        yield _files(f"http://127.0.0.1:{broker.port}")


async def _publish(opened: Connections) -> None:
    await opened[0].ask_json("PUT", "/v1/topics/leases", {"initial_segments": 4})
    await ask_all(opened[:4], (messages.ndjson_request("leases", body) for body in messages.ndjson_bodies(BATCHES)))


async def _publish_arrow(opened: Connections) -> None:
    await opened[0].ask_json("PUT", "/v1/topics/arrow", {"format": "bytes", "initial_segments": 4})
    batches = messages.arrow_batches(ARROW_BATCHES)
    await ask_all(opened, (messages.arrow_request("arrow", batch) for batch in batches))
    await opened[0].ask_json("POST", "/v1/topics/arrow/flush")


async def _by_ids(opened: Connections, mode: str) -> tuple[float, int]:
    """Returns the best round's speed, and the size of an answer."""
    times, size = [], 0
    for number in range(ROUNDS):
        path = f"/v1/topics/leases/subscriptions/{mode}-{number}"
        config = {"start": "earliest", "mode": mode, "max_in_flight": 100_000, "ack_deadline_s": DEADLINE_S}
        await opened[0].ask_json("PUT", path, config)
        begun = time.perf_counter()
        consumers = (_Consumer(connection, path, random.Random(n)) for n, connection in enumerate(opened))
        done = await asyncio.gather(*(consumer.run() for consumer in consumers))
        times.append(time.perf_counter() - begun)
        assert sum(count for count, _ in done) == COUNT, f"{sum(count for count, _ in done)} of {COUNT} were acked"
        size = max(size for _, size in done)
    return COUNT / min(times), size


class _Consumer:
    """Pulls, and acks as many of what it holds, chosen at random."""

    def __init__(self, connection: Connection, path: str, rng: random.Random) -> None:
        self._connection, self._path, self._rng = connection, path, rng
        self._held: list[str] = []

    async def run(self) -> tuple[int, int]:
        """Returns how many it acked, and the size of its largest answer."""
        pull = request(f"{self._path}/pull", PULL, JSON)
        count = size = 0
        while ids := ids_of(answer := await self._connection.ask(pull)):
            size = max(size, len(answer))
            self._held += ids
            if len(self._held) >= HELD:
                count += await self._ack(SIZE)
        while self._held:  # in keyed, that of others may wait for it
            count += await self._ack(SIZE)
            ids = ids_of(await self._connection.ask(pull))
            self._held += ids
        return count, size

    async def _ack(self, most: int) -> int:
        self._rng.shuffle(self._held)
        chosen, self._held = self._held[:most], self._held[most:]
        await self._connection.ask(ack(f"{self._path}/ack", chosen))
        return len(chosen)


async def _by_lease(opened: Connections) -> tuple[float, int]:
    times, size = [], 0
    for number in range(ROUNDS):
        path = f"/v1/topics/arrow/subscriptions/s-{number}"
        await opened[0].ask_json("PUT", path, {"start": "earliest", "mode": "shared", "max_in_flight": 100_000})
        begun = time.perf_counter()
        done = await asyncio.gather(*(_consume_arrow(one, path, n) for n, one in enumerate(opened)))
        times.append(time.perf_counter() - begun)
        assert sum(count for count, _ in done) == ARROW_COUNT, f"{sum(count for count, _ in done)} were acked"
        size = max(size for _, size in done)
    return ARROW_COUNT / min(times), size


async def _consume_arrow(connection: Connection, path: str, consumer: int) -> tuple[int, int]:
    count = size = turn = 0
    while True:
        lease = f"{consumer}-{turn}"
        body = msgspec.json.encode({"max_messages": ARROW_SIZE, "lease": lease})
        answer = await connection.ask(request(f"{path}/pull", body, JSON, more=[f"accept: {ARROW}"]))
        table = pa.ipc.open_stream(answer).read_all()
        if not table.num_rows:
            return count, size
        count, size, turn = count + table.num_rows, max(size, len(answer)), turn + 1
        await connection.ask(request(f"{path}/ack", msgspec.json.encode({"lease": lease}), JSON))


async def _empty(opened: Connections, size: int) -> float:
    answer = sample(size, COUNT)
    pull, turns = request(f"/{size}", PULL, JSON), 20

    async def turn(connection: Connection) -> None:
        for _ in range(turns):
            await connection.ask(pull)
            await connection.ask(ack("/30", ids_of(answer)))

    return await _speed(opened, turn, turns * SIZE)


async def _empty_arrow(opened: Connections, size: int) -> float:
    pull, answered, turns = request(f"/{size}", PULL, JSON), request("/30", b'{"lease":"0-0"}', JSON), 50

    async def turn(connection: Connection) -> None:
        for _ in range(turns):
            await connection.ask(pull)
            await connection.ask(answered)

    return await _speed(opened, turn, turns * ARROW_SIZE)


async def _speed(opened: Connections, turn: Callable[[Connection], Any], count: int) -> float:
    begun = time.perf_counter()
    await asyncio.gather(*map(turn, opened))
    return len(opened) * count / (time.perf_counter() - begun)


def _files(url: str) -> Result:
    """The topic's files, by the client and by pyarrow."""
    with Client(url) as client:
        path = client.topic("arrow")["path"].removeprefix("file://")
        by_client, alone = [], []
        for _ in range(ROUNDS + 1):
            by_client.append(_timed(lambda: client.read_table("arrow").num_rows))
            alone.append(_timed(lambda: ds.dataset(path, format="parquet", partitioning="hive").to_table().num_rows))
    return Result(
        name="files",
        figure=ARROW_COUNT / min(by_client),
        unit="msg/s",
        limit=ARROW_COUNT / min(alone),
        limit_is="pyarrow's dataset alone, of the same files",
        target=2_000_000,
        note=f"read_table of {ARROW_COUNT:,} messages; best of {ROUNDS + 1}",
    )


def _timed(read: Callable[[], int]) -> float:
    begun = time.perf_counter()
    count = read()
    assert count == ARROW_COUNT, f"{count} of {ARROW_COUNT} rows were read"
    return time.perf_counter() - begun

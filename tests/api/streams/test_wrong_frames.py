"""Wrong frames amid streams: the stream ends as if its client had gone, and the log has no error."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.support.brokers import inside
from tests.support.brokers.in_process import running
from tests.support.brokers.in_process_cluster import until
from tests.support.brokers.serving import served
from tests.support.http.raw_web_socket import WRONG_FRAMES, close_code, frame, next_frame, opened

TOPIC = "/v1/topics/t"
SUB = f"{TOPIC}/subscriptions/s"


@asynccontextmanager
async def messages_flow(http: httpx.AsyncClient) -> AsyncIterator[None]:
    """Publishes without end; begins with as many messages as there are wrong frames."""

    async def publish() -> None:
        body = {"messages": [{"value": "x" * 100}] * len(WRONG_FRAMES)}
        assert (await http.post(f"{TOPIC}/messages", json=body)).status_code == 200

    async def publish_on() -> None:
        while True:
            await publish()

    await publish()
    publishing = asyncio.create_task(publish_on())
    try:
        yield
        assert not publishing.done()
    finally:
        publishing.cancel()
        with suppress(asyncio.CancelledError):
            await publishing


@pytest.mark.parametrize("path", [f"{TOPIC}/stream?start=0-", f"{SUB}/stream?max_in_flight=1"])
async def test_a_stream_with_a_wrong_frame_leaves_nothing(
    tmp_path: Path, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running(tmp_path) as broker,
        served(broker) as here,
        httpx.AsyncClient(base_url=here.url, trust_env=False) as http,
    ):
        assert (await http.put(TOPIC, json={})).status_code == 201
        settings = {"mode": "shared", "start": "earliest", "ack_deadline_s": 600}
        assert (await http.put(SUB, json=settings)).status_code == 201
        port = int(here.url.rpartition(":")[2])
        async with messages_flow(http):
            for n, (wrong, code) in enumerate(WRONG_FRAMES.values()):
                async with opened(port, f"{path}{n}") as (reader, writer):
                    while n % 2 and b'"messages"' not in (await next_frame(reader))[1]:
                        pass
                    writer.write(frame(1, b'{"ack":{"ids":["0-0"]}}') + wrong)
                    assert await close_code(reader) == code
        await until(lambda: not len(inside.watches(broker)))
        assert not inside.budget(broker).incomplete
        async with asyncio.timeout(10):
            while (await http.get(SUB)).json()["lag_total"]["in_flight"]:
                await asyncio.sleep(0.01)
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []

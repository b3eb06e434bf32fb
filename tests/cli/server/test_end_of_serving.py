"""How the serving ends: the delay in which a load balancer looks away, what cuts it short, what fails on the way."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq.broker.broker import Broker
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process import Gate, running
from tests.support.brokers.in_process_cluster import in_loop, until
from tests.support.brokers.serving import Served, served

LONG_S = 600
WITHIN_S = 20


def asking() -> httpx.AsyncClient:
    return httpx.AsyncClient(trust_env=False, timeout=WITHIN_S)


async def unready(http: httpx.AsyncClient, serving: Served) -> str:
    """Waits until new clients are sent elsewhere. Returns what they are told."""
    async with asyncio.timeout(WITHIN_S):
        while (answer := await http.get(f"{serving.url}/readyz")).status_code == 200:
            await asyncio.sleep(0.01)
    assert answer.status_code == 503
    detail: str = answer.json()["detail"]
    return detail


@pytest.mark.brokers
@pytest.mark.parametrize("brokers", [1, 2])
async def test_in_the_delay_new_clients_go_elsewhere_and_all_else_is_as_before(tmp_path: Path, brokers: int) -> None:
    async with in_loop(tmp_path, brokers, shutdown_delay_s=LONG_S) as together:
        one = together.brokers[0]
        async with served(one) as serving, asking() as http:
            assert (await http.get(f"{serving.url}/readyz")).status_code == 200
            serving.stop.ask()
            assert "about to stop" in await unready(http, serving)
            answer = await http.post(f"{serving.url}/v1/topics/t/messages", json={"value": 1})
            assert answer.status_code == 200
            assert answer.headers["connection"] == "close"  # nothing is cut off when the delay is over
            assert "seaweedq_ready 0.0" in (await http.get(f"{serving.url}/metrics")).text
            assert len(list(inside.catalog(one).owned_by(one.id))) > 0
            assert all(broker.record.takes_more for broker in inside.roster(one).brokers.values())
            assert not serving.ended.done()
            serving.stop.ask()
            await asyncio.wait_for(serving.ended, WITHIN_S)
            assert len(list(inside.catalog(one).owned_by(one.id))) == (0 if brokers > 1 else 1)


async def test_in_the_delay_an_answer_to_an_older_request_ends_the_connection(tmp_path: Path) -> None:
    async with running(tmp_path, shutdown_delay_s=LONG_S) as broker, served(broker) as serving, asking() as http:
        messages = f"{serving.url}/v1/topics/t/messages"
        assert (await http.post(messages, json={"value": 1})).status_code == 200
        fetch = f"{serving.url}/v1/topics/t/segments/0/messages"
        waiting = asyncio.create_task(http.get(fetch, params={"offset": 1, "wait_s": 10}))
        await until(lambda: bool(privates.waiters(inside.catalog(broker).get("t").signal)))
        serving.stop.ask()
        await unready(http, serving)
        assert (await http.post(messages, json={"value": 2})).status_code == 200
        answer = await waiting
        assert [message["value"] for message in answer.json()["messages"]] == [2]
        assert answer.headers["connection"] == "close"
        serving.stop.ask()


async def test_the_delay_ends_by_itself(tmp_path: Path) -> None:
    async with running(tmp_path, shutdown_delay_s=0.2) as broker, served(broker) as serving:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        serving.stop.ask()
        await asyncio.wait_for(serving.ended, WITHIN_S)
        assert loop.time() - began_s >= 0.2


async def test_a_request_on_a_connection_that_has_just_come_is_answered(tmp_path: Path) -> None:
    """Without an answer a client does not know whether its message was stored, and must not send it again."""
    async with running(tmp_path) as broker, served(broker) as serving:
        port = int(serving.url.rpartition(":")[2])
        (early, to_early), (silent, to_silent) = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await until(lambda: len(serving.server.server_state.connections) == 2)
        serving.stop.ask()
        await until(lambda: broker.readiness.stopping)
        to_early.write(b"POST /v1/topics/t/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
        async with asyncio.timeout(WITHIN_S):
            answer = await early.read()
            assert await silent.read() == b"", "it is not waited for for ever"
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"connection: close" in answer.lower()
        for one in (to_early, to_silent):
            one.close()


async def test_a_lost_life_ends_the_delay(tmp_path: Path) -> None:
    async with running(tmp_path, shutdown_delay_s=LONG_S) as broker, served(broker) as serving, asking() as http:
        serving.stop.ask()
        await unready(http, serving)
        privates.lose(broker)("it is a test")
        await asyncio.wait_for(serving.ended, WITHIN_S)


async def test_two_signals_at_once_skip_the_delay_and_a_third_one_the_hand_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain = Gate()
    monkeypatch.setattr(Broker, "drain", drain)
    async with running(tmp_path, shutdown_delay_s=LONG_S) as broker, served(broker) as serving:
        serving.stop.ask()
        serving.stop.ask()
        await asyncio.wait_for(drain.reached.wait(), WITHIN_S)
        assert not serving.ended.done()
        serving.stop.ask()
        await asyncio.wait_for(serving.ended, WITHIN_S)


@pytest.mark.parametrize("error", [RuntimeError("a defect"), asyncio.CancelledError()])
async def test_a_hand_over_that_ends_unforeseen_does_not_keep_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    async def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(Broker, "drain", fail)
    async with running(tmp_path) as broker, served(broker) as serving:
        serving.stop.ask()
        await asyncio.wait_for(serving.ended, WITHIN_S)
        assert broker.readiness.stopping
    assert ("a defect" in caplog.text) == isinstance(error, RuntimeError)


class RoundRobin:
    """A load balancer: it looks each `LOOK_S`, and sends a request once, to the next of those that were ready then."""

    LOOK_S = 0.5

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.urls: list[str] = []
        self.refused: list[str] = []
        self.answered = 0
        self._http = http
        self._ready: list[str] = []

    async def look(self) -> None:
        while True:
            self._ready = [url for url in list(self.urls) if await self._is_ready(url)]
            await asyncio.sleep(self.LOOK_S)

    async def _is_ready(self, url: str) -> bool:
        try:
            return (await self._http.get(f"{url}/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    async def send(self, number: int) -> None:
        while True:
            if self._ready:
                url = self._ready[self.answered % len(self._ready)]
                await self._publish(url, {"key": f"{number}-{self.answered}", "value": number})
            await asyncio.sleep(0.02)

    async def _publish(self, url: str, message: dict[str, Any]) -> None:
        try:
            answer = await self._http.post(f"{url}/v1/topics/t/messages", json=message)
        except httpx.TransportError as error:
            self.refused.append(repr(error))
            return
        self.answered += 1
        if answer.status_code != 200:
            self.refused.append(answer.text)


@pytest.mark.brokers
@pytest.mark.long
async def test_stops_behind_a_load_balancer_that_looks_seldom_cost_no_request(tmp_path: Path) -> None:
    async with asking() as http, in_loop(tmp_path, 3, shutdown_delay_s=4 * RoundRobin.LOOK_S) as together:
        balancer = RoundRobin(http)
        async with AsyncExitStack() as stack:
            serving = [await stack.enter_async_context(served(broker)) for broker in together.brokers]
            balancer.urls = [one.url for one in serving]
            work = [asyncio.create_task(balancer.look()), *(asyncio.create_task(balancer.send(n)) for n in range(4))]
            for one in serving[:2]:
                before = balancer.answered
                await until(lambda before=before: balancer.answered > before + 20)
                one.stop.ask()
                await asyncio.wait_for(one.ended, WITHIN_S)
                await one.broker.stop()
            before = balancer.answered
            await until(lambda before=before: balancer.answered > before + 20)
            for task in work:
                task.cancel()
            assert balancer.refused == []
            await asyncio.gather(*work, return_exceptions=True)
            assert all(task.cancelled() for task in work)

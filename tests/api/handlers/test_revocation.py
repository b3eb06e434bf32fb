"""Tokens that end, over brokers each of which has a coordination client of its own; clocks that differ; and a restart
of all brokers by which tokens become required. Requests and streams that wait end with the right to what they wait
for.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from seaweedq.access.tokens import draw
from seaweedq.broker.broker import Broker
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.coordination.etcd import EtcdCoordination
from seaweedq.coordination.etcd_transport import Access
from seaweedq.coordination.interface import Coordination
from seaweedq.coordination.sqlite import EmbeddedCoordination
from seaweedq.storage.memory import MemoryStore
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.deaf import end_task
from tests.support.brokers.in_process_cluster import InLoop, until
from tests.support.brokers.machine import Machine
from tests.support.http.listening import listening
from tests.support.http.with_tokens import EVERYTHING, Http, access, id_of
from tests.support.processes.etcd_service import EtcdServer
from tests.support.processes.tcp_proxy import LoopThread, TcpProxy
from tests.support.tiers import marked

pytestmark = pytest.mark.brokers

SUB, WRITE, HELD = "/v1/topics/a/subscriptions/s", "/v1/topics/a/writes/w/1", 4
TAKEN_S = 15.0  # a revocation takes 0.1 s and may take 1; this machine may be busy
logger = logging.getLogger(__name__)


class Apart(InLoop):
    """Brokers that hear of each other through the coordination that they have in common alone: none shares a client."""

    def __init__(self, folder: Path, settings: dict[str, Any], client: Callable[[], Coordination]) -> None:
        super().__init__(folder, MemoryStore(), settings)
        self.clients: list[Coordination] = []
        self._client = client

    async def begin(self) -> Broker:
        """As InLoop, with another client."""
        self.clients.append(self._client())
        self.coordination = self.clients[-1]  # type: ignore[assignment]
        return await super().begin()


@asynccontextmanager
async def apart(folder: Path, client: Callable[[], Coordination], **more: Any) -> AsyncIterator[Http]:
    """Three brokers that need tokens."""
    (folder / "admin").write_text(admin := draw(SystemIds()))
    settings = {"auth": "required", "admin_token_file": str(folder / "admin"), "audit": "none", **more}
    together = Apart(folder, settings, client)
    async with AsyncExitStack() as stack:
        for _ in range(3):
            broker = await together.begin()
            stack.push_async_callback(together.clients[-1].close)
            stack.push_async_callback(broker.stop)
        await together.see()
        yield Http(together, admin)


@pytest.fixture
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Coordination]:
    """Makes clients of one coordination."""
    if request.param == "embedded":
        (tmp_path / "shared").mkdir()
        return lambda: EmbeddedCoordination(tmp_path / "shared" / "coordination.db", SystemClock())
    endpoint, prefix = request.getfixturevalue("etcd_server").endpoint, f"{uuid4()}/"
    return lambda: EtcdCoordination(Access([endpoint]), prefix)


async def socket(http: Http, token: str, broker: int, sent: list[Any]) -> tuple[int, float]:
    """Listens to the topic by a WebSocket: the code with which it ends, and when."""
    ended = asyncio.Event()

    async def receive() -> Any:
        if not sent:
            return {"type": "websocket.connect"}
        await ended.wait()
        return {"type": "websocket.disconnect", "code": 1005}

    async def send(message: Any) -> None:
        sent.append(message)

    path = "/v1/topics/a/stream"
    scope = {"type": "websocket", "path": path, "raw_path": path.encode(), "query_string": b"", "extensions": {}}
    headers = [(b"host", f"b{broker}".encode())]
    subprotocols = ["seaweedq.v1", f"bearer.{token}"]
    app = http.together.apps[f"http://b{broker}"]
    await app({**scope, "headers": headers, "subprotocols": subprotocols}, receive, send)
    assert sent[-1]["type"] == "websocket.close", sent
    return sent[-1]["code"], time.monotonic()


async def stream(http: Http, path: str, token: str, broker: int, sent: list[Any]) -> tuple[bytes, float]:
    """Listens to a stream of events: its last one, and when that came."""
    await http.stream(path, token, broker, sent)
    return sent[-1]["body"].split(b"\n")[0], time.monotonic()


async def pull(http: Http, token: str, broker: int) -> tuple[int, float]:
    """Waits for messages: the status, and when it came."""
    status = await http.status("POST", f"{SUB}/pull", token, broker, json={"wait_s": 30})
    return status, time.monotonic()


async def refused(http: Http, token: str, broker: int) -> tuple[int, float]:
    """Asks until it is refused: the status, and when it came."""
    while (status := await http.status("GET", "/v1/whoami", token, broker)) == 200:
        await asyncio.sleep(0.01)
    return status, time.monotonic()


async def end_all(http: Http, by: Callable[[str], Any]) -> list[float]:
    """Ends a token by which clients wait and listen in all ways at all brokers: the seconds until each was told so."""
    token = await http.token(principal="p")
    sent: list[list[Any]] = [[] for _ in range(9)]
    waiting = [
        asyncio.create_task(one)
        for broker in range(3)
        for one in (
            pull(http, token, broker),
            stream(http, "/v1/topics/a/stream", token, broker, sent[broker]),
            stream(http, f"{SUB}/stream", token, broker, sent[3 + broker]),
            socket(http, token, broker, sent[6 + broker]),
        )
    ]
    held = [privates.held(inside.callers(one)) for one in http.together.brokers]
    await until(lambda: all(sent) and all(len(one) == HELD for one in held), "not all of them wait")
    asking = [asyncio.create_task(refused(http, token, broker)) for broker in range(3)]
    began_s = time.monotonic()
    await by(token)
    found = await asyncio.wait_for(asyncio.gather(*waiting, *asking), 30)
    assert [what for what, _ in found] == [401, b"event: bye", b"event: bye", 4401] * 3 + [401] * 3
    return [at_s - began_s for _, at_s in found]


@pytest.mark.parametrize("client", ["embedded", marked("etcd", "service", "long")], indirect=True)
async def test_a_token_ends_on_three_brokers_in_all_ways_in_which_it_is_used(
    client: Callable[[], Coordination], tmp_path: Path
) -> None:
    async with apart(tmp_path, client) as http:
        await http.principal("p", EVERYTHING)
        assert await http.status("PUT", "/v1/topics/a", http.admin) == 201
        assert await http.status("PUT", SUB, http.admin, json={}) == 201

        async def revoke(token: str) -> None:
            assert await http.status("DELETE", f"/v1/tokens/{id_of(token)}", http.admin, 1) == 204

        async def narrow(_: str) -> None:
            disabled = {"grants": EVERYTHING, "disabled": True}
            assert await http.status("PUT", "/v1/principals/p", http.admin, 2, json=disabled) == 200

        took_s = sorted([s for _ in range(4) for s in await end_all(http, revoke)] + await end_all(http, narrow))
        logger.info("%d ends: p50 %.3f s, p99 %.3f s", len(took_s), took_s[len(took_s) // 2], took_s[-1])
        assert took_s[-1] < TAKEN_S


async def test_a_broker_that_is_cut_off_ends_all_with_its_lease(tmp_path: Path) -> None:
    async with access(tmp_path, 2) as http:
        await http.principal("p", EVERYTHING)
        await http("PUT", "/v1/topics/a", http.admin)
        await http("PUT", SUB, http.admin, json={})
        token = await http.token(principal="p")
        cut_off = http.together.brokers[1]
        await end_task(cut_off, "principals and tokens")
        sent: list[list[Any]] = [[], []]
        listening = stream(http, "/v1/topics/a/stream", token, 1, sent[0]), socket(http, token, 1, sent[1])
        waiting = [asyncio.create_task(one) for one in (*listening, pull(http, token, 1))]
        await until(lambda: all(sent) and len(privates.held(inside.callers(cut_off))) == 3)
        assert await http.status("DELETE", f"/v1/tokens/{id_of(token)}", http.admin) == 204
        assert await http.status("GET", "/v1/topics/a", token, 0) == 401
        assert await http.status("GET", "/v1/topics/a", token, 1) == 200, "it cannot know"
        await http.together.coordination.leases.revoke(inside.membership(cut_off).lease)
        for one in await asyncio.wait_for(asyncio.gather(*waiting), 20):
            assert one[0] in (b"event: bye", 1012, 1013, 503), one
        assert not privates.held(inside.callers(cut_off))
        for method, path, content in (("GET", "/v1/topics/a", None), ("POST", f"{SUB}/pull", {})):
            assert await http.status(method, path, token, 1, json=content) == 503


@pytest.mark.service
@pytest.mark.long
async def test_a_partition_from_etcd_ends_the_waits_of_a_revoked_token(etcd_server: EtcdServer, tmp_path: Path) -> None:
    thread, prefix = LoopThread(), f"{uuid4()}/"
    link = TcpProxy(thread, etcd_server.endpoint).start()
    endpoints = iter([etcd_server.endpoint, etcd_server.endpoint, f"127.0.0.1:{link.port}"])
    lease_s = 5.0
    async with apart(tmp_path, lambda: EtcdCoordination(Access([next(endpoints)]), prefix), lease_s=lease_s) as http:
        await http.principal("p", EVERYTHING)
        assert await http.status("PUT", "/v1/topics/a", http.admin) == 201
        assert await http.status("PUT", SUB, http.admin, json={}) == 201
        token = await http.token(principal="p")
        sent: list[list[Any]] = [[], []]
        waiting = [
            asyncio.create_task(one)
            for one in (
                stream(http, "/v1/topics/a/stream", token, 2, sent[0]),
                socket(http, token, 2, sent[1]),
                pull(http, token, 2),
            )
        ]
        cut_off = inside.callers(http.together.brokers[2])
        await until(lambda: all(sent) and len(privates.held(cut_off)) == 3, "not all of them wait")
        await asyncio.to_thread(link.cut, "both")
        began_s = time.monotonic()
        assert await http.status("DELETE", f"/v1/tokens/{id_of(token)}", http.admin, 1) == 204
        for broker in (0, 1):
            _, at_s = await refused(http, token, broker)
            assert at_s - began_s < TAKEN_S
        for what, at_s in await asyncio.wait_for(asyncio.gather(*waiting), 4 * lease_s):
            assert what in (b"event: bye", 1012, 1013, 503), what
            logger.info("behind the partition: %s after %.1f s", what, at_s - began_s)
        assert not privates.held(cut_off)
        assert await http.status("GET", "/v1/topics/a", token, 2) == 503
        await asyncio.to_thread(link.heal)
    await asyncio.to_thread(link.stop)
    await asyncio.to_thread(thread.close)


class Off(SystemClock):
    """A wall clock that is off by some seconds."""

    def __init__(self, seconds: float) -> None:
        self._us = int(seconds * 1e6)

    def now_us(self) -> int:
        return super().now_us() + self._us


async def test_clocks_that_are_off_by_a_minute_move_expiry_alone(tmp_path: Path) -> None:
    (tmp_path / "admin").write_text(admin := draw(SystemIds()))
    settings = {"auth": "required", "admin_token_file": str(tmp_path / "admin"), "lease_s": 60}
    together = InLoop(tmp_path, MemoryStore(), settings)
    for seconds in (0, 60, -60):
        together.machine = Machine(Off(seconds))
        await together.begin()
    await together.see()
    http = Http(together, admin)
    await http.principal("p", EVERYTHING)
    assert await http.status("PUT", "/v1/topics/a", http.admin, json={"initial_segments": 3}) == 201
    assert await http.status("PUT", SUB, http.admin, json={"start": "earliest"}) == 201
    lasting, short, child = (
        await http.token(principal="p"),
        await http.token(principal="p", expires_s=30),
        await http.token(principal="p", expires_s=600),
    )
    for broker, ahead_s in enumerate((0, 60, -60)):
        assert await http.status("GET", "/v1/topics/a", short, broker) == (401 if ahead_s > 30 else 200)
        for token in (lasting, child):
            messages = {"messages": [{"key": f"k{n}", "value": n} for n in range(9)]}
            assert await http.status("POST", "/v1/topics/a/messages", token, broker, json=messages) == 200
            assert await http.status("POST", f"{SUB}/pull", token, broker, json={}) == 200
    assert await http.status("POST", f"{SUB}/pull", short, 2, json={}) == 200, "whoever has judged it, wherever it goes"
    assert await http.status("DELETE", f"/v1/tokens/{id_of(lasting)}", http.admin, 2) == 204
    await http.known(id_of(lasting), False)
    assert [await http.status("GET", "/v1/topics/a", lasting, broker) for broker in range(3)] == [401] * 3
    for broker in together.brokers:
        await broker.stop()
    await together.coordination.close()


async def test_a_rolling_restart_requires_tokens_and_fails_nobody_who_has_one(tmp_path: Path) -> None:
    (tmp_path / "admin").write_text(admin := draw(SystemIds()))
    together = InLoop(tmp_path, MemoryStore(), {"auth": "none", "admin_token_file": str(tmp_path / "admin")})
    for _ in range(3):
        await together.begin()
    await together.see()
    http = Http(together, admin)
    await http.principal("p", EVERYTHING)
    token = await http.token(principal="p")
    assert await http.status("PUT", "/v1/topics/a", None, json={"initial_segments": 3}) == 201
    assert await http.status("PUT", SUB, None, json={"start": "earliest"}) == 201
    together.settings["auth"] = "required"
    for number in range(3):
        old = next(one for one in together.brokers if one.process.url == f"http://b{number}")
        await old.drain()
        await old.stop()
        together.brokers.remove(old)
        del together.apps[old.process.url]
        await until(lambda: all(len(inside.roster(one).brokers) == 2 for one in together.brokers))
        await work(http, token, [n for n in range(3) if n != number])
        settings = old.process.settings.model_copy(update={"auth": "required"})
        await privates.begin(together)(settings, old.process.url)
        await together.see()
        await until(lambda: all(one.readiness.ready for one in together.brokers))
        await work(http, token, range(3))
        anonymous = [await http.status("GET", "/v1/topics/a", None, broker) for broker in range(3)]
        assert anonymous == [401 if broker <= number else 200 for broker in range(3)]
    for broker in together.brokers:
        await broker.stop()
    await together.coordination.close()


async def work(http: Http, token: str, brokers: Any) -> None:
    """Publishes, pulls and acks at brokers, each of which relays most of it."""
    for broker in brokers:
        messages = {"messages": [{"key": f"k{n}", "value": n} for n in range(9)]}
        assert await http.status("POST", "/v1/topics/a/messages", token, broker, json=messages) == 200
        answer = await http("POST", f"{SUB}/pull", token, broker, json={"wait_s": 10})
        assert answer.status_code == 200, answer.text
        ids = [one["id"] for one in answer.json()["messages"]]
        assert await http.status("POST", f"{SUB}/ack", token, broker, json={"ids": ids}) == 200


async def test_expiry_ends_what_waits(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        await http.principal("p", EVERYTHING)
        await http("PUT", "/v1/topics/a", http.admin)
        await http("PUT", "/v1/topics/a/subscriptions/s", http.admin, json={})
        token = await http.token(principal="p", expires_s=1.5)
        pull = {"wait_s": 30}
        answer = await asyncio.wait_for(http("POST", "/v1/topics/a/subscriptions/s/pull", token, json=pull), 20)
        assert answer.status_code == 401


@pytest.mark.parametrize("at", [0, 1])
async def test_a_revocation_ends_what_waits_wherever_it_waits(tmp_path: Path, at: int) -> None:
    async with access(tmp_path, 2) as http:
        await http.principal("p", EVERYTHING)
        await http("PUT", "/v1/topics/a", http.admin)
        await http("PUT", "/v1/topics/a/subscriptions/s", http.admin, json={})
        token = await http.token(principal="p")
        streams: list[list[Any]] = [[], []]
        waiting = [
            asyncio.create_task(http("POST", "/v1/topics/a/subscriptions/s/pull", token, at, json={"wait_s": 30})),
            asyncio.create_task(http("GET", "/v1/topics/a/segments/0/messages?offset=0&wait_s=30", token, at)),
            asyncio.create_task(http.stream("/v1/topics/a/stream", token, at, streams[0])),
            asyncio.create_task(http.stream("/v1/topics/a/subscriptions/s/stream", token, at, streams[1])),
        ]
        callers = inside.callers(http.together.brokers[at])
        await until(lambda: len(privates.held(callers)) == 4 and all(streams))
        other = asyncio.create_task(
            http("POST", "/v1/topics/a/subscriptions/s/pull", http.admin, at, json={"wait_s": 2})
        )
        assert await http.status("DELETE", f"/v1/tokens/{id_of(token)}", http.admin) == 204
        pulled, fetched, *_ = await asyncio.wait_for(asyncio.gather(*waiting), 20)
        assert (pulled.status_code, fetched.status_code) == (401, 401)
        for sent in streams:
            assert [one.get("status") for one in sent if one["type"] == "http.response.start"] == [200]
            assert sent[-1]["body"].startswith(b"event: bye\n")
            assert b"unauthenticated" in sent[-1]["body"]
            assert not sent[-1].get("more_body")
        assert (await other).status_code == 200, "others go on"
        assert not privates.held(callers)


@pytest.mark.parametrize("end", ["token", "principal"])
async def test_a_payload_that_is_being_sent_ends_with_its_token(tmp_path: Path, end: str) -> None:
    """Also one whose client takes nothing for now."""
    async with access(tmp_path) as http:
        await http.principal("p", EVERYTHING)
        content = bytes(4 * 2**20)
        made = (await http("POST", "/v1/topics/a/uploads", http.admin, json={"size": len(content)})).json()
        assert await http.status("PUT", made["url"].removeprefix("http://b0"), None, content=content) == 201
        message = {"reference": {"upload_id": made["upload_id"]}}
        assert await http.status("POST", "/v1/topics/a/messages", http.admin, json=message) == 200
        token = await http.token(principal="p")
        shown = {"authorization": f"Bearer {token}"}
        path = "/v1/topics/a/segments/0/messages/0/payload"
        async with listening(http.together.apps["http://b0"], path, shown, taking=False) as client:
            assert client.status == 200
            path = f"/v1/tokens/{id_of(token)}" if end == "token" else "/v1/principals/p"
            assert await http.status("DELETE", path, http.admin) == 204
            await until(lambda: client.aborted)
            assert client.ended
            await asyncio.wait_for(asyncio.shield(client.ended), 20)
            assert len(client.content) < len(content)
            assert not client.complete
        assert not privates.held(inside.callers(http.together.brokers[0]))


async def test_a_change_that_leaves_the_right_ends_nothing(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        await http.principal("p", EVERYTHING)
        await http("PUT", "/v1/topics/a", http.admin)
        await http("PUT", "/v1/topics/a/subscriptions/s", http.admin, json={})
        token = await http.token(principal="p")
        waiting = asyncio.create_task(http("POST", "/v1/topics/a/subscriptions/s/pull", token, json={"wait_s": 30}))
        await until(lambda: len(privates.held(inside.callers(http.together.brokers[0]))) == 1)
        await http.principal("p", [{"actions": ["consume"], "topics": ["a"]}])
        await http("POST", "/v1/topics/a/messages", http.admin, json={"value": 1})
        assert len((await waiting).json()["messages"]) == 1


async def test_a_change_that_takes_the_right_ends_what_waits_with_403(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        await http.principal("p", EVERYTHING)
        await http("PUT", "/v1/topics/a", http.admin)
        await http("PUT", "/v1/topics/a/subscriptions/s", http.admin, json={})
        token = await http.token(principal="p")
        sent: list[Any] = []
        pull = http("POST", "/v1/topics/a/subscriptions/s/pull", token, json={"wait_s": 30})
        waiting = asyncio.create_task(pull), asyncio.create_task(http.stream("/v1/topics/a/stream", token, 0, sent))
        await until(lambda: len(privates.held(inside.callers(http.together.brokers[0]))) == 2 and bool(sent))
        await http.principal("p", [{"actions": ["publish"], "topics": ["a"]}])
        pulled, _ = await asyncio.wait_for(asyncio.gather(*waiting), 20)
        assert (pulled.status_code, pulled.json()["action"]) == (403, "consume"), "another token would not help"
        assert b"/problems/forbidden" in sent[-1]["body"]
        assert await http.status("GET", "/v1/whoami", token) == 200


@asynccontextmanager
async def held_write(folder: Path) -> AsyncIterator[tuple[Http, str, dict[str, Any]]]:
    """A token, and the body of a request for a write: the write goes on once the request has ended."""

    async def rows() -> AsyncIterator[bytes]:
        yield b'{"value": 1}\n'

    async with access(folder) as http:
        await http.principal("p", EVERYTHING)
        await http("PUT", "/v1/topics/a", http.admin)
        (broker,) = http.together.brokers
        topic, turns = inside.topic(broker, "a"), asyncio.Semaphore(0)
        upload, _ = await inside.uploads(broker).create(topic, 13, "x/y", None, None, "w/1")
        await inside.uploads(broker).receive(topic, upload, rows())
        privates.use_turns(inside.writes(broker), turns)
        yield http, await http.token(principal="p"), {"uploads": [upload], "format": "ndjson"}
        assert inside.writes(broker).under_way == 1
        turns.release()
        await until(lambda: inside.writes(broker).under_way == 0)


async def test_a_revocation_ends_the_wait_for_a_write_and_not_the_write(tmp_path: Path) -> None:
    async with held_write(tmp_path) as (http, token, asked):
        waiting = asyncio.create_task(http("PUT", f"{WRITE}?wait_s=60", token, json=asked))
        await until(lambda: inside.writes(http.together.brokers[0]).under_way == 1)
        assert await http.status("DELETE", f"/v1/tokens/{id_of(token)}", http.admin) == 204
        assert (await asyncio.wait_for(waiting, 20)).status_code == 401


async def test_a_client_that_goes_ends_its_wait_for_a_write_and_not_the_write(tmp_path: Path) -> None:
    async with held_write(tmp_path) as (http, token, asked):
        sent: list[Any] = []
        bodies = [json.dumps(asked).encode()]

        async def receive() -> Any:
            if bodies:
                return {"type": "http.request", "body": bodies.pop()}
            await until(lambda: inside.writes(http.together.brokers[0]).under_way == 1)
            return {"type": "http.disconnect"}

        await asyncio.wait_for(http.call("PUT", WRITE, token, receive, sent, query=b"wait_s=60"), 20)
        assert sent[0]["status"] == 499

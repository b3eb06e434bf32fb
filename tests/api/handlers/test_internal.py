"""Three brokers that prove who they are: what others could record, forge or put into coordination is of no use."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.rpc.peer_connections import Relayed, Request
from seaweedq.broker.rpc.peer_keyring import PeerKeyring, secrets_of
from seaweedq.broker.rpc.peer_sessions import HELLO_HEADER, STAMP_HEADER
from seaweedq.clock import SystemIds
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.records import BrokerRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import DirectPeers, InLoop, in_loop, until
from tests.support.brokers.peer_keys import keys_of

TOPIC = "/v1/topics/t"
FALSE = "http://false"


class Recorded:
    """All that brokers send each other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[tuple[str, Request, dict[str, str]]] = []
        self.answers: list[Relayed] = []
        send = DirectPeers.send

        async def recording(peers: DirectPeers, base: str, request: Request, shown: Any, *more: Any) -> Relayed:
            self.requests.append((base, request, dict(shown)))
            found = await send(peers, base, request, shown, *more)
            self.answers.append(found)
            return found

        monkeypatch.setattr(DirectPeers, "send", recording)

    def shown(self) -> set[str]:
        """The headers by which brokers showed who they are."""
        return {name for _, _, shown in self.requests for name in shown}


def http_at(together: InLoop, broker: Broker) -> httpx.AsyncClient:
    """A client of one broker."""
    transport = httpx.ASGITransport(together.apps[broker.process.url])
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None)


async def publish(http: httpx.AsyncClient, number: int, count: int = 12) -> None:
    """Messages for all segments."""
    messages = [{"key": f"k{n}", "value": number} for n in range(count)]
    answer = await http.post(f"{TOPIC}/messages", json={"messages": messages})
    assert answer.status_code == 200, answer.text


async def work(together: InLoop) -> None:
    """Publishes, pulls and acks at every broker: most of it is another one's."""
    for number, broker in enumerate(together.brokers):
        if not broker.readiness.ready:
            continue
        async with http_at(together, broker) as http:
            await publish(http, number)
            answer = await http.post(f"{TOPIC}/subscriptions/s/pull", json={"max_messages": 5})
            assert answer.status_code == 200, answer.text
            ids = [one["id"] for one in answer.json()["messages"]]
            answer = await http.post(f"{TOPIC}/subscriptions/s/ack", json={"ids": ids})
            assert answer.status_code == 200, answer.text


async def make(together: InLoop) -> None:
    """A topic with segments at all brokers, and a subscription."""
    async with http_at(together, together.brokers[0]) as http:
        assert (await http.put(TOPIC, json={"initial_segments": 6})).status_code == 201
        assert (await http.put(f"{TOPIC}/subscriptions/s", json={"start": "earliest"})).status_code == 201


@pytest.mark.brokers
@pytest.mark.parametrize("peer_ports", [False, True])
async def test_brokers_never_send_the_secret_and_nothing_is_taken_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, peer_ports: bool
) -> None:
    recorded = Recorded(monkeypatch)
    async with in_loop(tmp_path, 3, peer_ports=peer_ports) as together:
        await make(together)
        await work(together)
        assert recorded.shown() == {STAMP_HEADER, HELLO_HEADER}
        sent = [one for one in recorded.requests if STAMP_HEADER in one[2]]
        assert len(sent) > 10
        for base, request, shown in recorded.requests[:]:
            assert "secret" not in str((request.headers, shown)).lower().replace("seaweedq", "")
            app: Any = together.peer_apps[base] if peer_ports else together.apps[base]
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base) as http:
                headers = {**request.headers, **shown}
                answer = await http.request(request.method, request.path, headers=headers, content=request.body)
            if STAMP_HEADER in shown:
                assert (answer.status_code, answer.json().get("reason")) == (403, "taken"), (request, answer.text)
        counted = [app.refusals.counts["peer"] for app in together.apps.values()]
        assert sum(counted) >= len(sent)


@pytest.mark.brokers
async def test_a_false_broker_in_coordination_is_neither_called_nor_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorded = Recorded(monkeypatch)
    async with in_loop(tmp_path, 2) as together:
        await make(together)
        true = next(iter(inside.roster(together.brokers[0]).brokers.values())).record
        lease = (await together.coordination.leases.grant(60)).lease
        for broker, record in {
            "false.1": BrokerRecord(FALSE, "false", 1, lease_s=60),
            "false.2": msgspec.structs.replace(true, url=FALSE),
            "false.3": msgspec.structs.replace(true, peer_url=FALSE),
            "b0.4": true,
        }.items():
            put = Put(keys.BROKERS.key(broker), keys.BROKERS.encode(Versioned.new(record)), lease)
            await together.coordination.commit([], [put])
        await until(lambda: all(len(inside.roster(one).strange) == 4 for one in together.brokers))
        await work(together)
        await asyncio.sleep(0.3)
        async with http_at(together, together.brokers[0]) as http:
            told = (await http.get("/v1/cluster")).text + (await http.get(f"{TOPIC}/segments")).text
        assert "b0" in told
        assert FALSE not in told
        assert "false." not in told
        assert {base for base, _, _ in recorded.requests} == {"http://b0", "http://b1"}
        assert "neither calls broker false.1 nor gives that broker's address" in caplog.text
        await together.coordination.leases.revoke(lease)
        await until(lambda: not any(inside.roster(one).strange for one in together.brokers))


@pytest.mark.brokers
@pytest.mark.parametrize("headers", [{STAMP_HEADER: "x"}, {STAMP_HEADER: "0" * 32 + " 1 " + "0" * 64}])
async def test_who_claims_to_be_a_broker_is_refused_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, headers: dict[str, str]
) -> None:
    async with in_loop(tmp_path, 1) as together:
        async with http_at(together, together.brokers[0]) as http:
            for path in ("/internal/status", "/internal/hello"):
                answer = await http.post(path, headers=headers)
                assert (answer.status_code, answer.json()["type"]) == (403, "/problems/peer-refused"), path
            assert (await http.post("/internal/status")).json()["type"] == "/problems/forbidden"
        assert together.apps["http://b0"].refusals.counts["peer"] >= 1
        assert "request refused (peer)" in caplog.text


@pytest.mark.brokers
async def test_a_web_socket_that_claims_to_be_a_brokers_is_refused(tmp_path: Path) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async with in_loop(tmp_path, 1) as together:
        path = f"{TOPIC}/stream"
        scope = {"type": "websocket", "path": path, "raw_path": path.encode(), "query_string": b"", "subprotocols": []}
        stamp = "0" * 32 + " 1 " + "0" * 64
        headers = [(b"host", b"b0"), (STAMP_HEADER.lower().encode(), stamp.encode())]
        scope |= {"headers": headers, "extensions": {"websocket.http.response": {}}}
        await together.apps["http://b0"](scope, asyncio.Event().wait, send)
        assert sent[0]["status"] == 403
        assert together.apps["http://b0"].refusals.counts["peer"] == 0, "as if a session had ended"


@pytest.mark.brokers
async def test_a_broker_in_its_next_life_is_called_without_a_failed_request(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 2) as together:
        await make(together)
        await work(together)
        one, two = together.brokers
        await together.crash(two)
        again = await together.begin_again(two)
        await until(lambda: inside.roster(one).brokers.keys() == {one.id, again.id})
        found = await one.process.peers.post(again.process.url, "status", b"", 5)
        assert found
        await again.stop()


@pytest.mark.brokers
async def test_a_rise_of_the_level_under_load_loses_no_request(
    tmp_path: Path, next_level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_loop(tmp_path, 3, level=1) as together:
        monkeypatch.setattr(inside.level_upgrade(together.brokers[0]), "_lease_s", 3.0)  # for so long it waits
        await make(together)
        await work(together)
        working = asyncio.create_task(work_often(together))
        await inside.level_upgrade(together.brokers[0]).upgrade(next_level)
        await until(lambda: all(inside.level(one).written == next_level for one in together.brokers))
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        await work(together)
        assert not any(inside.roster(one).strange for one in together.brokers)


async def work_often(together: InLoop) -> None:
    """Works for ever; fails with the first request that fails."""
    while True:
        await work(together)
        await asyncio.sleep(0)


@pytest.mark.brokers
async def test_two_rolling_restarts_change_a_secret_without_a_failed_request(tmp_path: Path) -> None:
    old, new = "o" * 32, "n" * 32
    together = InLoop(tmp_path, MemoryStore(), {}, secret=old)
    try:
        for _ in range(3):
            await together.begin()
        await settled(together)
        await make(together)
        for together.secret in (f"{new},{old}", new):
            for broker in living(together):
                await broker.drain()
                await broker.stop()
                del together.apps[broker.process.url]
                await settled(together)
                await work(together)
                await together.begin_again(broker)
                await settled(together)
                await work(together)
        assert {broker.process.secret for broker in living(together)} == {new}
    finally:
        for broker in living(together):
            await broker.stop()
        await together.coordination.close()


@pytest.mark.brokers
async def test_a_broker_that_proves_nothing_and_reads_no_level_loses_its_lease(tmp_path: Path, next_level: int) -> None:
    async with in_loop(tmp_path, 1) as together:
        lease = (await together.coordination.leases.grant(60)).lease
        key, record = keys.BROKERS.key("old.1"), BrokerRecord(FALSE, "old", 1)
        await together.coordination.commit([], [Put(key, keys.BROKERS.encode(Versioned.new(record)), lease)])
        for _ in range(500):
            if await together.coordination.get(key) is None:
                break
            await asyncio.sleep(0.01)
        assert await together.coordination.get(key) is None


async def test_links_open_at_each_broker_while_the_secret_is_changed() -> None:
    old, new = "o" * 32, "n" * 32
    record = BrokerRecord(FALSE, "other", 1)

    def signs(mine: str, *others: str) -> tuple[bytes, set[bytes]]:
        """What one signs with, and all that it takes."""
        keyring = PeerKeyring(secrets_of(mine), SystemIds())
        keyring.begin(keys_of(*keyring.secrets), "me.1")
        proven = [keys_of(*secrets_of(one)).prove(f"b{n}", record) for n, one in enumerate(others)]
        records = {f"b{n}": msgspec.structs.replace(record, proofs=found) for n, found in enumerate(proven)}
        roots = keyring.link_roots({broker: Versioned.new(one) for broker, one in records.items()})
        return roots[0], {*roots}

    both = f"{new},{old}"
    steps = [(old, old), (both, old), (both, both), (new, both), (new, new)]
    for mine, other in [*steps, *((other, mine) for mine, other in steps)]:
        assert signs(mine, mine, other)[0] in signs(other, mine, other)[1]
    assert signs(both, both, both)[0] == keys_of(new).roots[0].derive(b"links")


def living(together: InLoop) -> list[Broker]:
    """The brokers that have not ended."""
    return [broker for broker in together.brokers if broker.readiness.ready]


async def settled(together: InLoop) -> None:
    """Waits until each broker that lives sees exactly those that do."""
    ids = {broker.id for broker in living(together)}
    await until(lambda: all(inside.roster(broker).brokers.keys() == ids for broker in living(together)))

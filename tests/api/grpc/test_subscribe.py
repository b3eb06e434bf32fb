"""`Subscribe`: messages and answers, all modes, credits, and all the ways in which a stream ends, with no ack lost."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest

from seaweedq.access.tokens import draw
from seaweedq.api.grpc import queue_pb2 as pb
from seaweedq.clock import SystemIds
from tests.api.grpc.test_bounds import refusals_of
from tests.support.grpc_door import Calls, Door, Flood, door, frame, half_call, refused
from tests.support.processes.broker_process import free_port, free_ports

pytestmark = pytest.mark.default
SUBSCRIBE = "/seaweedq.v1.QueueService/Subscribe"


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Door]:
    async with door(tmp_path) as found:
        await found.calls.CreateTopic(topic="t")
        yield found


async def subscription(calls: Calls, **fields: Any) -> None:
    await calls.CreateSubscription(topic="t", subscription="s", start=pb.Place(end="earliest"), **fields)


async def publish(calls: Calls, *values: Any, key: str | None = None) -> None:
    messages = [pb.NewMessage(key=key, value=json.dumps(one).encode()) for one in values]
    await calls.Publish(topic="t", messages=messages)


def asked(**fields: Any) -> pb.SubscribeRequest:
    return pb.SubscribeRequest(**fields)


async def subscribed(calls: Calls, **start: Any) -> Any:
    """A stream that the broker has accepted."""
    stream = calls.Subscribe()
    await stream.write(asked(start={"topic": "t", "subscription": "s", **start}))
    await stream.initial_metadata()
    return stream


async def delivered(stream: Any, count: int) -> list[pb.Message]:
    """The next messages of a stream, which sends nothing else meanwhile."""
    found: list[pb.Message] = []
    while len(found) < count:
        part = await stream.read()
        assert part.WhichOneof("response") == "delivery", part
        found += part.delivery.messages
    return found


def values(messages: Sequence[pb.Message]) -> list[Any]:
    return [json.loads(one.value) for one in messages]


async def answer(stream: Any, **fields: Any) -> Any:
    """The answer to a message, over which no delivery comes."""
    await stream.write(asked(**fields))
    found = await stream.read()
    return getattr(found, found.WhichOneof("response"))


async def pulled(opened: Door, **more: Any) -> list[tuple[Any, int]]:
    async with httpx.AsyncClient(base_url=opened.served.url, timeout=30) as http:
        answer = await http.post("/v1/topics/t/subscriptions/s/pull", json={"wait_s": 5, **more})
    return [(one["value"], one["attempt"]) for one in answer.json()["messages"]]


async def test_messages_go_out_and_answers_come_in_order(opened: Door) -> None:
    await subscription(opened.calls, mode="shared")
    await publish(opened.calls, 0, 1, 2, 3, key="k")
    stream = await subscribed(opened.calls, max_in_flight=4)
    part = (await stream.read()).delivery
    assert values(part.messages) == [0, 1, 2, 3]
    assert [(one.id, one.key, one.attempt) for one in part.messages][1] == ("0-1", "k", 1)
    for said in (
        asked(extend={"lease": part.lease, "ack_deadline_s": 60}),
        asked(ack={"ids": ["0-1"]}),
        asked(nack={"ids": ["0-2", "0-9"], "delay_s": 600}),
        asked(ack={"lease": "unknown"}),
        asked(ack={"ids": ["0-0"], "consumer": "x" * 300}),
        asked(nack={"ids": ["0-0"], "attempted": False, "reject": True}),
        asked(credit={"messages": 1}),
    ):
        await stream.write(said)
    assert (await stream.read()).extended == pb.Extended(extended=4)
    assert (await stream.read()).acked == pb.Acked(acked=1)
    assert (await stream.read()).nacked == pb.Nacked(nacked=1, unknown=["0-9"])
    told = [(await stream.read()).refusal for _ in range(4)]
    assert [one.reason for one in told] == ["LEASE_ENDED", *["INVALID_REQUEST"] * 3]
    assert [one.code for one in told] == [9, 3, 3, 3]
    assert "ack.consumer" in told[1].message
    assert told[0].metadata["lease"] == "unknown"
    await publish(opened.calls, "a", "b", "c")
    assert values(await delivered(stream, 2)) == ["a", "b"], "max_in_flight"


@pytest.mark.parametrize("mode", ["ordered", "shared", "keyed"])
async def test_each_mode_delivers_all_and_keeps_its_order(opened: Door, mode: str) -> None:
    await subscription(opened.calls, mode=mode)
    messages = [pb.NewMessage(key=f"k{at % 3}", value=b"%d" % at) for at in range(60)]
    await opened.calls.Publish(topic="t", messages=messages)
    streams = [await subscribed(opened.calls, consumer=f"c{n}", max_in_flight=7) for n in range(2)]
    seen: list[int] = []

    async def work(stream: Any) -> None:
        while (part := await stream.read()) is not grpc.aio.EOF:
            if messages := part.delivery.messages:
                seen.extend(values(messages))
                await stream.write(asked(ack={"ids": [one.id for one in messages]}))

    working = [asyncio.create_task(work(one)) for one in streams]
    async with asyncio.timeout(20):
        while len(seen) < 60:
            await asyncio.sleep(0.01)
    for stream in streams:
        await stream.done_writing()
    await asyncio.gather(*working)
    assert sorted(seen) == list(range(60))
    if mode == "ordered":
        assert seen == list(range(60))
    if mode == "keyed":
        for key in range(3):
            assert [one for one in seen if one % 3 == key] == list(range(key, 60, 3))
    assert await pulled(opened, wait_s=0) == []


async def test_a_stream_ends_with_its_client_behind_the_answers(opened: Door) -> None:
    """Its leases end with it, also if its connection breaks."""
    await subscription(opened.calls, mode="shared", ack_deadline_s=600)
    await publish(opened.calls, 0, 1, 2)
    stream = await subscribed(opened.calls)
    await delivered(stream, 3)
    for at in (0, 2):
        await stream.write(asked(ack={"ids": [f"0-{at}"]}))
    await stream.done_writing()
    assert [(await stream.read()).acked.acked for _ in range(2)] == [1, 1]
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() is grpc.StatusCode.OK
    assert await pulled(opened) == [(1, 2)]
    await publish(opened.calls, 3)
    request = asked(start={"topic": "t", "subscription": "s"}).SerializeToString()
    with half_call(opened.target, SUBSCRIBE, request):
        async with asyncio.timeout(15):
            while (await opened.calls.GetSubscription(topic="t", subscription="s")).subscription.lag_total.waiting:
                await asyncio.sleep(0.01)
        assert await pulled(opened, wait_s=0) == []
    assert await pulled(opened) == [(3, 2)]


async def test_no_more_messages_than_credits_are_sent(opened: Door) -> None:
    await subscription(opened.calls, mode="shared")
    await publish(opened.calls, *range(10))
    stream = await subscribed(opened.calls, credits=0)
    assert (await answer(stream, credit={"messages": 3})).credits == 3
    assert values(await delivered(stream, 3)) == [0, 1, 2]
    assert (await answer(stream, ack={"ids": ["0-0", "0-1", "0-2"]})).acked == 3
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(reading := asyncio.ensure_future(stream.read())), 0.3)
    await stream.write(asked(credit={"messages": 1_000_000}))
    assert (await reading).credited.credits == 1_000_000
    assert values(await delivered(stream, 7)) == list(range(3, 10))
    for wrong, told in (
        (2**63 - 1, "9223372036854775807"),
        (-(2**63), "credit"),
        (0, "credit"),
        (1_000_000, "999993 credits; with 1000000 more, it would have more than 1000000"),
    ):
        refusal = await answer(stream, credit={"messages": wrong})
        assert (refusal.code, refusal.reason) == (3, "INVALID_REQUEST")
        assert told in refusal.message or told in str(refusal.metadata), refusal
    assert (await answer(stream, credit={"messages": 7})).credits == 1_000_000


START: dict[str, Any] = {"topic": "t", "subscription": "s"}
WRONG: list[tuple[Any, str, str]] = [
    (asked(), "INVALID_ARGUMENT", "the first message of the stream must set the field `start`"),
    (asked(ack={"ids": ["0-0"]}), "INVALID_ARGUMENT", "the first message of the stream must set the field `start`"),
    (asked(start={**START, "topic": "none"}), "NOT_FOUND", "none"),
    (asked(start={**START, "subscription": "none"}), "NOT_FOUND", "none"),
    (asked(start={**START, "subscription": "a/b"}), "INVALID_ARGUMENT", "a/b"),
    (asked(start={**START, "consumer": ""}), "INVALID_ARGUMENT", "must have 1 to 255 characters, not 0"),
    (asked(start={**START, "max_in_flight": 0}), "INVALID_ARGUMENT", "from 1 to 1000000"),
    (asked(start={**START, "credits": 2**63 - 1}), "INVALID_ARGUMENT", "from 0 to 1000000"),
    (asked(start={**START, "credits": -1}), "INVALID_ARGUMENT", "from 0 to 1000000"),
]


async def test_a_stream_that_cannot_begin_says_why(opened: Door) -> None:
    await subscription(opened.calls)
    for first, code, text in WRONG:
        stream = opened.calls.Subscribe()
        await stream.write(first)
        found, told, _ = await refused(stream.read())
        assert found == code, (first, told)
        assert text in told
    assert (await refused(opened.calls.Subscribe(timeout=0.3).read()))[0] == "DEADLINE_EXCEEDED"


async def test_what_is_no_message_ends_the_stream_and_says_why(opened: Door) -> None:
    await subscription(opened.calls)
    for said, told in (
        (asked(start=START), "must set ack, nack, extend or credit, not start"),
        (asked(), "must set ack, nack, extend or credit, not None"),
        (asked(nack={"ids": ["0-0"], "delay_s": float("nan")}), "nack.delay_s must be a finite number, not nan"),
        (b"\xff\xff", "the message is not a seaweedq.v1.SubscribeRequest"),
        (asked(ack={"ids": ["0-0"] * 300_000}), "at most 1048576"),
        (asked(ack={"ids": [""] * 500_000}), ""),
    ):
        stream = opened.calls.channel.stream_stream(SUBSCRIBE)()
        await stream.write(asked(start=START).SerializeToString())
        await stream.initial_metadata()
        await stream.write(said if isinstance(said, bytes) else said.SerializeToString())
        if told:
            code, text, _ = await refused(stream.read())
            assert (code, told in text) == ("INVALID_ARGUMENT", True), text
        else:
            refusal = pb.SubscribeResponse.FromString(await stream.read()).refusal
            assert "100000" in refusal.message
            stream.cancel()
    assert (opened.broker.budget.held, opened.broker.budget.decoding) == (0, 0)


async def test_ten_thousand_acks_of_unknown_ids_harm_nobody(opened: Door) -> None:
    await subscription(opened.calls, mode="shared")
    await publish(opened.calls, 0)
    stream = await subscribed(opened.calls)
    await delivered(stream, 1)

    async def send() -> None:
        for at in range(200):
            await stream.write(asked(ack={"ids": [f"{n}-{at}" for n in range(1, 51)]}))
        await stream.write(asked(ack={"ids": ["0-0"]}))

    sending = asyncio.create_task(send())
    answers = [(await stream.read()).acked for _ in range(201)]
    await sending
    assert all((one.acked, len(one.unknown)) == (0, 50) for one in answers[:-1])
    assert answers[-1] == pb.Acked(acked=1)


async def test_a_stream_ends_with_its_subscription_and_its_topic(opened: Door) -> None:
    for end in ("DeleteSubscription", "DeleteTopic"):
        await opened.calls.CreateTopic(topic="t")
        await subscription(opened.calls)
        stream = await subscribed(opened.calls)
        await getattr(opened.calls, end)(topic="t", **({"subscription": "s"} if "Sub" in end else {}))
        assert (await refused(stream.read()))[0] in ("NOT_FOUND", "ABORTED")


async def test_a_stream_ends_with_the_right_to_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(admin := draw(SystemIds()))
    async with door(tmp_path / "data", auth="required", admin_token_file=str(tmp_path / "token")) as opened:
        by_admin = opened.bearing(admin)
        await by_admin.CreateTopic(topic="t")
        await subscription(by_admin)
        assert (await refused(opened.calls.Subscribe().read()))[0] == "UNAUTHENTICATED"
        async with httpx.AsyncClient(
            base_url=opened.served.url, headers={"authorization": f"Bearer {admin}"}, timeout=30
        ) as http:
            grants = [{"actions": ["consume"], "topics": ["t"]}]
            assert (await http.put("/v1/principals/app", json={"grants": grants})).status_code == 201

            async def issued(**more: Any) -> Any:
                return (await http.post("/v1/tokens", json={"principal": "app", **more})).json()

            first = await issued()
            revoked = await subscribed(opened.bearing(first["token"]))
            assert (await http.delete(f"/v1/tokens/{first['id']}")).status_code == 204
            assert (await refused(revoked.read()))[0] == "UNAUTHENTICATED"
            expiring = await subscribed(opened.bearing((await issued(expires_s=1))["token"]))
            assert (await refused(expiring.read()))[0] == "UNAUTHENTICATED"
            taken = await subscribed(opened.bearing((await issued())["token"]))
            grants[0]["actions"] = ["publish"]
            assert (await http.put("/v1/principals/app", json={"grants": grants})).status_code == 200
            assert (await refused(taken.read()))[0] == "PERMISSION_DENIED"
            stranger = opened.bearing((await issued())["token"]).Subscribe()
            await stranger.write(asked(start=START))
            assert (await refused(stranger.read()))[0] == "PERMISSION_DENIED"


async def test_a_broker_that_leaves_answers_first_and_says_when_to_come(
    opened: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    from seaweedq.api.handlers.acks import Acks

    await subscription(opened.calls, mode="shared")
    await publish(opened.calls, 0, 1)
    stream = await subscribed(opened.calls)
    await delivered(stream, 2)
    ack, is_asked, may_go_on = Acks.answer, asyncio.Event(), asyncio.Event()

    async def slow(self: Acks, *request: Any) -> Any:
        is_asked.set()
        await may_go_on.wait()
        return await ack(self, *request)

    monkeypatch.setattr(Acks, "answer", slow)
    for at in range(2):
        await stream.write(asked(ack={"ids": [f"0-{at}"]}))
    await is_asked.wait()
    opened.served.stop.ask()
    await opened.broker.streaming.watches.ended.wait()
    may_go_on.set()
    async with asyncio.timeout(30):
        assert (await stream.read()).acked == pb.Acked(acked=1)
        code, text, details = await refused(stream.read())
        await opened.served.ended
    assert (code, details["ErrorInfo"].reason) == ("UNAVAILABLE", "NOT_READY")
    assert (details["RetryInfo"].retry_delay.seconds, "connect again" in text) == (1, True)


async def test_a_stream_that_nobody_reads_holds_little_and_ends(tmp_path: Path) -> None:
    async with door(tmp_path, answer_timeout_s=0.5) as opened:
        await opened.calls.CreateTopic(topic="t")
        await subscription(opened.calls, mode="shared", ack_deadline_s=600)
        for _ in range(8):
            await publish(opened.calls, "x" * 900_000)
        request = asked(start=START).SerializeToString()
        budget, most = opened.broker.budget, 0
        with half_call(opened.target, SUBSCRIBE, request):
            async with asyncio.timeout(30):
                while not budget.answers:
                    await asyncio.sleep(0.01)
                while "unread_answer" not in await refusals_of(opened):
                    most = max(most, budget.answers)
                    await asyncio.sleep(0.01)
            assert most < 3_000_000
            assert len(await pulled(opened)) == 8, "its leases have ended"
        async with asyncio.timeout(30):
            while budget.answers:
                await asyncio.sleep(0.01)


async def test_a_slow_consumer_is_told_to_subscribe_again(tmp_path: Path) -> None:
    async with door(tmp_path, answer_timeout_s=3) as opened:
        await opened.calls.CreateTopic(topic="t")
        await subscription(opened.calls, mode="shared")
        for _ in range(8):
            await publish(opened.calls, "x" * 900_000)
        stream = await subscribed(opened.calls)
        async with asyncio.timeout(30):
            while "unread_answer" not in await refusals_of(opened):
                await asyncio.sleep(0.01)
            code, text, _ = await refused(delivered(stream, 100))
        assert (code, "send each ack without an answer again" in text) == ("UNAVAILABLE", True)
        assert opened.broker.budget.answers == 0


async def test_a_half_closed_stream_that_nobody_reads_counts(tmp_path: Path) -> None:
    async with door(tmp_path, answer_timeout_s=2.5) as opened:
        await opened.calls.CreateTopic(topic="t")
        await subscription(opened.calls, mode="shared")
        await publish(opened.calls, "x" * 900_000)
        budget = opened.broker.budget
        with half_call(opened.target, SUBSCRIBE, asked(start=START).SerializeToString()) as wire:
            async with asyncio.timeout(30):
                while not budget.answers:
                    await asyncio.sleep(0.01)
            wire.sendall(frame(0, 1, 1, b""))
            await asyncio.sleep(0.3)
            assert budget.answers > 800_000, "gRPC has the message until the connection ends"
        async with asyncio.timeout(30):
            while budget.answers:
                await asyncio.sleep(0.01)


async def test_messages_in_part_hold_memory_and_end_with_it(tmp_path: Path) -> None:
    largest = 16 * 2**20
    async with door(tmp_path, max_request_bytes=largest, memory_budget_bytes=4 * largest) as opened:
        budget = opened.broker.budget
        flood = await Flood.open(opened.target, SUBSCRIBE, 60, largest)
        running = asyncio.create_task(flood.run())
        async with asyncio.timeout(20):
            await running
        assert "bodies" in await refusals_of(opened)
        async with asyncio.timeout(15):
            while budget.incomplete:
                await asyncio.sleep(0.01)


async def test_streams_of_a_client_that_goes_leave_nothing(opened: Door) -> None:
    await subscription(opened.calls, mode="shared")
    before = len(asyncio.all_tasks())
    streams = [await subscribed(opened.calls) for _ in range(20)]
    for stream in streams:
        stream.cancel()
    async with asyncio.timeout(15):
        while len(asyncio.all_tasks()) > before + 2:
            await asyncio.sleep(0.01)


async def consumed(targets: Sequence[str], total: int, kill: Any, credits: int | None = None) -> dict[int, int]:
    """How often each value was seen by a client that goes on at the next target, sends again each ack without an
    answer, and stops once all were acked. `kill` is called when a third were."""
    seen: dict[int, int] = {}
    acked: set[str] = set()
    options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200)]
    turn = 0
    unanswered: list[list[str]] = []
    async with asyncio.timeout(60):
        while len(acked) < total:
            turn += 1
            async with grpc.aio.insecure_channel(targets[turn % len(targets)], options=options) as channel:
                stream = Calls(channel).Subscribe(timeout=30)
                with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await stream.write(asked(start={**START, "consumer": "c", "max_in_flight": 20}))
                    for ids in unanswered:
                        await stream.write(asked(ack={"ids": ids}))
                    while len(acked) < total:
                        part = await stream.read()
                        if part is grpc.aio.EOF:
                            break
                        if part.WhichOneof("response") == "acked":
                            assert not part.acked.unknown
                            acked.update(unanswered.pop(0))
                            if kill and len(acked) > total // 3:
                                kill, killing = None, kill
                                killing()
                        elif messages := part.delivery.messages:
                            for one in values(messages):
                                seen[one] = seen.get(one, 0) + 1
                            unanswered.append([one.id for one in messages])
                            await stream.write(asked(ack={"ids": unanswered[-1]}))
                await asyncio.sleep(0.05)
    return seen


@pytest.mark.process
async def test_a_killed_broker_loses_no_message_and_no_ack(broker_process: Any) -> None:
    port = free_port()
    broker = broker_process("--grpc-port", str(port))

    def kill() -> None:
        broker.kill()
        broker.start()

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        calls = Calls(channel)
        await calls.CreateTopic(topic="t")
        await subscription(calls, mode="ordered")
        for at in range(0, 300, 10):
            await publish(calls, *range(at, at + 10))
    seen = await consumed([f"127.0.0.1:{port}"], 300, kill)
    assert sorted(seen) == list(range(300))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        lag = (await Calls(channel).GetSubscription(topic="t", subscription="s")).subscription.lag_total
    assert (lag.messages, max(seen.values()) <= 2) == (0, True)


@pytest.mark.process
@pytest.mark.long
async def test_a_client_goes_on_at_another_broker(broker_process: Any) -> None:
    first = free_ports(2)
    broker = broker_process("--brokers", "2", "--grpc-port", str(first), port=free_ports(2))
    targets = [f"127.0.0.1:{first}", f"127.0.0.1:{first + 1}"]
    async with httpx.AsyncClient(base_url=broker.url, timeout=30) as http, asyncio.timeout(60):
        while len((await http.get("/v1/cluster")).json()["brokers"]) < 2:
            await asyncio.sleep(0.1)
        async with grpc.aio.insecure_channel(targets[0]) as channel:
            calls = Calls(channel)
            await calls.CreateTopic(topic="t")
            await subscription(calls, mode="shared")
            for at in range(0, 300, 10):
                await publish(calls, *range(at, at + 10))
        seen = await consumed(targets, 300, None)
        assert sorted(seen) == list(range(300))

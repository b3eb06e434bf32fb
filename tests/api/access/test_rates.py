"""Rates of principals: what is over them is refused before its body is read, and costs others nothing."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from seaweedq.access.limits import SWEEP_AT, Account, Accounts, Limits
from seaweedq.access.rights import ANONYMOUS, Caller
from seaweedq.api.access import rates as module
from seaweedq.api.access.rates import Meter, Rates
from seaweedq.api.request import Connection, Request, release_connection
from seaweedq.api.routes import SOCKET
from seaweedq.errors import RateLimited
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import until
from tests.support.http.requests import matched, request_of
from tests.support.http.with_tokens import EVERYTHING, Http, access

ONE = {"value": 1}
LARGEST = 1_000_000  # bytes of a body


@pytest.mark.brokers
async def test_a_principal_over_its_rate_gets_429_and_another_is_served(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        await http.principal("slow", EVERYTHING, limits={"requests": 0.01})
        await http.principal("free", EVERYTHING)
        slow, free = await http.token(principal="slow"), await http.token(principal="free")
        answers = [await http("GET", "/v1/topics", slow) for _ in range(8)]
        refused = [one for one in answers if one.status_code == 429]
        assert answers[0].status_code == 200
        assert refused
        found = refused[0].json()
        assert found["type"] == "/problems/rate-limited"
        assert (found["limit"], found["rate"]) == ("requests", 0.01)
        assert found["retry_after_s"] > 0
        assert refused[0].headers["retry-after"] == "60"
        assert refused[0].headers["ratelimit"].startswith('"requests";r=0;t=')
        assert (await http("GET", "/v1/topics", free)).status_code == 200
        assert (await http("GET", "/v1/topics", http.admin)).status_code == 200


@pytest.mark.brokers
async def test_a_rate_that_is_nearly_nothing_is_refused_with_the_lowest_one(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        for path, limits in (("/v1/principals/p", {"requests": 1e-320}), ("/v1/topics/t", {"bytes_in": 0.009})):
            answer = await http("PUT", path, http.admin, json={"limits": limits})
            assert answer.status_code == 422
            assert "at least 0.01" in answer.json()["detail"]


@pytest.mark.brokers
async def test_a_body_larger_than_the_burst_is_taken_once_and_then_paid_for(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        await http.principal("slow", EVERYTHING, limits={"bytes_in": 100})
        token = await http.token(principal="slow")

        async def chunks() -> Any:
            yield b'{"value": "' + b"x" * 50_000 + b'"}'

        kind = {"content-type": "application/json"}
        sent = await http("POST", "/v1/topics/t/messages", token, content=chunks(), headers=kind)
        assert sent.status_code == 200, "its length is not known before it has come"
        more = await http("POST", "/v1/topics/t/messages", token, json=ONE)
        assert more.status_code == 429
        assert more.json()["retry_after_s"] > 10
        assert (await http("GET", "/v1/topics/t", token)).status_code == 200, "it has no body"


class Still:
    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s


def asked(method: str = "GET", length: int | None = None) -> Request:
    headers = [] if length is None else [(b"content-length", b"%d" % length)]
    path = "/v1/topics" if method == "GET" else "/v1/topics/t/messages"
    return matched(request_of(method, path, *headers))


class Known:
    """As Callers and their view: which principals there are, and their limits."""

    def __init__(self) -> None:
        self.view = self
        self.principals: dict[str | None, Caller] = {}

    def limits(self, name: str | None, uid: str | None) -> Limits | None:
        found = self.principals.get(uid)
        return found.limits if found else None


class Local:
    """The limits at one broker of some."""

    def __init__(self, clock: "Still", brokers: int = 1) -> None:
        self.accounts = Accounts(clock.now_s)
        self.accounts.set_brokers(brokers)
        self.known = Known()
        self.rates = Rates(clock, self.accounts, self.known, self, LARGEST)  # type: ignore[arg-type]
        self.limited: dict[str, Any] = {}

    def admit(self, caller: Caller, given: Request) -> None:
        self.known.principals[caller.uid] = given.caller = caller
        self.rates.admit(given)


def principal(uid: str, **limits: Any) -> Caller:
    return Caller("p", limits=Limits(**limits), uid=uid)


def let_in(rates: Local, caller: Caller, given: Request) -> bool:
    try:
        rates.admit(caller, given)
    except RateLimited:
        return False
    return True


def test_each_broker_lets_in_an_even_share_and_a_refusal_costs_no_other() -> None:
    clock = Still()
    rates = Local(clock, 4)
    caller = principal("u", requests=40, bytes_in=4000)
    assert sum(let_in(rates, caller, asked()) for _ in range(50)) == 11, "10, and one into debt"
    clock.now_s = 10
    assert let_in(rates, caller, asked("POST", 100_000))
    clock.now_s = 11
    assert not any(let_in(rates, caller, asked("POST", 1)) for _ in range(50))
    assert sum(let_in(rates, caller, asked()) for _ in range(50)) == 11, "those refused for their bytes took none"
    rates.accounts.set_brokers(1)
    assert not let_in(rates, caller, asked()), "the share is larger from now on"
    clock.now_s = 13
    assert sum(let_in(rates, caller, asked()) for _ in range(100)) == 41


def test_a_body_that_nobody_reads_costs_at_most_the_largest_that_comes() -> None:
    """A stated length is only a claim: by one header a topic, or all who are anonymous, would be in debt for years."""
    clock = Still()
    rates = Local(clock)
    caller = principal("u", bytes_in=LARGEST)
    assert let_in(rates, caller, asked("POST", 10**15))
    assert let_in(rates, caller, asked("POST", 10**15)), "nothing is owed"
    assert not let_in(rates, caller, asked("POST", 1))
    clock.now_s = 1
    assert let_in(rates, caller, asked("POST", 1))


def test_a_caller_without_limits_and_an_anonymous_one_are_let_in() -> None:
    rates = Local(Still())
    assert all(let_in(rates, caller, asked()) for caller in (ANONYMOUS, Caller("p")) for _ in range(1000))


def test_a_namesake_of_a_principal_that_was_deleted_inherits_no_debt() -> None:
    rates = Local(Still())
    old, new = principal("u1", requests=0.2), principal("u2", requests=0.2)
    assert sum(let_in(rates, old, asked()) for _ in range(9)) == 2
    assert sum(let_in(rates, new, asked()) for _ in range(9)) == 2


def test_a_limit_that_changes_counts_at_once_and_a_debt_stays() -> None:
    clock = Still()
    rates = Local(clock)
    assert sum(let_in(rates, principal("u", requests=0.2), asked()) for _ in range(9)) == 2
    assert not let_in(rates, principal("u", requests=100), asked())
    clock.now_s = 1
    assert sum(let_in(rates, principal("u", requests=100), asked()) for _ in range(200)) == 100


def test_a_changed_limit_counts_for_kinds_of_requests_that_came_before() -> None:
    """What a kind of request asks is looked up once."""
    rates = Local(Still())
    publish = [let_in(rates, principal("u", requests=100), asked("POST", 500)) for _ in range(3)]
    bounded = [let_in(rates, principal("u", requests=100, bytes_in=100), asked("POST", 500)) for _ in range(3)]
    others = [let_in(rates, principal("u", requests=100, bytes_in=100), asked()) for _ in range(3)]
    lifted = [let_in(rates, principal("u", requests=100), asked("POST", 500)) for _ in range(3)]
    again = [let_in(rates, principal("u", requests=100, bytes_in=100), asked("POST", 500)) for _ in range(3)]
    assert (publish, bounded, others) == ([True] * 3, [True, False, False], [True] * 3)
    assert (lifted, again) == ([True] * 3, [True, False, False]), "its debt ended with the limit"


def test_what_was_counted_of_principals_that_are_no_more_is_forgotten() -> None:
    rates = Local(Still())
    for number in range(SWEEP_AT + 1):
        assert let_in(rates, principal(f"p{number}", requests=1), asked())
    assert len(rates.accounts) == SWEEP_AT + 1
    rates.known.principals = {"p1": rates.known.principals["p1"]}
    for number in range(SWEEP_AT):
        let_in(rates, principal(f"q{number}", requests=1), asked())
        del rates.known.principals[f"q{number}"]
    assert len(rates.accounts) == 2, "p1, and the newest"


async def publish(http: Http, token: str, count: int, topic: str = "t") -> httpx.Response:
    content = {"messages": [{"value": number} for number in range(count)]}
    return await http("POST", f"/v1/topics/{topic}/messages", token, json=content)


def test_a_request_counts_to_its_topic_at_the_broker_a_client_sent_it_to() -> None:
    rates = Local(Still())
    record = SimpleNamespace(config=SimpleNamespace(limits=Limits(requests=0.2)), incarnation=1)
    rates.limited = {"t": SimpleNamespace(name="t", record=record)}
    relayed = asked("POST", 1)
    relayed.is_relayed = True
    assert all(let_in(rates, ANONYMOUS, relayed) for _ in range(20))
    assert sum(let_in(rates, ANONYMOUS, asked("POST", 1)) for _ in range(20)) == 2


def test_the_account_of_what_is_under_way_is_kept() -> None:
    """Else limits that a topic loses and gets again would let in as many pulls once more."""
    accounts = Accounts(0.0)
    kept = accounts.open("t/1", Limits(waiting_pulls=1), lambda: None, 0.0)
    kept.waiting = 1
    for number in range(2 * SWEEP_AT):
        accounts.open(f"u{number}", Limits(requests=1), lambda: None, 0.0)
    assert accounts.get("t/1", Limits(waiting_pulls=1), 0.0) is kept


async def test_one_that_waits_to_pay_goes_by_a_limit_raised_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Still()
    rates = Local(clock)
    rates.admit(principal("u", bytes_out=1), given := asked())
    assert given.meter is not None
    given.meter.spend("bytes_out", 1000)
    slept: list[float] = []

    async def sleep(wait_s: float) -> None:
        slept.append(wait_s)
        clock.now_s += 1
        rates.known.principals["u"] = principal("u", bytes_out=1000)

    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep))  # loops of other threads sleep, too
    assert isinstance(given.meter, Meter)
    await given.meter.paid("bytes_out")
    assert len(slept) <= 3, slept


@pytest.mark.brokers
async def test_messages_are_paid_for_by_the_next_publish(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        await http.principal("slow", EVERYTHING, limits={"messages": 2})
        token = await http.token(principal="slow")
        assert (await publish(http, token, 500)).status_code == 200, "it is not known before it is read"
        refused = await publish(http, token, 1)
        assert refused.status_code == 429
        assert refused.json()["limit"] == "messages"
        assert refused.json()["retry_after_s"] > 30
        assert await http.status("GET", "/v1/topics/t", token) == 200, "it publishes nothing"


@pytest.mark.brokers
async def test_a_change_costs_as_many_as_the_segments_that_it_touches(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        grants = [{"actions": ["create", "delete", "publish", "subscribe", "describe"], "topics": ["*"]}]
        await http.principal("slow", grants, limits={"changes": 0.5})
        await http.principal("other", grants, limits={"changes": 1})
        slow, other = await http.token(principal="slow"), await http.token(principal="other")
        assert await http.status("PUT", "/v1/topics/a", slow, json={"initial_segments": 32}) == 201
        for method, path in (("PUT", "b"), ("DELETE", "a"), ("PUT", "a/subscriptions/s")):
            refused = await http(method, f"/v1/topics/{path}", slow)
            assert (refused.status_code, refused.json()["limit"]) == (429, "changes")
            assert refused.json()["retry_after_s"] > 30
        assert (await publish(http, slow, 1, "a")).status_code == 200, "a publish changes nothing"
        assert (await publish(http, slow, 1, "new")).status_code == 429, "but where it creates a topic"
        assert await http.status("GET", "/v1/topics/new", http.admin) == 404
        assert await http.status("DELETE", "/v1/topics/a", other) == 204
        assert await http.status("PUT", "/v1/topics/b", other) == 429, "all segments of the topic were deleted"


@pytest.mark.brokers
async def test_the_next_read_pays_for_bytes_of_answers_and_acks_never_wait(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        await http.principal("slow", EVERYTHING, limits={"bytes_out": 100})
        token = await http.token(principal="slow")
        assert (await publish(http, http.admin, 1000)).status_code == 200
        assert await http.status("PUT", "/v1/topics/t/subscriptions/s", http.admin, json={"start": "earliest"}) == 201
        pull = "/v1/topics/t/subscriptions/s/pull"
        pulled = await http("POST", pull, token, json={"max_messages": 1000, "wait_s": 5})
        messages = pulled.json()["messages"]
        assert messages
        refused = await http("POST", pull, token, json={})
        assert (refused.status_code, refused.json()["limit"]) == (429, "bytes_out")
        assert await http.status("GET", "/v1/topics", token) == 429
        acked = {"ids": [one["id"] for one in messages]}
        assert await http.status("POST", "/v1/topics/t/subscriptions/s/ack", token, json=acked) == 200
        assert (await publish(http, token, 1)).status_code == 200


@pytest.mark.brokers
async def test_waiting_pulls_have_places_and_each_broker_gives_at_least_one(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        await http.principal("slow", EVERYTHING, limits={"waiting_pulls": 1})
        token = await http.token(principal="slow")
        assert (await publish(http, http.admin, 1)).status_code == 200
        assert await http.status("PUT", "/v1/topics/t/subscriptions/s", http.admin) == 201
        pull, wait = "/v1/topics/t/subscriptions/s/pull", {"wait_s": 20}
        first = asyncio.create_task(http("POST", pull, token, json=wait))
        await until(lambda: first.done() or waits(http))
        refused = await http("POST", pull, token, json=wait)
        assert (refused.status_code, refused.json()["limit"], refused.json()["rate"]) == (429, "waiting_pulls", 1)
        assert (await http("POST", pull, token, json={})).status_code == 200, "it does not wait"
        first.cancel()
        await asyncio.wait([first])
        last = await http("POST", pull, token, json={"wait_s": 0.01})
        assert last.status_code == 200, "the place is free again"


def waits(http: Http) -> bool:
    return any(account.waiting for account in inside.accounts(http.together.brokers[0]))


async def test_parts_and_frames_of_a_socket_wait_until_they_are_paid_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, slept = Still(), []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.now_s += seconds

    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep))
    given = matched(request_of(SOCKET, "/v1/topics/t/stream"))

    async def receive() -> Any:
        return {"type": "websocket.receive", "text": "{}"}

    given.receive = receive
    Local(clock, 2).admit(principal("u", bytes_out=200, requests=4), given)
    assert given.meter is not None
    send = given.meter.sent
    await send({"type": "http.response.body", "body": b"x" * 400, "more_body": True})
    assert sum(slept) == 3.0, "100 were there, 100 come a second"
    await send({"type": "websocket.send", "text": "x" * 100})
    assert sum(slept) == 4.0
    await send({"type": "http.response.body", "body": b"x" * 500})
    assert sum(slept) == 4.0, "nothing comes behind it"
    slept.clear()
    hear = given.receive
    for _ in range(10):
        assert (await hear())["text"] == "{}"
    assert sum(slept) == pytest.approx(2), "2 a second, 5 at once, and one into debt"


class Line:
    """A connection, as the server has it."""

    account: Account | None = None

    async def drained(self) -> None: ...
    def abort(self) -> None: ...
    def stay(self) -> None: ...
    def go(self) -> None: ...
    def exempt(self) -> None: ...


def asked_on(line: Connection) -> Request:
    request = asked()
    request.connection = line
    return request


def test_connections_are_shared_evenly_and_belong_to_who_has_spoken_last() -> None:
    rates, lines = Local(Still(), 2), [Line() for _ in range(4)]
    one, other = principal("u1", connections=5), principal("u2", connections=1)

    assert [let_in(rates, one, asked_on(line)) for line in lines] == [True, True, False, False]
    assert let_in(rates, one, asked_on(lines[0])), "it has a place"
    assert let_in(rates, other, asked_on(lines[0])), "the first broker's share is at least one"
    assert let_in(rates, one, asked_on(lines[2])), "one of its connections is another principal's now"
    assert not let_in(rates, other, asked_on(lines[3]))
    release_connection(lines[0])
    assert let_in(rates, other, asked_on(lines[3]))


def test_a_connection_that_has_no_place_costs_nothing_else() -> None:
    rates, lines = Local(Still()), [Line(), Line()]
    caller = principal("u", requests=2, connections=1)
    assert let_in(rates, caller, asked_on(lines[0]))
    for _ in range(50):
        assert not let_in(rates, caller, asked_on(lines[1]))
    assert let_in(rates, caller, asked_on(lines[0]))


@pytest.mark.brokers
async def test_open_uploads_have_places_and_those_ended_elsewhere_free_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with access(tmp_path, 2) as http:
        await http.principal("p", EVERYTHING, limits={"open_uploads": 4})
        token, path = await http.token(principal="p"), "/v1/topics/t/uploads"
        assert (await publish(http, token, 1)).status_code == 200
        made = [await http("POST", path, token, json={"size": 1}) for _ in range(4)]
        assert [one.status_code for one in made] == [201, 201, 429, 429]
        assert made[2].json()["limit"] == "open_uploads"
        assert await http.status("POST", path, token, 1, json={"size": 1}) == 201, "the other broker has its own share"
        assert await http.status("DELETE", f"{path}/{made[0].json()['upload_id']}", token, 1) == 204
        monkeypatch.setattr("seaweedq.api.access.rates.RETRY_S", 0.0)
        assert [await http.status("POST", path, token, json={"size": 1}) for _ in range(2)] == [201, 429]


@pytest.mark.brokers
async def test_default_limits_are_for_all_without_their_own_each_for_itself(
    tmp_path: Path,
) -> None:
    async with access(tmp_path, auth="none") as http:
        await http.principal("*", [], limits={"requests": 0.01})
        await http.principal("large", EVERYTHING, limits={"requests": 1000, "messages": 5})
        for name in ("one", "two"):
            await http.principal(name, EVERYTHING, limits={"messages": 5})
        tokens = [await http.token(principal=name) for name in ("one", "two", "large")]
        ask = [*tokens, None, http.admin]
        found = [[await http.status("GET", "/v1/topics", one) for _ in range(9)].count(429) > 0 for one in ask]
        assert found == [True, True, False, True, False]
        assert await http.status("PUT", "/v1/principals/*", http.admin, json={"grants": EVERYTHING}) == 422
        assert await http.status("PUT", "/v1/principals/*", http.admin, json={"disabled": True}) == 422
        assert await http.status("POST", "/v1/tokens", http.admin, json={"principal": "*"}) == 422
        assert (await http("GET", "/v1/principals/*", http.admin)).json()["limits"]["requests"] == 0.01
        await http.delete("*")
        assert [await http.status("GET", "/v1/topics", None) for _ in range(9)] == [200] * 9


@pytest.mark.brokers
async def test_a_topics_limits_are_for_all_users_and_count_beside_principals(
    tmp_path: Path,
) -> None:
    async with access(tmp_path, 2) as http:
        grants = [{"actions": ["describe", "create", "alter", "delete", "publish"], "topics": ["*"]}]
        for name in ("a", "b"):
            await http.principal(name, grants, limits={"requests": 1000})
        tokens = [await http.token(principal=name) for name in ("a", "b")]
        assert await http.status("PUT", "/v1/topics/t", tokens[0], json={"limits": {"messages": 0.01}}) == 201
        assert await http.status("PUT", "/v1/topics/t", tokens[0], json={"limits": {"messages": 0.01}}) == 200
        assert await http.status("PUT", "/v1/topics/t", tokens[0], json={"limits": {"messages": 2}}) == 409
        assert (await publish(http, tokens[0], 1)).status_code == 200
        for token in (*tokens, http.admin):
            refused = await publish(http, token, 1)
            assert (refused.status_code, refused.json()["limit"], refused.json()["topic"]) == (429, "messages", "t")
        assert (await publish(http, tokens[1], 1, "other")).status_code == 200
        shown = await http("PATCH", "/v1/topics/t", tokens[1], json={"limits": {"messages": None, "requests": 1000}})
        assert (shown.json()["limits"]["messages"], shown.json()["limits"]["requests"]) == (None, 1000)
        assert (await publish(http, tokens[0], 1)).status_code == 200
        own = [set(one.buckets) for one in inside.accounts(http.together.brokers[0])]
        assert own == [{"requests"}] * 3, "two principals, and the topic"
        await http("PATCH", "/v1/topics/t", tokens[1], json={"limits": {"requests": None}})
        assert not inside.catalog(http.together.brokers[0]).limited
        wrong = await http("PATCH", "/v1/topics/t", tokens[1], json={"limits": {"topics": 1}})
        assert wrong.status_code == 422

"""The audit: who changed what and who was denied what, in the log and in a topic; without secrets, bounded."""

import json
import logging
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from seaweedq.api.access.audit import RequestAudit
from seaweedq.broker.audit import (
    COLUMNS,
    GIVE_UP_S,
    PER_S,
    ROOM,
    ROOM_FOR_DENIALS,
    TOPIC,
    Audit,
    AuditTopic,
    Event,
    config,
    fits,
    line,
    mode_of,
    rows,
    shown,
)
from seaweedq.broker.rpc.peer_sessions import Refusal
from seaweedq.broker.rpc.peer_sessions import refused as refused_peer
from seaweedq.broker.topics.catalog import layout_of
from seaweedq.coordination.records import TopicConfig, TopicRecord
from seaweedq.errors import SeaweedqError, StoreUnavailable, TopicConflict, Unavailable
from seaweedq.segments.layout import Format, Layout
from seaweedq.settings import Settings
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import until
from tests.support.http.requests import request_of
from tests.support.http.with_tokens import EVERYTHING, Http, access, id_of


class StillClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.s = 1000.0

    def now_us(self) -> int:
        return int(self.s * 1e6)

    def monotonic_s(self) -> float:
        return self.s


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """The events that are in the log so far."""
    caplog.set_level("DEBUG")
    return lambda: [json.loads(r.getMessage()) for r in caplog.records if r.name == "seaweedq.audit"]


def an_event(**more: Any) -> Event:
    return Event(**{"time_us": 1_769_860_800_123_456, "kind": "change", "broker": "b", **more})


async def stored(http: Http, count: int) -> list[dict[str, Any]]:
    """The rows of the topic, once there are so many."""
    found: list[dict[str, Any]] = []
    for _ in range(200):
        for broker in http.together.brokers:
            await privates.send_all(inside.audit_topic(broker))()
        topic = inside.catalog(http.together.brokers[0]).get(TOPIC)
        if topic is None:
            continue
        path = f"/v1/topics/{TOPIC}/segments/{topic.record.incarnation}/messages?offset=0&limit=1000"
        answer = await http("GET", path, http.admin)
        found = [one["value"] for one in answer.json()["messages"]] if answer.status_code == 200 else []
        if len(found) >= count:
            break
    assert len(found) == count, found
    return found


@pytest.mark.brokers
async def test_changes_and_denials_are_lines_and_rows(tmp_path: Path, lines: Any) -> None:
    async with access(tmp_path, 2) as http:
        await http.principal("p", [{"actions": ["publish", "describe"], "topics": ["a"]}])
        token = await http.token(principal="p")
        await http("PUT", "/v1/topics/a", http.admin, json={})
        assert await http.status("POST", "/v1/topics/a/messages", token, json={"value": 1}) == 200
        assert await http.status("GET", "/v1/topics/a", token) == 200
        assert await http.status("DELETE", "/v1/topics/a", token) == 403
        assert await http.status("GET", "/v1/topics/a?x=sq1_secret", None) == 401
        assert await http.status("PUT", "/v1/topics/a/subscriptions/s", http.admin, json={"start": "nowhere"}) == 422
        assert await http.status("DELETE", "/v1/topics/none", http.admin) == 404
        assert await http.status("DELETE", f"/v1/tokens/{id_of(token)}", http.admin) == 204
        await http.known(id_of(token), False)
        assert await http.status("GET", "/v1/whoami", token, 1) == 401
        events = [{name: value for name, value in one.items() if name != "time"} for one in lines()]
        here = {"broker": "b0", "address": "127.0.0.1"}
        admin = {"audit": "change", **here, "principal": "admin", "token": "admin-token-file", "identity": "token"}
        denied = {"audit": "denial", **here}
        of_p = {"principal": "p", "token": id_of(token), "identity": "token"}
        topic = {"path": "/v1/topics/a", "topic": "a"}
        sub = {"path": "/v1/topics/a/subscriptions/s", "topic": "a", "subscription": "s"}
        no_token, no_right = {"status": 401, "reason": "unauthenticated"}, {"status": 403, "reason": "forbidden"}
        none = {"path": "/v1/topics/none", "topic": "none"}
        assert events == [
            {**admin, "method": "PUT", "path": "/v1/principals/p", "action": "access", "status": 201},
            {**admin, "method": "POST", "path": "/v1/tokens", "made": id_of(token), "status": 201},
            {**admin, "method": "PUT", **topic, "action": "create", "status": 201},
            {**denied, **of_p, "method": "DELETE", **topic, "action": "delete", **no_right},
            {**denied, "method": "GET", **topic, "action": "describe", **no_token},
            {**admin, "method": "PUT", **sub, "action": "subscribe", "status": 422},
            {**admin, "method": "DELETE", **none, "action": "delete", "status": 404},
            {**admin, "method": "DELETE", "path": f"/v1/tokens/{id_of(token)}", "status": 204},
            {**denied, "broker": "b1", "token": id_of(token), "method": "GET", "path": "/v1/whoami", **no_token},
        ]
        found = await stored(http, len(events))
        as_rows = [{("kind" if n == "audit" else n): v for n, v in one.items()} | {"count": 1} for one in events]
        in_order = [{n: v for n, v in one.items() if v is not None} for one in found]
        assert sorted(map(repr_of, in_order)) == sorted(map(repr_of, as_rows))
        metrics = (await http("GET", "/metrics", http.admin)).text
        assert 'seaweedq_audit_events_total{kind="change"} 6.0' in metrics
        assert 'seaweedq_refusals_total{reason="unauthenticated"} 1.0' in metrics
        assert "seaweedq_audit_lost_total 0.0" in metrics


def repr_of(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))


@pytest.mark.brokers
async def test_a_relayed_change_is_told_once_a_topic_of_a_first_publish_too(tmp_path: Path, lines: Any) -> None:
    async with access(tmp_path, 2) as http:
        for at in (0, 1):
            assert await http.status("POST", "/v1/topics/a/messages", http.admin, at, json={"value": 1}) == 200
            sub = f"/v1/topics/a/subscriptions/s{at}"
            for broker in (0, 1):  # one of them relays
                assert await http.status("PUT", sub, http.admin, broker, json={}) in (200, 201)
        found = [(one["broker"], one["method"], one["action"], one["status"]) for one in lines()]
        created = [("b0", "POST", "create", 201)]
        subscribed = [(broker, "PUT", "subscribe", status) for broker, status in (("b0", 201), ("b1", 200))]
        assert found == created + 2 * subscribed


@pytest.mark.brokers
async def test_limits_are_denials(tmp_path: Path, lines: Any) -> None:
    async with access(tmp_path) as http:
        await http.principal("p", EVERYTHING, limits={"requests": 0.1})
        token = await http.token(principal="p")
        statuses = [await http.status("GET", "/v1/topics", token) for _ in range(4)]
        assert statuses[-1] == 429
        denials = [one for one in lines() if one["audit"] == "denial"]
        assert {(one["principal"], one["status"], one["reason"]) for one in denials} == {("p", 429, "rate-limited")}
        metrics = (await http("GET", "/metrics", http.admin)).text
        waited = next(one for one in metrics.splitlines() if one.startswith("seaweedq_throttled_seconds_total"))
        assert float(waited.split()[1]) > 0


@pytest.mark.brokers
async def test_no_secret_goes_into_the_audit_or_is_repeated(
    tmp_path: Path, lines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with access(tmp_path) as http:
        await http.principal("p", EVERYTHING)
        token = await http.token(principal="p")
        secret = token.split("_")[2]
        for method, path in (
            ("DELETE", f"/v1/tokens/{token}"),
            ("GET", f"/v1/tokens/{token}"),
            ("GET", f"/v1/topics/{token}"),
            ("GET", f"/v1/topics/a?token={token}"),
            ("GET", f"/v1/topics/a/uploads/u/content?expires=1&token={secret}"),
            ("DELETE", f"/v1/principals/{token}"),
        ):
            for by in (None, token, http.admin, token[:-1] + "x"):
                answer = await http(method, path, by)
                assert secret not in answer.text, (method, path)
        await http("PUT", "/v1/principals/p", token, json={"grants": [], "x": secret})
        found = await stored(http, len(lines()))
        assert len(found) > 12
        assert secret not in json.dumps(found) + json.dumps(lines())
        assert http.admin.split("_")[2] not in json.dumps(found) + json.dumps(lines())
        ours = [one.getMessage() for one in caplog.records if one.name.startswith("seaweedq")]
        assert not [one for one in ours if secret in one]


@pytest.mark.brokers
@pytest.mark.parametrize("text", ["of-its-own:-'text',+\\\"more\\\"&all=of-it", "x" * 32])
async def test_an_admins_token_of_any_text_is_hidden_where_it_is_sent_as_a_name(
    tmp_path: Path, lines: Any, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    async with access(tmp_path) as http:
        (tmp_path / "admin").write_text(text)
        privates.admin(inside.callers(http.together.brokers[0])).refresh()
        http.admin = text
        for name in ("tokens/{}", "topics/a{}b", f"topics/{'y' * 190}{{}}", "topics/{}"):
            for by in (None, text):
                path = f"/v1/{name.format(quote(text, safe=''))}"
                assert await http.status("DELETE", path, by) >= 400
        found = await stored(http, len(lines()))
        assert len(found) >= 8
        assert json.dumps(text)[1:-1] not in json.dumps(found) + json.dumps(lines())
        assert "a***b" in json.dumps(lines())
        ours = [one.getMessage() for one in caplog.records if one.name.startswith("seaweedq")]
        assert not [one for one in ours if text in one or json.dumps(text)[1:-1] in one]


@pytest.mark.brokers
async def test_a_topic_that_takes_nothing_holds_nobody_up_and_gets_all_rows_once(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        (broker,) = http.together.brokers
        writer, publish = inside.audit_topic(broker), privates.publisher(inside.audit_topic(broker)).batch
        failing = True

        async def unsure(*arguments: Any) -> Any:
            """Publishes, and loses the answer."""
            if failing:
                await publish(*arguments)
                raise Unavailable("its outcome is unknown")
            return await publish(*arguments)

        privates.publisher(writer).batch = unsure  # type: ignore[method-assign]
        for number in range(5):
            assert await http.status("PUT", f"/v1/topics/t{number}", http.admin, json={}) == 201
            assert not await privates.send_all(writer)()
        failing = False
        found = await stored(http, 5)
        assert [one["topic"] for one in found] == [f"t{number}" for number in range(5)]


@pytest.mark.brokers
async def test_the_topic_is_made_again_and_one_with_other_columns_takes_nothing(tmp_path: Path, lines: Any) -> None:
    async with access(tmp_path) as http:
        await http("PUT", "/v1/topics/a", http.admin, json={})
        await stored(http, 1)
        assert await http.status("DELETE", f"/v1/topics/{TOPIC}", http.admin) in (200, 202, 204)
        await until(lambda: inside.catalog(http.together.brokers[0]).get(TOPIC) is None)
        (found,) = await stored(http, 1)
        assert (found["method"], found["topic"]) == ("DELETE", TOPIC)
        shown_ = (await http("GET", f"/v1/topics/{TOPIC}", http.admin)).json()
        assert [one["name"] for one in shown_["schema"]["fields"]] == [name for _, name, _ in COLUMNS]
        assert shown_["retention"]["max_age_s"] == 90 * 86_400
        assert await http.status("DELETE", f"/v1/topics/{TOPIC}", http.admin) in (200, 202, 204)
        writer = inside.audit_topic(http.together.brokers[0])
        await http("PUT", f"/v1/topics/{TOPIC}", http.admin, json={"format": "json"})
        assert not await privates.send_all(writer)()
        assert (await http("PUT", "/v1/topics/b", http.admin, json={})).status_code == 201


@pytest.mark.brokers
async def test_who_may_read_the_audit(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        await http.principal("p", [{"actions": ["read", "describe", "publish"], "topics": ["*"]}])
        await http.principal("auditor", [{"actions": ["read", "describe"], "topics": [TOPIC]}])
        token, auditor = await http.token(principal="p"), await http.token(principal="auditor")
        await stored(http, 4)
        read = f"/v1/topics/{TOPIC}/segments/0/messages?offset=0"
        assert [await http.status("GET", read, one) for one in (token, auditor)] == [403, 200]
        for one in (token, auditor):
            assert await http.status("POST", f"/v1/topics/{TOPIC}/messages", one, json={"value": {}}) == 403


@pytest.mark.brokers
async def test_a_stop_sends_what_is_left(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        (broker,) = http.together.brokers
        await http("PUT", "/v1/topics/a", http.admin, json={})
        assert len(inside.audit(broker)) == 1
        await broker.stop()
        assert not len(inside.audit(broker))
        assert inside.audit(broker).lost == 0
        names = await http.together.store.list(f"topics/{TOPIC}/", limit=100)
        assert any(name.endswith(".parquet") for name in names), names


@pytest.mark.brokers
async def test_nothing_where_it_is_off(tmp_path: Path, lines: Any) -> None:
    async with access(tmp_path, auth="none") as http:
        await http("PUT", "/v1/topics/a", None, json={})
        assert await http.status("GET", "/v1/topics/a", "sq1_wrong") == 401
        assert not lines()
        assert not inside.audit(http.together.brokers[0]).counts["denial"]


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ({}, "none"),
        ({"auth": "none"}, "none"),
        ({"auth": "required"}, "topic"),
        ({"auth": "required", "audit": "log"}, "log"),
        ({"auth": "required", "audit": "none"}, "none"),
        ({"audit": "topic"}, "topic"),
    ],
)
def test_where_it_goes(given: dict[str, Any], mode: str) -> None:
    assert mode_of(Settings(**given)) == mode


@pytest.mark.parametrize(
    ("reason", "told"),
    [(Refusal.PORT, 1), (Refusal.MAC, 1), (Refusal.SESSION, 0), (Refusal.LATE, 0)],
)
def test_a_false_broker_is_told_of_and_restarts_are_not(reason: Refusal, told: int, lines: Any) -> None:
    request_audit = RequestAudit(Audit("log", "b", StillClock()), lambda _: "10.0.0.9", str)
    request_audit.denied(request_of("GET", "/internal/x"), refused_peer(reason, "no"))
    assert [one["reason"] for one in lines()] == ["peer-refused"] * told


def test_denials_beyond_ten_a_second_are_counted(lines: Any) -> None:
    clock = StillClock()
    audit = Audit("topic", "b", clock)

    def deny(known: bool, count: int, reason: str) -> None:
        for _ in range(count):
            if audit.has_room(known, reason, 401):
                audit.add_denial(an_event(kind="denial", reason=reason, status=401))

    deny(False, 1000, "unauthenticated")
    deny(False, 5, "other")
    deny(True, PER_S, "forbidden")  # strangers hide nobody
    assert len(audit) == 2 * PER_S
    clock.s += 1
    audit.end_second()
    more = {(one["reason"], one["count"]) for one in lines() if one["audit"] == "denials"}
    assert more == {("unauthenticated", 1000 - PER_S), ("other", 5)}
    deny(False, PER_S, "unauthenticated")
    assert len(audit) == 3 * PER_S + 2
    assert (audit.counts["denial"], audit.lost) == (1000 + 5 + 2 * PER_S, 0)


def test_the_queue_is_bounded_and_denials_leave_room_for_changes() -> None:
    audit = Audit("topic", "b", StillClock())
    for _ in range(ROOM_FOR_DENIALS + 7):
        audit.add_denial(an_event())
    assert (len(audit), audit.lost) == (ROOM_FOR_DENIALS, 7)
    for _ in range(ROOM):
        audit.add_change(an_event())
    assert (len(audit), audit.lost) == (ROOM, 7 + ROOM_FOR_DENIALS)
    assert len(audit.pop(10)) == 10
    assert len(audit) == ROOM - 10


def test_what_is_shown_of_texts() -> None:
    token = f"sq1_{'a' * 16}_{'b' * 64}_{'c' * 8}"
    assert shown(f"/v1/tokens/{token}/x") == f"/v1/tokens/sq1_{'a' * 16}_***/x"
    assert shown("x" * 150 + token) == ("x" * 150 + f"sq1_{'a' * 16}_***")
    assert "b" not in shown("x" * 390 + token)
    assert len(shown("y" * 1000)) == 200
    assert json.loads(line(an_event(path='a"\n\x00', status=0)))["path"] == 'a"\n\x00'
    assert "\n" not in line(an_event(path="a\nb"))
    assert json.loads(line(an_event()))["time"] == "2026-01-31T12:00:00.123456Z"


def test_rows_have_the_columns_of_the_topic() -> None:
    layout = layout_of(TopicRecord(0, "active", config(), 0))
    assert fits(layout)
    made = rows([an_event(principal="p", count=7), an_event(status=403)], layout)
    assert made.column("count").to_pylist() == [7, 1]
    assert made.column("principal").to_pylist() == ["p", None]
    assert made.column("status").to_pylist() == [0, 403]
    assert not fits(Layout.from_format(Format.JSON))
    assert not fits(layout_of(TopicRecord(0, "active", TopicConfig(), 0)))


@pytest.mark.parametrize(
    ("error", "lost"), [(TopicConflict("cannot store the audit"), 1), (StoreUnavailable("the store is away"), 0)]
)
async def test_a_batch_refused_for_good_is_lost_and_an_outage_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, error: SeaweedqError, lost: int
) -> None:
    clock = StillClock()
    audit = Audit("topic", "b", clock)
    writer = AuditTopic(audit, None, None, None, "b.1")  # type: ignore[arg-type]
    sent: list[str | None] = []

    async def send() -> None:
        sent.append(privates.batch(writer)[0].path)
        if privates.batch(writer)[0].path == "first" and len(sent) < 4:
            raise error

    monkeypatch.setattr(writer, "_send", send)
    audit.add_change(an_event(path="first"))
    assert not await privates.send_all(writer)()
    clock.s += GIVE_UP_S - 1
    assert not await privates.send_all(writer)()
    audit.add_change(an_event(path="second"))
    clock.s += 1
    await privates.send_all(writer)()
    await privates.send_all(writer)()
    assert audit.lost == lost
    assert sent == ["first"] * 3 + (["second"] if lost else ["first", "second"])
    assert len(audit) == 0


async def test_the_time_of_an_outage_is_none_of_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = StillClock()
    audit = Audit("topic", "b", clock)
    writer = AuditTopic(audit, None, None, None, "b.1")  # type: ignore[arg-type]
    errors: list[SeaweedqError] = [TopicConflict("no room"), StoreUnavailable("away"), TopicConflict("no room")]

    async def send() -> None:
        clock.s += GIVE_UP_S - 1
        if errors:
            raise errors.pop(0)

    monkeypatch.setattr(writer, "_send", send)
    audit.add_change(an_event(path="first"))
    assert [await privates.send_all(writer)() for _ in range(4)] == [False, False, False, True]
    assert audit.lost == 0


def test_each_error_of_the_topic_is_borne(caplog: pytest.LogCaptureFixture) -> None:
    audit = Audit("topic", "b", StillClock())
    writer = AuditTopic(audit, None, None, None, "b.1")  # type: ignore[arg-type]
    for _ in range(3):
        writer._warn(StoreUnavailable("the store is away"))
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1

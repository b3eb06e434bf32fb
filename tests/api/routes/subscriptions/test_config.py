"""The settings of subscriptions: what each level of the cluster stores, and what a change keeps."""

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from seaweedq.coordination import keys
from seaweedq.coordination.records.subscriptions import MessageFilter, SubscriptionRecord
from seaweedq.coordination.transactions import read_all
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop, of_level_1
from tests.support.brokers.stored import record_of
from tests.support.http.asking import problem_of

SUB = "/v1/topics/t/subscriptions/s"
FIRST = {  # as brokers wrote it before there were levels
    "mode": "ordered",
    "start": "latest",
    "ack_deadline_s": 30.0,
    "max_attempts": 0,
    "dead_letter_topic": None,
    "created_us": 7,
    "epoch": 8,
    "state": "active",
    "dispatcher": None,
}
NEW: list[dict[str, Any]] = [
    {"mode": "shared"},
    {"mode": "keyed"},
    {"max_attempts": 5},
    {"dead_letter_topic": "dead"},
    {"backoff_s": [1, 10]},
    {"max_in_flight": 5},
    {"filter": {"key_prefix": "a"}},
    {"expires_after_s": 3600},
]


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", timeout=30)


async def test_below_level_3_settings_that_old_brokers_do_not_heed_are_refused(tmp_path: Path) -> None:
    async with of_level_1(tmp_path) as together, client(*together.apps.values()) as http:
        assert (await http.put("/v1/topics/t", json={})).status_code == 201
        for one in NEW:
            found = problem_of(await http.put(SUB, json=one), 409, "needs-cluster-level", *one, "level 3")
            assert (found["level"], found["needs"]) == (1, 3)
        assert (await http.put(SUB, json={"mode": "ordered", "max_in_flight": 10_000})).status_code == 201
        for one in [*NEW[2:6], {"paused": True}]:
            problem_of(await http.patch(SUB, json=one), 409, "needs-cluster-level", *one)
        assert (await http.patch(SUB, json={"ack_deadline_s": 5, "paused": False})).json()["ack_deadline_s"] == 5
        (stored,) = (await read_all(together.coordination, keys.SUBSCRIPTIONS.prefix()))[0]
        assert msgspec.json.decode(stored.value).keys() <= FIRST.keys()


async def test_a_change_is_heeded_by_later_pulls_and_keeps_leases_and_epoch(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together, client(*together.apps.values()) as http:
        await http.put("/v1/topics/t", json={})
        await http.put(SUB, json={"start": "earliest", "ack_deadline_s": 600})
        await http.post("/v1/topics/t/messages", json={"messages": [{"value": n} for n in range(3)]})
        (first,) = (await http.post(f"{SUB}/pull", json={"max_messages": 1})).json()["messages"]
        for one in ({"mode": "ordered"}, {"start": "latest"}, {"filter": None}, {"unknown": 1}):
            problem_of(await http.patch(SUB, json=one), 422, "invalid-request", *one)
        problem_of(
            await http.patch(SUB, json={"ack_deadline_s": 0}), 422, "invalid-request", "ack_deadline_s", "at least 1"
        )
        shown = (await http.patch(SUB, json={"ack_deadline_s": 700})).json()
        assert (shown["ack_deadline_s"], shown["lag"][0]["messages"]) == (700, 3)
        again = (await http.get(SUB)).json()
        assert {**shown, "lag_total": {}, "lag": []} == {**again, "lag_total": {}, "lag": []}
        (broker,) = together.brokers
        topic = inside.topic(broker, "t")
        await inside.dispatcher(broker).checkpoint()  # under the revision of the change
        assert inside.dispatcher(broker).has(topic, "s")
        assert (await http.post(f"{SUB}/ack", json={"ids": [first["id"]]})).json()["acked"] == 1
        problem_of(await http.patch("/v1/topics/t/subscriptions/none", json={}), 404, "subscription-not-found")


async def test_a_change_whose_answer_was_lost_keeps_acks_that_no_checkpoint_has(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together, client(*together.apps.values()) as http:
        await http.put("/v1/topics/t", json={})
        await http.put(SUB, json={"start": "earliest"})
        await http.post("/v1/topics/t/messages", json={"messages": [{"value": n} for n in range(3)]})
        (first,) = (await http.post(f"{SUB}/pull", json={"max_messages": 1})).json()["messages"]
        await http.post(f"{SUB}/ack", json={"ids": [first["id"]]})
        (broker,) = together.brokers
        dispatcher = inside.dispatcher(broker)
        subscription = await dispatcher.open(inside.topic(broker, "t"), "s")
        before = subscription.held
        await http.patch(SUB, json={"ack_deadline_s": 700})
        subscription.held = before  # as if coordination had not answered
        await dispatcher.checkpoint()
        assert dispatcher.has(inside.topic(broker, "t"), "s")
        assert subscription.record.ack_deadline_s == 700
        assert dispatcher.pin is None


def test_records_of_level_1_are_read_and_say_nothing_new() -> None:
    found = record_of(keys.SUBSCRIPTIONS, msgspec.json.encode(FIRST))
    assert found == SubscriptionRecord("ordered", "latest", 30.0, 0, None, 7, 8)
    assert (found.max_in_flight, found.paused, found.new_in_level_3) == (10_000, False, [])
    assert msgspec.json.decode(msgspec.json.encode(found.in_its_form())).keys() <= FIRST.keys()


@pytest.mark.parametrize(
    "changes",
    [{"mode": "keyed"}, {"paused": True}, {"backoff_s": (1.0,)}, {"filter": MessageFilter("a")}, {"max_attempts": 1}],
)
def test_a_record_with_something_new_needs_level_3(changes: dict[str, Any]) -> None:
    plain = record_of(keys.SUBSCRIPTIONS, msgspec.json.encode(FIRST))
    assert msgspec.structs.replace(plain, **changes).in_its_form().needs_level == 3

"""Principals and tokens over HTTP, on several brokers in one loop. Links to payloads end with their token."""

import asyncio
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from seaweedq.access.rights import Action, Resource
from seaweedq.access.tokens import digest_of, draw
from seaweedq.broker.access.callers import AdminToken
from seaweedq.client import AsyncClient
from seaweedq.clock import SystemIds
from seaweedq.coordination.interface import Put
from seaweedq.errors import Forbidden, InvalidRequest
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.deaf import deaf
from tests.support.brokers.in_process_cluster import until
from tests.support.http.with_tokens import EVERYTHING, ByHost, Http, access, id_of

pytestmark = pytest.mark.brokers


async def test_a_token_works_on_all_brokers_and_ends_on_all(tmp_path: Path) -> None:
    async with access(tmp_path, 3) as http:
        await http.principal("p", EVERYTHING)
        token = await http.token(principal="p", note="for a test")
        for broker in range(3):
            me = (await http("GET", "/v1/whoami", token, broker)).json()
            assert (me["principal"], me["token"]) == ("p", id_of(token))
        assert await http.status("DELETE", f"/v1/tokens/{id_of(token)}", http.admin) == 204
        await http.known(id_of(token), False)
        assert [await http.status("GET", "/v1/whoami", token, broker) for broker in range(3)] == [401] * 3


async def test_tokens_of_one_principal_have_a_bound_and_leave_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seaweedq.broker.access.principals.MOST_OF_ONE", 2)
    async with access(tmp_path) as http:
        for name in ("p", "q"):
            await http.principal(name, EVERYTHING)
        token = await http.token(principal="p")
        await http.token(token)
        refused = await http("POST", "/v1/tokens", token, json={})
        assert (refused.status_code, refused.json()["bound"]) == (422, 2)
        assert await http.status("POST", "/v1/tokens", http.admin, json={"principal": "q"}) == 201


async def test_a_principals_own_tokens_are_bounded_and_leave_room_for_given_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seaweedq.broker.access.principals.MOST_MINTED", 2)
    async with access(tmp_path) as http:
        await http.principal("p", EVERYTHING)
        token = await http.token(principal="p")
        child = await http.token(token)
        await http.token(child)
        for issuer in (token, child):
            refused = await http("POST", "/v1/tokens", issuer, json={})
            assert (refused.status_code, refused.json()["bound"]) == (422, 2)
            assert "has 2 tokens that it issued to itself" in refused.json()["detail"]
        await http.token(principal="p")
        assert await http.status("DELETE", f"/v1/tokens/{id_of(child)}", token) == 204
        await http.token(token)


async def test_notes_of_tokens_have_no_control_characters(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        await http.principal("p", EVERYTHING)
        for wrong in ("\x1b[2J", "a\nb", "\x7f", "\x9b", "\u202e", "\u2066", "\u2069"):
            answer = await http("POST", "/v1/tokens", http.admin, json={"principal": "p", "note": f"a{wrong}"})
            assert (answer.status_code, answer.json()["field"]) == (422, "note"), answer.text
        for right in ("", "nightly run, é 漢字 😀", "\u200f"):
            await http.token(principal="p", note=right)


async def test_what_is_never_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with access(tmp_path) as http:
        await http.principal("p", EVERYTHING)
        token = await http.token(principal="p")
        secret = token.split("_")[2]
        for path in ("/v1/tokens", f"/v1/tokens/{id_of(token)}", "/v1/whoami", "/v1/principals", "/openapi.json"):
            assert secret not in (await http("GET", path, http.admin)).text
        wrong = await http("GET", "/v1/whoami", token[:-1] + "x")
        assert secret not in wrong.text
        stored = b"".join(change.value or b"" for some in http.together.coordination.history for change in some)
        assert b"tokens" not in stored or secret.encode() not in stored
        assert secret.encode() not in stored
        assert secret not in caplog.text
        assert secret not in repr(inside.callers(http.together.brokers[0]).view.tokens)


async def test_narrower_tokens_end_with_the_one_they_came_of(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        await http.principal("p", EVERYTHING)
        first = await http.token(principal="p", expires_s=1000)
        reading = [{"actions": ["read", "describe"], "topics": ["a*"]}]
        second = await http.token(first, grants=reading)
        third = await http.token(second, expires_s=5000)
        shown = (await http("GET", f"/v1/tokens/{id_of(third)}", http.admin)).json()
        above = (await http("GET", f"/v1/tokens/{id_of(first)}", http.admin)).json()
        assert shown["issued_from"] == id_of(second)
        assert shown["expires_at"] == above["expires_at"], "it ends no later"
        assert await http.status("GET", "/v1/topics/a1", third) == 404
        assert await http.status("GET", "/v1/topics/b1", third) == 403
        assert await http.status("PUT", "/v1/topics/a1", third) == 403
        for wider in ([{"actions": ["read"], "topics": ["*"]}], [{"actions": ["create"], "topics": ["a"]}]):
            assert await http.status("POST", "/v1/tokens", second, json={"grants": wider}) == 403
        listed = (await http("GET", "/v1/tokens", second)).json()["tokens"]
        assert {one["id"] for one in listed} == {id_of(second), id_of(third)}
        assert await http.status("GET", f"/v1/tokens/{id_of(first)}", second) == 403
        assert await http.status("GET", "/v1/tokens/0000000000000000", second) == 403, "whether or not it exists"
        assert await http.status("DELETE", f"/v1/tokens/{id_of(first)}", second) == 403
        assert await http.status("DELETE", f"/v1/tokens/{id_of(second)}", first) == 204
        assert [await http.status("GET", "/v1/whoami", one) for one in (first, second, third)] == [200, 401, 401]
        assert len(inside.callers(http.together.brokers[0]).view.tokens) == 1, "what came of it is removed"


async def test_the_principal_rules_its_tokens(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        await http.principal("p", EVERYTHING)
        token = await http.token(principal="p")
        child = await http.token(token)
        assert await http.status("PUT", "/v1/topics/a", child) == 201
        await http.principal("p", [{"actions": ["describe"], "topics": ["a"]}])
        assert await http.status("GET", "/v1/topics/a", child) == 200
        assert await http.status("PUT", "/v1/topics/b", child) == 403
        await http.principal("p", EVERYTHING, disabled=True)
        assert await http.status("GET", "/v1/topics/a", child) == 401
        await http.principal("p", EVERYTHING)
        assert await http.status("GET", "/v1/topics/a", child) == 200
        assert await http.status("DELETE", "/v1/principals/p", http.admin) == 204
        assert await http.status("GET", "/v1/topics/a", child) == 401
        await http.principal("p", EVERYTHING)
        assert [await http.status("GET", "/v1/topics/a", one) for one in (token, child)] == [401, 401]


async def test_a_token_that_outlives_its_principal_in_coordination_never_counts(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        await http.principal("p", EVERYTHING)
        token = await http.token(principal="p")
        callers = inside.callers(http.together.brokers[0])
        kept = await http.together.coordination.get(f"tokens/{id_of(token)}")
        assert kept is not None
        assert await http.status("DELETE", "/v1/principals/p", http.admin) == 204
        await http.together.coordination.commit([], [Put(kept.key, kept.value)])  # as if the removal had been cut off
        await http.principal("p", EVERYTHING)
        await until(lambda: id_of(token) in callers.view.tokens)
        assert await http.status("GET", "/v1/whoami", token) == 401


async def test_no_token_of_a_principal_that_goes_at_the_same_time(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        await http.principal("p", EVERYTHING)
        parent = await http.token(principal="p")
        coordination = http.together.coordination
        begun: list[Any] = []

        async def before(writes: Any) -> None:
            if not begun and any(one.key.startswith("tokens/") and hasattr(one, "value") for one in writes):
                begun.append(1)
                assert await http.status("DELETE", f"/v1/tokens/{id_of(parent)}", http.admin) == 204

        coordination.before = before
        answer = await http("POST", "/v1/tokens", parent, json={})
        assert answer.status_code == 404, answer.text
        assert begun


async def test_the_admins_file_is_read_again(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        assert await http.status("GET", "/v1/principals", http.admin) == 200
        callers, ended = inside.callers(http.together.brokers[0]), list[str]()
        caller = callers.find(digest_of(http.admin.encode()))
        with callers.holding(caller, Action.READ, Resource("t"), lambda: ended.append("a stream of the token before")):
            callers.end_revoked_requests()
            assert not ended
            (tmp_path / "admin").write_text(another := draw(SystemIds()))
            privates.admin(callers).refresh()
            callers.end_revoked_requests()
            assert ended
        assert await http.status("GET", "/v1/principals", http.admin) == 401
        assert await http.status("GET", "/v1/principals", another) == 200
        (tmp_path / "admin").write_text("short")
        privates.admin(callers).refresh()
        assert await http.status("GET", "/v1/principals", another) == 401


async def test_an_admin_file_that_all_may_write_is_refused_and_ends_its_token(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        callers, file = inside.callers(http.together.brokers[0]), tmp_path / "admin"
        file.chmod(0o602)
        with pytest.raises(InvalidRequest, match=r"mode 0602\); to forbid this, run chmod o-w"):
            AdminToken(file).require()
        assert privates.admin(callers).refresh()
        assert await http.status("GET", "/v1/principals", http.admin) == 401
        file.chmod(0o640)
        privates.admin(callers).refresh()
        assert await http.status("GET", "/v1/principals", http.admin) == 200


async def test_an_admin_of_one_broker_waits_at_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with access(tmp_path, 2) as http:
        await http("PUT", "/v1/topics/a", http.admin)
        await http("PUT", "/v1/topics/a/subscriptions/s", http.admin, json={})
        for at in (0, 1):
            other = inside.callers(http.together.brokers[1 - at])
            monkeypatch.setattr(privates.admin(other), "_digest", None)
            pull = http("POST", "/v1/topics/a/subscriptions/s/pull", http.admin, at, json={"wait_s": 30})
            fetch = http("GET", "/v1/topics/a/segments/0/messages?offset=0&wait_s=30", http.admin, at)
            waiting = [asyncio.create_task(pull), asyncio.create_task(fetch)]
            await until(lambda at=at: len(privates.held(inside.callers(http.together.brokers[at]))) == 2)
            for _ in range(40):
                await asyncio.sleep(0.01)
                other.end_revoked_requests()
            assert not [one.result().text for one in waiting if one.done()]
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            monkeypatch.undo()


async def test_anonymous_ones_where_none_is_required(tmp_path: Path) -> None:
    async with access(tmp_path, auth="none") as http:
        assert await http.status("PUT", "/v1/topics/a", None) == 201
        await http.principal("p", [{"actions": ["read"], "topics": ["a"]}])
        token = await http.token(principal="p")
        assert await http.status("DELETE", "/v1/topics/a", token) == 403, "whom a token names is judged"
        assert await http.status("GET", "/v1/topics/a", draw(SystemIds())) == 401
        assert (await http("GET", "/v1/whoami")).json()["principal"] is None


@pytest.mark.parametrize(
    "grant",
    [
        {"actions": ["read"]},
        {"actions": ["read"], "topics": ["a*b"]},
        {"actions": ["read"], "topics": ["**"]},
        {"actions": ["read"], "topics": ["seaweedq.*"]},
        {"actions": ["read"], "topics": [""]},
        {"actions": ["read"], "topics": ["a/b"]},
        {"actions": ["read"], "topics": ["a\n"]},
        {"actions": ["fly"], "topics": ["a"]},
        {"actions": [], "topics": ["a"]},
        {"actions": ["consume"], "topics": ["a"], "subscriptions": ["x y"]},
    ],
)
async def test_grants_that_are_none(tmp_path: Path, grant: Any) -> None:
    async with access(tmp_path) as http:
        assert await http.status("PUT", "/v1/principals/p", http.admin, json={"grants": [grant]}) == 422
        assert await http.status("PUT", "/v1/principals/admin", http.admin, json={}) == 422


async def test_lists_hold_what_one_may_describe(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        for name in ("a1", "a2", "b1", "seaweedq.audit"):
            await http("PUT", f"/v1/topics/{name}", http.admin)
        for name in ("mine-1", "others"):
            await http("PUT", f"/v1/topics/a1/subscriptions/{name}", http.admin, json={})
        await http.principal("p", [{"actions": ["describe"], "topics": ["a*"], "subscriptions": ["mine-*"]}])
        token = await http.token(principal="p")
        assert [one["name"] for one in (await http("GET", "/v1/topics", token)).json()["topics"]] == ["a1", "a2"]
        assert len((await http("GET", "/v1/topics", http.admin)).json()["topics"]) == 4
        listed = (await http("GET", "/v1/topics/a1/subscriptions", token)).json()["subscriptions"]
        assert [one["name"] for one in listed] == ["mine-1"]
        await http("PUT", "/v1/topics/b1/subscriptions/mine-2", http.admin, json={})
        everywhere = (await http("GET", "/v1/subscriptions", token)).json()
        assert everywhere == {"subscriptions": [{"topic": "a1", "name": "mine-1"}]}
        first = (await http("GET", "/v1/subscriptions?page_size=1", token)).json()
        assert first == everywhere, "no token names what the caller may not describe"
        for path in (
            "/v1/topics/b1",
            "/v1/topics/none",
            "/v1/topics/b1/subscriptions",
            "/v1/topics/none/subscriptions",
        ):
            assert await http.status("GET", path, token) == 403, "it does not say what exists"


async def test_a_topic_is_created_by_who_may_create_it(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        await http.principal("p", [{"actions": ["publish"], "topics": ["*"]}])
        token = await http.token(principal="p")
        refused = await http("POST", "/v1/topics/a/messages", token, json={"value": 1})
        assert (refused.status_code, refused.json()["action"], refused.json()["resource"]) == (403, "create", "a")
        upload = {"size": 1, "content_type": "text/plain"}
        assert await http.status("POST", "/v1/topics/a/uploads", token, json=upload) == 403
        assert await http.status("GET", "/v1/topics/a", http.admin) == 404
        await http.principal("p", [{"actions": ["publish", "create"], "topics": ["a"]}])
        assert await http.status("POST", "/v1/topics/a/messages", token, json={"value": 1}) == 200


async def test_a_topic_just_created_elsewhere_needs_no_right_to_create(tmp_path: Path) -> None:
    async with access(tmp_path, 2) as http:
        await http.principal("p", [{"actions": ["publish"], "topics": ["*"]}])
        token = await http.token(principal="p")
        catalog = inside.catalog(http.together.brokers[0])
        await deaf(http.together.brokers[0])
        requests = (("messages", {"value": 1}, 200), ("uploads", {"size": 1, "content_type": "text/plain"}, 201))
        for number, (path, content, status) in enumerate(requests):
            assert await http.status("PUT", f"/v1/topics/t{number}", http.admin, 1, json={}) == 201
            assert catalog.get(f"t{number}") is None
            assert await http.status("POST", f"/v1/topics/t{number}/{path}", token, json=content) == status


async def test_a_guessed_producer_id_is_another_producer(tmp_path: Path) -> None:
    async with access(tmp_path, 2, auth="none") as http:
        await http.principal("p", EVERYTHING)
        await http.principal("q", EVERYTHING)
        tokens = [await http.token(principal="p"), await http.token(principal="q"), None]
        await http("PUT", "/v1/topics/a", http.admin)
        headers = {"producer-id": "x", "producer-sequence": "5"}
        for token in tokens:
            for broker, duplicate in ((0, None), (1, True), (0, True)):
                answer = await http("POST", "/v1/topics/a/messages", token, broker, headers=headers, json={"value": 1})
                assert answer.json().get("duplicate") is duplicate, (token, broker)
        lower = {"producer-id": "x", "producer-sequence": "1"}
        refused = await http("POST", "/v1/topics/a/messages", tokens[0], headers=lower, json={"value": 1})
        assert (refused.status_code, refused.json()["producer"]) == (409, "x")


async def test_a_namesake_has_no_producers_of_the_old_principal(tmp_path: Path) -> None:
    headers = {"producer-id": "x" * 127, "producer-sequence": "50"}
    async with access(tmp_path, 2) as http:
        await http("PUT", "/v1/topics/a", http.admin)
        ids: list[str] = []
        for _ in range(2):
            await http.principal("p" * 127, EVERYTHING)
            token = await http.token(principal="p" * 127)
            for broker, duplicate in ((0, None), (1, True)):
                answer = await http("POST", "/v1/topics/a/messages", token, broker, headers=headers, json={"value": 1})
                assert (answer.status_code, answer.json().get("duplicate")) == (200, duplicate), answer.text
                ids += answer.json()["ids"]
            await http.delete("p" * 127)
        assert ids[0] == ids[1] != ids[2] == ids[3]


async def test_dead_letters_go_out_with_their_creators_rights(tmp_path: Path) -> None:
    async with access(tmp_path, 2) as http:
        consuming = ["describe", "publish", "consume", "subscribe", "create"]
        await http.principal("p", [{"actions": consuming, "topics": ["a"]}])
        token = await http.token(principal="p")
        await http("PUT", "/v1/topics/a", token)
        sub, wanted = "/v1/topics/a/subscriptions/s", {"start": "earliest", "dead_letter_topic": "dead"}
        assert await http.status("PUT", sub, token, json=wanted) == 403
        both = [{"actions": consuming, "topics": ["a", "dead"]}]
        await http.principal("p", both)
        for broker in (0, 1):  # one of them relays
            assert await http.status("PUT", sub, token, broker, json=wanted) in (200, 201)
        stored = await http.together.coordination.range("subscriptions/")
        uid = inside.callers(http.together.brokers[0]).view.principals["p"].uid
        creator = f'"creator":"p","creator_uid":"{uid}"'.encode()
        assert [creator in one.value for one in stored.entries] == [True], "whichever broker it was asked of"
        await http.principal("p", [{"actions": consuming, "topics": ["a"]}])
        assert await http.status("PATCH", sub, token, json={"dead_letter_topic": "dead"}) == 403
        await http("POST", "/v1/topics/a/messages", token, json={"value": 1})
        pulled = (await http("POST", f"{sub}/pull", token, json={"wait_s": 10})).json()["messages"]
        ids = [one["id"] for one in pulled]
        assert await http.status("POST", f"{sub}/nack", token, json={"ids": ids, "reject": True}) == 200
        senders = [inside.dead_letters(one) for one in http.together.brokers]
        await until(lambda: any(s.failures for one in senders for s in privates.senders(one).values()))
        assert sum(one.published for one in senders) == 0
        await http.principal("p", both)
        await until(lambda: sum(one.published for one in senders) == 1)


async def test_dead_letters_go_out_with_an_heirs_rights_and_not_with_a_namesakes(tmp_path: Path) -> None:
    async with access(tmp_path, 2) as http:
        for name in ("a", "dead"):
            await http("PUT", f"/v1/topics/{name}", http.admin)
        await http.principal("p", EVERYTHING)
        token = await http.token(principal="p")
        wanted = {"start": "earliest", "dead_letter_topic": "dead"}
        sub = "/v1/topics/a/subscriptions/s"
        assert await http.status("PUT", sub, token, json=wanted) == 201
        await http.delete("p")
        await http.principal("p", EVERYTHING)
        await http("POST", "/v1/topics/a/messages", http.admin, json={"value": 1})
        pulled = (await http("POST", f"{sub}/pull", http.admin, json={"wait_s": 10})).json()["messages"]
        ids = [one["id"] for one in pulled]
        assert await http.status("POST", f"{sub}/nack", http.admin, json={"ids": ids, "reject": True}) == 200
        senders = [inside.dead_letters(one) for one in http.together.brokers]
        await until(
            lambda: any(one.published or any(s.failures for s in privates.senders(one).values()) for one in senders)
        )
        assert sum(one.published for one in senders) == 0
        await http.principal("heir", [{"actions": ["subscribe"], "topics": ["a"]}])
        heir, same = await http.token(principal="heir"), {"dead_letter_topic": "dead"}
        at = next(
            n for n, one in enumerate(senders) if not any(s.failures for s in privates.senders(one).values())
        )  # it relays
        assert await http.status("PATCH", sub, heir, json=same) == 403, "it may not publish there"
        await http.principal("heir", [{"actions": ["subscribe", "publish"], "topics": ["a", "dead"]}])
        assert await http.status("PATCH", sub, heir, at, json={"ack_deadline_s": 20}) == 200
        failures = sum(s.failures for one in senders for s in privates.senders(one).values())
        await until(lambda: sum(s.failures for one in senders for s in privates.senders(one).values()) > failures)
        assert sum(one.published for one in senders) == 0, "another change takes nothing over"
        assert await http.status("PATCH", sub, heir, at, json=same) == 200
        await until(lambda: sum(one.published for one in senders) == 1)


async def test_the_rights_that_clients_need_over_three_brokers(tmp_path: Path) -> None:
    async with access(tmp_path, 3) as http:
        await http("PUT", "/v1/topics/a", http.admin, json={"initial_segments": 6})
        await http.principal("writes", [{"actions": ["publish", "describe"], "topics": ["a"]}])
        await http.principal("works", [{"actions": ["consume", "subscribe", "describe"], "topics": ["a"]}])
        urls, through = list(http.together.apps), ByHost(http)
        writing = AsyncClient(urls, transport=through, token=await http.token(principal="writes"))
        working = AsyncClient(urls, transport=through, token=await http.token(principal="works"))
        async with writing, working:
            async with writing.producer("a") as producer:
                for number in range(60):
                    await producer.send(number, key=f"k{number}")
            with pytest.raises(Forbidden):
                await working.publish("a", {"value": 1})
            found: set[Any] = set()
            async for message in working.subscribe("a", "s", start="earliest"):
                found.add(message.value)
                message.ack()
                if len(found) == 60:
                    break
        assert found == set(range(60))


async def test_links_end_no_later_than_the_token_that_got_them(tmp_path: Path) -> None:
    async with access(tmp_path, 2) as http:
        await http.principal("p", EVERYTHING)
        uploads = "/v1/topics/a/uploads"
        made = (await http("POST", uploads, http.admin, json={"size": 3})).json()
        assert await http.status("PUT", made["url"].removeprefix("http://b0"), content=b"abc", token=None) < 300
        message = {"reference": {"upload_id": made["upload_id"]}}
        published = await http("POST", "/v1/topics/a/messages", http.admin, json=message)
        assert published.status_code == 200, published.text
        for name in ("s0", "s1"):
            await http("PUT", f"/v1/topics/a/subscriptions/{name}", http.admin, json={"start": "earliest"})
        token = await http.token(principal="p", expires_s=60)
        shown = (await http("GET", f"/v1/tokens/{id_of(token)}", http.admin)).json()
        until_s = datetime.fromisoformat(shown["expires_at"]).timestamp()
        for broker in range(2):
            found = [await linked(http, token, broker), (await http("POST", uploads, token, json={"size": 3})).text]
            assert all(until_s - 30 < end <= until_s for text in found for end in ends_of(text)), found
            assert all(ends_of(text) for text in found)
            for path, one in (
                ("/v1/topics/a/stream", http.admin),  # what others have just got is kept, with its links
                ("/v1/topics/a/stream", token),
                ("/v1/topics/a/stream", http.admin),
                (f"/v1/topics/a/subscriptions/s{broker}/stream", token),
            ):
                ends = await ends_in_stream(http, path, one, broker)
                assert ends
                assert all((end <= until_s) == (one == token) for end in ends), (path, one == token)
        assert ends_of(await linked(http, http.admin, 0))[0] > until_s + 60, "others have links that last"


async def linked(http: Http, token: str, broker: int) -> str:
    """The topic's messages, with their links."""
    return (await http("GET", "/v1/topics/a/segments/0/messages?offset=0", token, broker)).text


async def ends_in_stream(http: Http, path: str, token: str, broker: int) -> list[int]:
    """When the links in the first messages of a stream end."""
    sent: list[Any] = []
    task = asyncio.create_task(http.stream(path, token, broker, sent, b"start=earliest"))
    await until(lambda: any(ends_of(str(part.get("body"))) for part in sent))
    task.cancel()
    await asyncio.wait([task])
    return [end for part in sent for end in ends_of(str(part.get("body")))]


def ends_of(text: str) -> list[int]:
    """When the links in an answer end."""
    return [int(found) for found in re.findall(r"expires=(\d+)", text)]

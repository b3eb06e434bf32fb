"""Requests and streams that wait end with the right to what they wait for."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import until
from tests.support.http.listening import listening
from tests.support.http.with_tokens import EVERYTHING, access, id_of


async def test_expiry_ends_what_waits(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        await http.principal("p", EVERYTHING)
        await http("PUT", "/v1/topics/a", http.admin)
        await http("PUT", "/v1/topics/a/subscriptions/s", http.admin, json={})
        token = await http.token(principal="p", expires_s=1.5)
        pull = {"wait_s": 30}
        answer = await asyncio.wait_for(http("POST", "/v1/topics/a/subscriptions/s/pull", token, json=pull), 10)
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
        await until(lambda: len(callers._held) == 4 and all(streams))
        other = asyncio.create_task(
            http("POST", "/v1/topics/a/subscriptions/s/pull", http.admin, at, json={"wait_s": 2})
        )
        assert await http.status("DELETE", f"/v1/tokens/{id_of(token)}", http.admin) == 204
        pulled, fetched, *_ = await asyncio.wait_for(asyncio.gather(*waiting), 10)
        assert (pulled.status_code, fetched.status_code) == (401, 401)
        for sent in streams:
            assert [one.get("status") for one in sent if one["type"] == "http.response.start"] == [200]
            assert sent[-1]["body"].startswith(b"event: bye\n")
            assert b"unauthenticated" in sent[-1]["body"]
            assert not sent[-1].get("more_body")
        assert (await other).status_code == 200, "others go on"
        assert not callers._held


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
            await asyncio.wait_for(asyncio.shield(client.ended), 10)
            assert len(client.content) < len(content)
            assert not client.complete
        assert not inside.callers(http.together.brokers[0])._held


async def test_a_change_that_leaves_the_right_ends_nothing(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        await http.principal("p", EVERYTHING)
        await http("PUT", "/v1/topics/a", http.admin)
        await http("PUT", "/v1/topics/a/subscriptions/s", http.admin, json={})
        token = await http.token(principal="p")
        waiting = asyncio.create_task(http("POST", "/v1/topics/a/subscriptions/s/pull", token, json={"wait_s": 30}))
        await until(lambda: len(inside.callers(http.together.brokers[0])._held) == 1)
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
        await until(lambda: len(inside.callers(http.together.brokers[0])._held) == 2 and bool(sent))
        await http.principal("p", [{"actions": ["publish"], "topics": ["a"]}])
        pulled, _ = await asyncio.wait_for(asyncio.gather(*waiting), 10)
        assert (pulled.status_code, pulled.json()["action"]) == (403, "consume"), "another token would not help"
        assert b"/problems/forbidden" in sent[-1]["body"]
        assert await http.status("GET", "/v1/whoami", token) == 200

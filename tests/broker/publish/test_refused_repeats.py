"""A repeat of an idempotent publish is answered as one, also where its messages would be refused now."""

import asyncio
from datetime import UTC, datetime

import pytest

from seaweedq.broker.publish.remote_append import RemoteAppender
from seaweedq.broker.uploads.uploads import Uploads
from seaweedq.clock import SystemClock
from seaweedq.errors import NotOwner, Unavailable, UploadExpired
from seaweedq.segments.rows import Reference
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop
from tests.support.brokers.reshaped import at, make

pytestmark = pytest.mark.brokers

HOUR_US = 3600 * 1_000_000
PATH = "/v1/topics/t/messages"
UPLOAD = {"reference": {"upload_id": "20261122-0-0123456789abcdef0123456789abcdef"}}
ONE = {"key": "a", "value": 1}
SHAPES = {"one": lambda message: message, "some": lambda message: {"messages": [message, {"key": "b", "value": 2}]}}


def identity(sequence: int) -> dict[str, str]:
    return {"Producer-Id": "p", "Producer-Sequence": str(sequence)}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def shaped(request):
    return request.param


@pytest.mark.parametrize("segments", [1, 2])
async def test_a_clock_that_differs_refuses_no_repeat(tmp_path, monkeypatch, shaped, segments):
    async with in_loop(tmp_path, 1) as together:
        await make(together.brokers[0], segments)
        now_us = SystemClock().now_us
        async with at(together, together.brokers[0]) as http:
            ahead = datetime.fromtimestamp(now_us() / 1e6 + 3595, UTC)
            body = shaped({**ONE, "timestamp": ahead.isoformat()})
            first = await http.post(PATH, json=body, headers=identity(0))
            assert first.status_code == 200, first.text
            monkeypatch.setattr(SystemClock, "now_us", lambda _: now_us() - HOUR_US)  # as another broker's
            again = await http.post(PATH, json=body, headers=identity(0))
            assert (again.status_code, again.json().get("duplicate")) == (200, True)
            assert again.json()["ids"] == first.json()["ids"]
            for headers in (identity(10), {}):  # what was not taken before is refused
                assert (await http.post(PATH, json=body, headers=headers)).status_code == 422


async def test_an_upload_that_expired_meanwhile_refuses_no_repeat(tmp_path, monkeypatch, shaped):
    expired = False

    async def claim(self, topic, upload, use="published"):
        if expired:
            raise UploadExpired("too late", upload_id=upload)
        return Reference("s3://b/x", 1, "text/plain", "0" * 64)

    monkeypatch.setattr(Uploads, "claim", claim)
    async with in_loop(tmp_path, 1) as together:
        await make(together.brokers[0])
        async with at(together, together.brokers[0]) as http:
            body = shaped({"key": "a", **UPLOAD})
            first = await http.post(PATH, json=body, headers=identity(0))
            assert first.status_code == 200, first.text
            expired = True
            again = await http.post(PATH, json=body, headers=identity(0))
            assert (again.status_code, again.json().get("duplicate")) == (200, True)
            assert again.json()["ids"] == first.json()["ids"]
            assert (await http.post(PATH, json=body, headers=identity(10))).status_code in (410, 422)


@pytest.mark.parametrize("segments", [1, 2])
async def test_it_waits_for_an_attempt_that_is_on_its_way(tmp_path, monkeypatch, shaped, segments):
    async with in_loop(tmp_path, 1) as together:
        (broker,) = together.brokers
        await make(broker, segments)
        now_us = SystemClock().now_us
        append, begun, go = inside.journal(broker).append, asyncio.Event(), asyncio.Event()

        async def held(frames):
            begun.set()
            await go.wait()
            return await append(frames)

        monkeypatch.setattr(inside.journal(broker), "append", held)
        async with at(together, broker) as http:
            ahead = datetime.fromtimestamp(now_us() / 1e6 + 3595, UTC)
            body = shaped({**ONE, "timestamp": ahead.isoformat()})
            first = asyncio.create_task(http.post(PATH, json=body, headers=identity(0)))
            await begun.wait()
            monkeypatch.setattr(SystemClock, "now_us", lambda _: now_us() - HOUR_US)
            again = asyncio.create_task(http.post(PATH, json=body, headers=identity(0)))
            await asyncio.wait([again], timeout=0.5)
            go.set()
            answers = [await one for one in (first, again)]
            assert [one.status_code for one in answers] == [200, 200], [one.text for one in answers]
            assert answers[0].json()["ids"] == answers[1].json()["ids"]


async def test_a_refusal_says_which_messages_an_earlier_attempt_has_stored(tmp_path, monkeypatch):
    async with in_loop(tmp_path, 1) as together:
        (broker,) = together.brokers
        await make(broker, 2)
        now_us, publisher = SystemClock().now_us, inside.publisher(broker)

        async def away(*_):
            raise Unavailable("the other owner does not answer")

        async with at(together, broker) as http:
            ahead = datetime.fromtimestamp(now_us() / 1e6 + 3595, UTC).isoformat()
            some = [{"key": key, "value": 1} for key in "abcdefgh"]
            assert (await http.post(PATH, json={"messages": some})).status_code == 200  # it opens both segments
            body = {"messages": [{**one, "timestamp": ahead} for one in some]}
            *_, last = inside.topic(broker, "t").opened.values()
            with monkeypatch.context() as patched:
                last.pause(NotOwner("it moves"))
                patched.setattr(RemoteAppender, "_append_at_owner", away)
                patched.setattr(publisher, "_timeout_s", 0.3)
                first = await http.post(PATH, json=body, headers=identity(0))
                last.resume()
            assert (first.status_code, first.json()["type"]) == (503, "/problems/partly-taken")
            monkeypatch.setattr(SystemClock, "now_us", lambda _: now_us() - HOUR_US)
            again = await http.post(PATH, json=body, headers=identity(0))
            assert (again.status_code, again.json()["taken"]) == (422, first.json()["taken"])

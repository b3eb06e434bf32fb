"""A repeat of an idempotent publish is answered as one, also where its messages would be refused now."""

from datetime import UTC, datetime

import pytest

from seaweedq.broker.uploads.uploads import Uploads
from seaweedq.clock import SystemClock
from seaweedq.errors import UploadExpired
from seaweedq.segments.rows import Reference
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

"""Refusals are counted by reason and logged: each bound that strangers meet has a metric, a log line and a place in the
docs.
"""

from pathlib import Path

import httpx
import pytest

from seaweedq.api.refusals import REASONS
from seaweedq.broker.uploads.rules import upload_id
from tests.support.brokers.in_process_cluster import in_loop
from tests.support.brokers.reshaped import at
from tests.support.paths import ROOT


async def counted(http: httpx.AsyncClient, reason: str) -> float:
    start = f'seaweedq_refusals_total{{reason="{reason}"}} '
    lines = (await http.get("/metrics")).text.splitlines()
    return next(float(line.removeprefix(start)) for line in lines if line.startswith(start))


@pytest.mark.brokers
async def test_what_goes_beyond_a_bound_of_the_cluster_is_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        in_loop(tmp_path, 1, max_topics=1, max_segments=2) as together,
        at(together, together.brokers[0]) as http,
    ):
        for name, reason, more in (("t", "segments", {"initial_segments": 3}), ("t", "", {}), ("u", "topics", {})):
            answer = await http.put(f"/v1/topics/{name}", json=more)
            assert answer.status_code == (429 if reason else 201)
            if reason:
                assert await counted(http, reason) == 1
                assert f"refused for {reason}: the cluster has" in caplog.text


@pytest.mark.brokers
async def test_a_forged_link_is_counted_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with in_loop(tmp_path, 1) as together, at(together, together.brokers[0]) as http:
        assert (await http.put("/v1/topics/t", json={})).status_code == 201
        forged = {"expires": "99999999999", "token": "x" * 43}
        answer = await http.get(f"/v1/topics/t/uploads/{upload_id(0, 1, '0' * 32)}/content", params=forged)
        assert answer.status_code == 403
        assert await counted(http, "forbidden") == 1
        assert "refused for forbidden: the URL has expired" in caplog.text


def test_each_reason_is_explained() -> None:
    page = (ROOT / "docs" / "operate" / "operations.md").read_text()
    assert [reason for reason in REASONS if f"`{reason}`" not in page] == []

"""Retention needs a cluster of level 3: below it nothing is stored that would not be carried out."""

from pathlib import Path

import httpx
import msgspec
import pytest

from seaweedq.coordination import keys
from tests.support.brokers.in_process_cluster import of_level_1

pytestmark = pytest.mark.brokers


async def test_below_level_3_a_policy_is_refused_and_nothing_else(tmp_path: Path) -> None:
    async with of_level_1(tmp_path) as together:
        (app,) = together.apps.values()
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=30) as http:
            wanted = {"retention": {"max_age_s": 60}}
            refused = await http.put("/v1/topics/t", json=wanted)
            assert (refused.status_code, refused.json()["type"]) == (409, "/problems/needs-cluster-level")
            assert (await http.put("/v1/topics/t", json={"retention": {"max_age_s": None}})).status_code == 201
            refused = await http.patch("/v1/topics/t", json=wanted)
            assert (refused.status_code, refused.json()["needs"]) == (409, 3)
            assert (await http.patch("/v1/topics/t", json={"flush": {"max_age_s": 5}})).status_code == 200
        stored = await together.coordination.get(keys.TOPICS.key("t"))
        assert stored
        assert msgspec.json.decode(stored.value)["config"]["retention"] == {}

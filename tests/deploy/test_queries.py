"""The rules for alerts and the dashboard ask for series that a broker has, by their names and labels."""

import json
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from seaweedq.api.metrics.catalogue import GROUPS
from tests.support.brokers.in_process_cluster import in_loop
from tests.support.brokers.reshaped import TOPIC, at, make
from tests.support.prometheus import DASHBOARD, alerts, matches, panels

OF_PROMETHEUS = {"job": "seaweedq", "instance": "b0:8080"}
AT_NEED = {"5.."}  # no broker has answered so yet
# Families that have no series yet: no journal is unknown, there is no issuer, and no disk of a cache.
EMPTY = {
    "seaweedq_journal_unknown_since_seconds": {},
    "seaweedq_oidc_keys_age_seconds": {},
    "seaweedq_cache_failures_total": {"kind": "read"},
}


@pytest.mark.brokers
async def test_each_names_series_that_a_broker_has(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together, at(together, together.brokers[0]) as http:
        await make(together.brokers[0])
        await http.put(f"{TOPIC}/subscriptions/s", json={"start": "latest"})
        await http.post(f"{TOPIC}/subscriptions/s/pull", json={"wait_s": 0})
        await http.post(f"{TOPIC}/messages", json={"value": 1})
        families = [*text_string_to_metric_families((await http.get("/metrics")).text)]
        series = [(one.name, {**one.labels, **OF_PROMETHEUS}) for family in families for one in family.samples]
    series.append(("up", OF_PROMETHEUS))
    empty = {family.name for family in families if not family.samples}
    series += [(n, {**labels, **OF_PROMETHEUS}) for n, labels in EMPTY.items() if n.removesuffix("_total") in empty]
    for query in [*alerts(), *panels()]:
        selectors = list(query.selectors())
        assert selectors, query
        for name, matchers in selectors:
            asked = [one for one in matchers if one[2] not in AT_NEED]
            assert any(name == one and matches(labels, asked) for one, labels in series), (query.place, name, matchers)


def test_each_group_of_metrics_is_on_the_dashboard_or_has_an_alert() -> None:
    asked = {name for query in [*alerts(), *panels()] for name, _ in query.selectors()}
    asked |= {name.removesuffix(end) for name in asked for end in ("_bucket", "_count", "_sum")}
    for group, families in GROUPS.items():
        assert asked & {family.name for family in families}, group


def test_panels_lie_beside_each_other_and_have_ids_of_their_own() -> None:
    found = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in found}) == len(found)
    cells = [
        (x, y)
        for panel in found
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert all(x < 24 for x, _ in cells)

"""deploy/envoy/envoy.yaml, as far as that can be told without Envoy: it keeps out what brokers keep for themselves, and
bears with what their routes need."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from seaweedq.api.handlers.pulls import MAX_WAIT_S
from tests.support.http.requests import every
from tests.support.paths import ROOT

KEPT_OUT = ("/internal", "/metrics")


@pytest.fixture(scope="module")
def resources() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "deploy" / "envoy" / "envoy.yaml").read_text())["static_resources"]


@pytest.fixture(scope="module")
def chain(resources: dict[str, Any]) -> dict[str, Any]:
    (listener,) = resources["listeners"]
    (found,) = listener["filter_chains"]
    return found


@pytest.fixture(scope="module")
def manager(chain: dict[str, Any]) -> dict[str, Any]:
    return chain["filters"][0]["typed_config"]


@pytest.fixture(scope="module")
def brokers(resources: dict[str, Any]) -> dict[str, Any]:
    return resources["clusters"][0]


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def routed(manager: dict[str, Any], path: str) -> dict[str, Any]:
    """The first route that matches a path, as Envoy takes them."""
    for route in manager["route_config"]["virtual_hosts"][0]["routes"]:
        match = route["match"]
        fold = str.lower if match.get("case_sensitive") is False else str
        if fold(path) == match.get("path") or ("prefix" in match and fold(path).startswith(match["prefix"])):
            return route
    raise AssertionError(path)


def test_paths_are_those_that_brokers_see(manager: dict[str, Any]) -> None:
    assert manager["path_with_escaped_slashes_action"] == "REJECT_REQUEST"
    assert manager["normalize_path"] is True
    assert manager["merge_slashes"] is True


def test_each_route_of_brokers_for_clients_passes_and_no_other(manager: dict[str, Any]) -> None:
    for _, path, _ in every():
        is_kept = path.startswith(KEPT_OUT)
        assert ("direct_response" in routed(manager, path)) is is_kept, path
    for path in ("/internal", "/INTERNAL/hello", "/internal/", "/internalx"):
        assert routed(manager, path)["direct_response"]["status"] == 404


def test_what_waits_is_borne_with(manager: dict[str, Any], brokers: dict[str, Any]) -> None:
    assert seconds(manager["stream_idle_timeout"]) > 2 * MAX_WAIT_S
    assert seconds(manager["request_timeout"]) == 0
    assert seconds(routed(manager, "/v1/topics")["route"]["timeout"]) == 0
    options = brokers["typed_extension_protocol_options"]["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]
    server = (ROOT / "seaweedq" / "cli" / "server" / "http_server.py").read_text()
    (kept,) = re.findall(r"timeout_keep_alive=(\d+)", server)
    assert seconds(options["common_http_protocol_options"]["idle_timeout"]) < float(kept)
    assert {"upgrade_type": "websocket"} in manager["upgrade_configs"]


def test_headers_of_brokers_are_removed(manager: dict[str, Any]) -> None:
    lua = manager["http_filters"][0]["typed_config"]["default_source_code"]["inline_string"]
    (length, prefix) = re.findall(r"sub\(1, (\d+)\) == \"([^\"]+)\"", lua)[0]
    assert int(length) == len(prefix)
    names = {
        name
        for path in (ROOT / "seaweedq").rglob("*.py")
        for name in re.findall(r"\"(Seaweedq-[A-Za-z]+)\"", Path(path).read_text())
    }
    assert names >= {"Seaweedq-Caller", "Seaweedq-Peer"}
    assert all(name.lower().startswith(prefix) for name in names)
    assert [one["name"].rpartition(".")[2] for one in manager["http_filters"]] == ["lua", "local_ratelimit", "router"]


def test_addresses_are_the_clients_and_are_limited(manager: dict[str, Any]) -> None:
    assert manager["use_remote_address"] is True
    limit = manager["http_filters"][1]["typed_config"]
    assert [entry["key"] for one in limit["descriptors"] for entry in one["entries"]] == ["remote_address"]
    assert limit["rate_limits"] == [{"actions": [{"remote_address": {}}]}]
    assert limit["filter_enforced"]["default_value"]["numerator"] == 100


def test_tls_on_both_sides(chain: dict[str, Any], brokers: dict[str, Any]) -> None:
    for context in (chain["transport_socket"], brokers["transport_socket"]):
        params = context["typed_config"]["common_tls_context"]["tls_params"]
        assert params["tls_minimum_protocol_version"] == "TLSv1_2"
    checked = brokers["transport_socket"]["typed_config"]["common_tls_context"]["validation_context"]
    assert checked["trusted_ca"]
    assert checked["match_typed_subject_alt_names"]


def test_nothing_is_sent_twice_that_a_broker_may_have_got(manager: dict[str, Any], brokers: dict[str, Any]) -> None:
    retries = routed(manager, "/v1/topics")["route"]["retry_policy"]["retry_on"].split(",")
    assert set(retries) == {"connect-failure", "refused-stream"}
    assert brokers["health_checks"][0]["http_health_check"]["path"] == "/readyz"

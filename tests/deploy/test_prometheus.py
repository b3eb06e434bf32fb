"""Prometheus itself takes the metrics, the rules and the dashboard's queries; promtool's tests of the rules pass."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.processes.broker_process import BrokerProcess, free_port
from tests.support.prometheus import RULES, alerts, config, panels, program

pytestmark = pytest.mark.long
SCRAPED_S = 60.0
# What no broker of a test does: nothing fails, nothing is replaced, and there are rates of what happened once.
QUIET = {"Pauses of publishes, 99th percentile"}


def ran(*command: str, given: bytes = b"") -> str:
    done = subprocess.run(command, input=given, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return done.stdout.decode()


@pytest.mark.process
def test_the_rules_do_what_their_tests_say() -> None:
    promtool = program("promtool")
    ran(promtool, "check", "config", str(RULES / "prometheus.yml"))
    assert "SUCCESS" in ran(promtool, "test", "rules", *map(str, sorted(RULES.glob("tests*.yml"))))


def test_each_alert_has_a_test() -> None:
    tests = "".join(file.read_text() for file in RULES.glob("tests*.yml"))
    assert [query.place for query in alerts() if f"- name: {query.place}\n" not in tests] == []


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[httpx.Client]:
    port = free_port()
    options = (f"--config.file={config(folder, target)}", f"--storage.tsdb.path={folder / 'data'}")
    with (
        (folder / "prometheus.log").open("wb") as log,
        subprocess.Popen(
            [program("prometheus"), *options, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
        ) as process,
    ):
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as http:
                yield http
        finally:
            process.terminate()


def asked(http: httpx.Client, query: str) -> list[Any]:
    answer = http.get("/api/v1/query", params={"query": query})
    assert answer.status_code == 200, (query, answer.text)
    found: list[Any] = answer.json()["data"]["result"]
    return found


def works(http: httpx.Client, path: str) -> None:
    """What a broker is asked for, once."""
    topic = "/v1/topics/t"
    for method, route, body in (
        ("POST", f"{topic}/messages", {"value": 1}),
        ("POST", f"{topic}/subscriptions/s/pull", {"wait_s": 0}),
        ("GET", f"{topic}/segments/0/messages", None),
        ("POST", f"{topic}/flush", None),
        ("GET", "/v1/topics/absent", None),
    ):
        http.request(method, f"{path}{route}", json=body)


@pytest.mark.process
def test_a_live_prometheus_has_data_for_every_query(
    tmp_path: Path, broker_processes: Callable[..., BrokerProcess]
) -> None:
    broker = broker_processes()
    ran(
        program("promtool"),
        "check",
        "metrics",
        given=httpx.get(f"{broker.url}/metrics", timeout=30, trust_env=False).content,
    )
    with prometheus(tmp_path, broker.url.removeprefix("http://")) as http:
        http.put(f"{broker.url}/v1/topics/t", json={})
        http.put(f"{broker.url}/v1/topics/t/subscriptions/s", json={"start": "earliest"})
        missing, until_s = panels(), time.monotonic() + SCRAPED_S
        while missing and time.monotonic() < until_s:
            works(http, broker.url)
            time.sleep(0.5)
            try:
                missing = [query for query in missing if not asked(http, query.text) and query.place not in QUIET]
            except httpx.TransportError:
                continue  # it starts
        assert missing == []
        states = {rule["name"]: rule["health"] for rule in rules(http)}
        assert states == {query.place: "ok" for query in alerts()}
        assert [one["labels"]["alertname"] for one in http.get("/api/v1/alerts").json()["data"]["alerts"]] == [
            "BrokerMissing"  # there is one, and not three
        ]


def rules(http: httpx.Client) -> list[dict[str, Any]]:
    """The rules, once each was evaluated."""
    while True:
        groups = http.get("/api/v1/rules").json()["data"]["groups"]
        found = [rule for group in groups for rule in group["rules"]]
        if found and all(rule["health"] != "unknown" for rule in found):
            return found
        time.sleep(0.2)

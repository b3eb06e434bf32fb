"""The limits of a bench: shares of the resources that a run used, and the verdict over them. Who sees a token when it
asks for metrics."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from seaweedq.cli.limits import COMMITS, CPU, HINTS, JOURNAL_PUTS, NEAR, PUTS, Limit, Look, limits, verdict
from seaweedq.cli.shared.broker_metrics import metrics_text, samples_of

OK, CREATE = '{outcome="ok"}', '{operation="create",outcome="ok"}'
BEFORE = {CPU: 5.0, f"{COMMITS}_count{OK}": 10.0, f"{COMMITS}_sum{OK}": 1.0, JOURNAL_PUTS: 0.0}


def after(**more: float) -> dict[str, float]:
    used = {CPU: 9.0, f"{COMMITS}_count{OK}": 1_010.0, f"{COMMITS}_sum{OK}": 9.0}
    return {**BEFORE, **used, f"{PUTS}_count{CREATE}": 4.0, f"{PUTS}_sum{CREATE}": 0.5, **more}


def test_shares_are_of_the_run_and_the_largest_is_first() -> None:
    found = limits(Look(1.0, (10.0, 100.0), {"b": BEFORE}), Look(3.0, (25.0, 120.0), {"b": after()}), 10.0)
    assert [(one.limit, round(one.share, 2)) for one in found] == [
        ("disk sync", 0.8),
        ("machine CPU", 0.75),
        ("broker CPU", 0.4),
        ("client CPU", 0.2),
        ("store puts", 0.05),
    ]
    assert found[0].measured == "1,000 commits, 8.0 ms each, b"


def test_of_several_brokers_the_busiest_counts() -> None:
    brokers = {"idle": {**BEFORE, CPU: 5.1}, "busy": after(), "new": {CPU: 1.0}}
    found = limits(Look(0.0, None, {"idle": BEFORE, "busy": BEFORE}), Look(0.0, None, brokers), 10.0)
    [broker] = (one for one in found if one.limit == "broker CPU")
    assert broker.measured == "0.40 cores, busy"


def test_commits_of_an_object_journal_are_puts() -> None:
    found = limits(Look(0.0, None, {"b": BEFORE}), Look(0.0, None, {"b": after(**{JOURNAL_PUTS: 1_000.0})}), 10.0)
    assert "journal puts" in [one.limit for one in found]
    assert "disk sync" not in [one.limit for one in found]


def test_a_broker_that_does_not_tell_of_its_cpu_has_none() -> None:
    found = limits(Look(0.0, None, {"b": {}}), Look(1.0, None, {"b": {}}), 10.0)
    assert [one.limit for one in found] == ["client CPU"]


@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ({"disk sync": 0.95, "client CPU": 0.85}, "limited by client CPU"),
        ({"disk sync": 0.95, "client CPU": NEAR - 0.01}, "limited by disk sync"),
        ({"machine CPU": 0.99, "client CPU": 0.9}, "limited by machine CPU"),
        ({"store puts": 0.9}, "limited by store puts"),
        ({"client CPU": 0.3}, "no resource is near its limit"),
    ],
)
def test_the_verdict_names_the_nearest_limit_cpu_first(shares: dict[str, float], told: str) -> None:
    found = [Limit(name, share, "so much") for name, share in shares.items()]
    text = verdict(found, is_rate_kept=False)
    assert text.startswith(told)
    assert "\n" not in text
    assert verdict(found, is_rate_kept=True) == "limited by --rate, which the run reached"


def test_each_limit_has_a_hint() -> None:
    look = Look(0.0, (0.0, 0.0), {"b": BEFORE})
    for more in ({}, {JOURNAL_PUTS: 9.0}):
        for one in limits(look, Look(1.0, (1.0, 2.0), {"b": after(**more)}), 1.0):
            assert one.limit in HINTS


def test_samples_have_their_labels() -> None:
    text = '# HELP a b\n# TYPE a counter\na 1.0\nb{x="} y",z="2"} 3e5\nc{le="+Inf"} NaN\n'
    found = samples_of(text)
    assert (found["a"], found['b{x="} y",z="2"}']) == (1.0, 3e5)
    assert len(found) == 3


class _Metrics(BaseHTTPRequestHandler):
    """Answers a scrape with the authorization that it shows."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.headers.get("authorization", "none").encode())


@pytest.mark.process
@pytest.mark.parametrize(
    ("host", "is_named", "seen"),
    [("127.0.0.2", True, "Bearer a-token"), ("127.0.0.2", False, "none"), ("127.0.0.1", False, "Bearer a-token")],
)
def test_a_learned_broker_sees_no_token_over_plain_http(
    host: str, is_named: bool, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """127.0.0.2 stands for another machine: no client takes it for this one."""
    monkeypatch.setenv("SEAWEEDQ_TOKEN", "a-token")
    with HTTPServer((host, 0), _Metrics) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://{host}:{server.server_port}"
        told = metrics_text(f"http://b:1, {address}/" if is_named else "http://b:1", address)
        server.shutdown()
    assert told == seen

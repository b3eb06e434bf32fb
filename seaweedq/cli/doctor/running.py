"""The questions of `seaweedq doctor` to brokers that run: about the cluster, each one's readiness, and its clock."""

import time
from collections.abc import Iterator
from typing import Any

from seaweedq.cli.doctor import findings
from seaweedq.cli.doctor.findings import Finding, Verdict
from seaweedq.cli.shared.common import run
from seaweedq.errors import ConnectionFailed, Forbidden, SeaweedqError

READY_S = 5.0


def looked_at(url: str, named: bool) -> Iterator[Finding]:
    """Yields the findings of the cluster at `url`; if nobody named it, it need not be there."""
    from seaweedq.client.core.calls import call

    try:
        facts: dict[str, Any] = run(url, call("GET", "/v1/cluster"))
    except ConnectionFailed as error:
        if named:
            yield findings.failed("brokers", error)
        else:
            yield Finding(Verdict.NOTE, "brokers", f"none answers at {url}; name one with --url")
        return
    except Forbidden as error:
        yield Finding(Verdict.NOTE, "brokers", f"the cluster was not looked at: {error}")
        return
    except SeaweedqError as error:
        yield findings.failed("brokers", error)
        return
    yield from findings.cluster(facts)
    for one in facts["brokers"]:
        yield from _broker(one)
    known = {one["url"].rstrip("/") for one in facts["brokers"]}
    for address in url.split(","):
        if (there := address.strip().rstrip("/")) and there not in known:
            yield from _named(there)


def _broker(one: dict[str, Any]) -> Iterator[Finding]:
    import httpx

    try:
        answer = httpx.get(f"{one['url']}/readyz", timeout=READY_S)
    except httpx.HTTPError as error:
        yield findings.failed(one["id"], f"{one['url']} does not answer from here: {error}")
        return
    if answer.status_code == 200:
        yield Finding(Verdict.OK, one["id"], f"ready at {one['url']}, version {one['version'] or 'unknown'}")
    else:
        yield findings.failed(one["id"], f"not ready: {answer.text[:300]}")
    ahead_s = findings.ahead_s(time.time(), answer.headers.get("date", ""))
    if ahead_s is not None and abs(ahead_s) > findings.CLOCK_S:
        yield findings.clock(one["id"], ahead_s)


def _named(address: str) -> Iterator[Finding]:
    """Yields the finding of an address that somebody named, and no broker of the cluster has, as of one that is dead;
    nothing if a broker answers there, as behind a load balancer."""
    import httpx

    try:
        httpx.get(f"{address}/healthz", timeout=READY_S)
    except httpx.HTTPError as error:
        yield findings.failed("brokers", f"{address} does not answer from here: {error}")

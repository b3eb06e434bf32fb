"""What must not be left once all is healed and no client is there: keys of nobody in etcd, memory that nobody uses, and
descriptors that nobody closes (rule 19)."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import httpx

from tests.support.chaos.cluster import Cluster, Member

QUIET_S = 20.0
MOST_FILES = 150  # of a broker with its store, coordination and two others
MOST_BYTES = 1024  # brokers hold one another's heartbeats
USED = ("seaweedq_request_bytes", "seaweedq_unread_answer_bytes", "seaweedq_incomplete_body_bytes")
MOST = {"files": MOST_FILES, "seaweedq_request_bytes": MOST_BYTES}
WAITING = re.compile(r"^seaweedq_pool_waiting\{[^}]*\} (\S+)$", re.MULTILINE)


class Left(NamedTuple):
    """What is found: the ids of living brokers, those with a key and with a journal, and each living one's figures."""

    living: frozenset[str]
    keys: frozenset[str]
    journals: frozenset[str]
    figures: Mapping[str, Mapping[str, float]]


def leaked(left: Left) -> Iterator[str]:
    """What belongs to nobody. Pure."""
    if strangers := sorted(left.keys ^ left.living):
        yield f"etcd has keys of {sorted(left.keys)}, and alive are {sorted(left.living)}: {strangers}"
    if dead := sorted(left.journals - left.living):
        yield f"the journals of {dead} are still there"
    for broker, figures in left.figures.items():
        for name, value in figures.items():
            if value > MOST.get(name, 0):
                yield f"{name} of {broker} is {value:g}"


def look(cluster: Cluster) -> Left:
    """As it is now."""
    return Left(
        frozenset(member.id for member in cluster.members),
        cluster.named("brokers/"),
        cluster.named("journals/"),
        {member.id: _figures(member) for member in cluster.members},
    )


def _figures(member: Member) -> dict[str, float]:
    assert member.process.process
    files = len(os.listdir(f"/proc/{member.process.process.pid}/fd"))
    text = httpx.get(f"{member.process.url}/metrics", timeout=10, trust_env=False).text
    found = {name: float(re.findall(rf"^{name} (\S+)$", text, re.MULTILINE)[0]) for name in USED}
    return {**found, "pool_waiting": sum(map(float, WAITING.findall(text))), "files": files}

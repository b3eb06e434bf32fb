"""A short run of chaos: three brokers, a real etcd, a real S3 server, and of all other faults and clients some, drawn
anew each time. Longer ones: `make chaos`."""

import random

import pytest

from tests.support.chaos.chaos import Options, run
from tests.support.chaos.faults import ALL
from tests.support.chaos_clients.fleet import OTHERS
from tests.support.history.judged import RETURNS

pytestmark = [pytest.mark.process, pytest.mark.service]

ALWAYS = (
    "kill owner",
    "pause owner",
    "cut peers both",
    "late journal put of a dead one",
    "dropped answers",
    "kill etcd",
    "changes",
    "kill amid a change",
)


DRAWN = 3  # more faults, and clients


@pytest.mark.long
def test_a_short_run_breaks_no_promise(tmp_path):
    seed = random.SystemRandom().randrange(10**6)
    rng = random.Random(seed)
    faults = [fault for fault in ALL if fault.name in ALWAYS]
    others = [fault for fault in ALL if fault not in faults and fault.name not in RETURNS]  # a rebuild takes too long
    faults += rng.sample(others, DRAWN)
    clients = rng.sample(sorted(OTHERS), DRAWN)
    report = run(Options(seed, seconds=30, lease_s=2.0, faults=faults, clients=clients), tmp_path)
    assert report.violations == [], (seed, clients, report.done)
    assert len(report.done) >= 2  # on a machine with nothing else to do six or more
    assert sum(e.op == "publish" and e.type == "ok" for e in report.events) > 1000

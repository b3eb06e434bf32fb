"""A short run of chaos with a fixed seed: three brokers, a real etcd, a real S3 server. Longer ones: `make chaos`."""

import pytest

from tests.support.chaos.chaos import Options, run
from tests.support.chaos.faults import ALL

SHORT = (
    "kill owner",
    "pause owner",
    "cut peers both",
    "late journal put of a dead one",
    "dropped answers",
    "kill etcd",
    "changes",
    "kill amid a change",
)


@pytest.mark.usefixtures("long_run")
def test_a_short_run_breaks_no_promise(tmp_path):
    report = run(Options(seed=1, seconds=30, lease_s=2.0, faults=[f for f in ALL if f.name in SHORT]), tmp_path)
    assert report.violations == []
    assert len(report.done) >= 2  # on a machine with nothing else to do six or more
    assert sum(e.op == "publish" and e.type == "ok" for e in report.events) > 1000

"""As test_chaos, shorter, over other stores: one that answers many at once and checks signatures, MinIO, where its
binary is; and one that lists as SeaweedFS does."""

import pytest

from tests.support.chaos.chaos import Options, run
from tests.support.chaos.faults import ALL
from tests.support.processes.s3_service import Absent

pytestmark = [pytest.mark.process, pytest.mark.service]

FAULTS = ("kill owner", "late journal put of a dead one", "dropped answers")


@pytest.mark.long
@pytest.mark.parametrize("store", ["minio", "moto_as_seaweedfs"])
def test_a_short_run_over_another_store_breaks_no_promise(tmp_path, store):
    faults = [fault for fault in ALL if fault.name in FAULTS]
    try:
        report = run(Options(seed=1, seconds=12, lease_s=2.0, faults=faults, store=store), tmp_path)
    except Absent as absent:
        pytest.skip(str(absent))
    assert report.violations == []
    assert len(report.done) >= 2
    assert sum(e.op == "publish" and e.type == "ok" for e in report.events) > 500

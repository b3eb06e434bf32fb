"""The whole drill of a lost coordination, as it is written, over a real etcd and an S3 server: coordination is lost in
each way, and comes back, and each block prints what the page shows.

It takes a minute and more.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.chaos.store_server import client
from tests.support.docs.operator import operating
from tests.support.docs.page import DRILL, blocks
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.s3_service import S3Service

BUCKETS = ("drill-1", "drill-2")


@pytest.mark.process
@pytest.mark.service
@pytest.mark.soak
def test_the_drill_runs_as_written(
    tmp_path: Path, moto: S3Service, broker_process: Callable[..., BrokerProcess]
) -> None:
    for bucket in BUCKETS:
        client(moto.endpoint).create_bucket(Bucket=bucket)
    with operating(tmp_path, broker_process(start=False), moto.env) as operator:
        for block in blocks(DRILL):
            operator.follow(block)

"""A broker on an S3 store, from end to end: what was published is read from the bucket, and audited there."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module

import pytest

from seaweedq import Client
from seaweedq.client.core.table import opened
from seaweedq.errors import ClientError
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.s3_service import S3Service


@pytest.mark.process
@pytest.mark.service
@pytest.mark.long
def test_a_topic_on_s3_is_read_and_verified(any_s3: S3Service, broker_process: Callable[..., BrokerProcess]) -> None:
    store = f"s3://{any_s3.place()}/prod"
    broker = broker_process("--store", store, "--s3-endpoints", f"{any_s3.endpoint},{any_s3.endpoint}/", env=any_s3.env)
    with Client(broker.url) as client:
        client.publish("t", [{"value": n} for n in range(300)])
        client.flush("t")
        client.publish("t", [{"value": n} for n in range(300, 310)])
        assert client.topic("t")["path"] == f"{store}/topics/t"
        values = sorted(map(int, client.read_table("t", columns=["value"], live=True)["value"].to_pylist()))
        assert values == list(range(310))
        assert client.read_table("t").num_rows == 300
    command = [sys.executable, "-m", "seaweedq", "verify", "t", "--url", broker.url]
    for arguments in ([], ["--store", store]):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, env={**os.environ})
        assert done.returncode == 0, done.stdout + done.stderr
        assert "sound" in done.stdout
        assert "Unclosed" not in done.stderr
    broker.terminate()
    assert "Unclosed" not in broker.log


@pytest.mark.process
@pytest.mark.service
def test_a_store_that_is_not_there_ends_the_start_and_says_why(
    moto: S3Service, broker_process: Callable[..., BrokerProcess]
) -> None:
    broker = broker_process("--store", "s3://no-such-bucket", env=moto.env, start=False)
    broker.start(wait=False)
    assert broker.wait_gone(60) != 0
    assert "bucket no-such-bucket" in broker.log
    assert "Traceback" not in broker.log


@pytest.mark.process
def test_an_endpoint_that_is_no_url_ends_the_start_in_one_line(broker_process: Callable[..., BrokerProcess]) -> None:
    env = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ENDPOINT_URL_S3": "nonsense"}
    broker = broker_process("--store", "s3://bucket", env=env, start=False)
    broker.start(wait=False)
    assert broker.wait_gone(60) == 1
    assert "seaweedq: bucket bucket: Invalid endpoint: nonsense" in broker.log
    assert "Traceback" not in broker.log


def test_reading_a_topic_on_s3_without_s3fs_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(import_module("fsspec.registry")._registry, "s3", raising=False)  # it may be there already
    with pytest.raises(ClientError, match=r"pip install .*\[s3\]'"):
        opened("s3://bucket/topics/t")

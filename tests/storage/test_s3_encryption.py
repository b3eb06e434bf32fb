"""Every object that is made has the encryption of the settings, whoever makes it."""

import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest

from seaweedq import Client
from seaweedq.errors import InvalidRequest
from seaweedq.storage.s3 import S3Store, s3_stores
from seaweedq.storage.s3_requests import Encryption
from tests.support import privates
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.s3_service import S3Service
from tests.support.storage.clients_put import key_of

KEY = "arn:aws:kms:tests"  # the key of tests/support/processes/s3_service, as MinIO reads its name
DATA = b"12345"
NAMES = [f"topics/t/{name}" for name in ("created", "signed", "copied", "parts")]


@pytest.fixture(params=[("AES256", ""), ("aws:kms", ""), ("aws:kms", KEY), ("none", "")])
async def store(s3: S3Service, request: pytest.FixtureRequest) -> AsyncIterator[S3Store]:
    (store,) = s3_stores(f"s3://{s3.place()}", [], encryption=Encryption(*request.param))
    yield store
    await store.close()


async def put_all(store: S3Store) -> None:
    """Makes an object in each way that there is."""
    await store.create(NAMES[0], DATA)
    signed = await store.presign_put(NAMES[1], 60, len(DATA), "image/png", hashlib.sha256(DATA).hexdigest())
    parts = await store.begin_parts(NAMES[3], "image/png")
    part = await store.presign_part(NAMES[3], parts, 1, 60, len(DATA))
    async with httpx.AsyncClient(timeout=30) as http:
        for one in (signed, part):
            answer = await http.request(one.method, one.url, content=DATA, headers=one.headers)
            assert answer.status_code == 200, answer.text
    await store.end_parts(NAMES[3], parts, await store.list_parts(NAMES[3], parts))
    await store.copy(NAMES[0], NAMES[2])


@pytest.mark.service
async def test_each_way_to_make_an_object_states_it(store: S3Store) -> None:
    await put_all(store)
    wanted = privates.bucket(store).encryption
    for name in NAMES:
        found = await privates.bucket(store).head(key_of(store, name))
        if wanted.kind == "none":
            assert found.get("ServerSideEncryption") in (None, "AES256"), name  # the bucket's own
            continue
        assert found["ServerSideEncryption"] == wanted.kind, name
        if wanted.kms_key:
            assert found["SSEKMSKeyId"] == wanted.kms_key, name


@pytest.mark.service
async def test_a_signed_put_is_for_its_encryption_alone(store: S3Store) -> None:
    signed = await store.presign_put(NAMES[1], 60, len(DATA), "image/png", None)
    covered = signed.url.partition("X-Amz-SignedHeaders=")[2].partition("&")[0].split("%3B")
    stated = {name.lower() for name in signed.headers if "encryption" in name}
    assert stated == {name for name in covered if "encryption" in name}
    assert bool(stated) == (privates.bucket(store).encryption.kind != "none")


def test_a_key_without_kms_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="s3_sse is AES256, so s3_sse_kms_key has no effect"):
        Encryption("AES256", KEY)


@pytest.mark.process
@pytest.mark.service
@pytest.mark.long
def test_each_object_of_a_run_has_it(
    moto: S3Service, broker_process: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    """Parquet, journals, marks, probes and payloads."""
    place = moto.place()
    options = ("--store", f"s3://{place}", "--s3-sse", "aws:kms", "--s3-sse-kms-key", KEY, "--journal", "object")
    broker = broker_process(*options, env=moto.env)
    payload = tmp_path / "payload"
    payload.write_bytes(b"x" * 100)
    with Client(broker.url) as client:
        client.publish("t", [{"value": n} for n in range(10)])
        client.flush("t")
        with client.producer("t") as producer:
            producer.send_file(payload)
        client.publish("t", [{"value": 0}])
    broker.kill()  # its journal stays
    bucket, _, prefix = place.partition("/")
    s3: Any = boto3.client("s3", endpoint_url=moto.endpoint, region_name="us-east-1")
    listed = s3.list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"]
    kinds = {each["Key"].removeprefix(prefix).lstrip("/").split("/")[0] for each in listed}
    assert {"topics", "_journals", "_payloads", "_cluster.json"} <= kinds
    for each in listed:
        found = s3.head_object(Bucket=bucket, Key=each["Key"])
        assert (found.get("ServerSideEncryption"), found.get("SSEKMSKeyId")) == ("aws:kms", KEY), each["Key"]

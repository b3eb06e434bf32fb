"""A broker over S3 dies when the parts of an upload have become its object, and when it has begun them."""

from contextlib import suppress

import httpx
import pytest

from tests.support.http.uploading import BYTES, begin
from tests.support.tiers import later, soaked

pytestmark = [pytest.mark.process, pytest.mark.service]

PART = 5 * 1024 * 1024
LARGE = BYTES * 6


@pytest.mark.parametrize(
    ("place", "server"),
    [
        later("upload.begun", "moto_server"),
        later("upload.joined", "moto_as_seaweedfs_server"),
        soaked("upload.begun", "moto_as_seaweedfs_server"),
        soaked("upload.joined", "moto_server"),
    ],
)
def test_it_is_completed_by_the_next_one(broker_process, request, place, server):
    s3 = request.getfixturevalue(server)
    env = {**s3.env, "SEAWEEDQ_MULTIPART_BYTES": str(PART), "SEAWEEDQ_FAIL_AT": place}
    broker = broker_process("--store", f"s3://{s3.place()}/q", env=env)
    with httpx.Client(base_url=broker.url, trust_env=False, timeout=30) as http, suppress(httpx.TransportError):
        assert http.put("/v1/topics/t").status_code == 201
        upload = begin(http, "/v1/topics/t", len(LARGE))
        complete(http, upload)
        raise AssertionError(f"{place} was not reached")
    broker.wait_gone()
    broker.env["SEAWEEDQ_FAIL_AT"] = ""
    broker.start()
    with httpx.Client(base_url=broker.url, trust_env=False, timeout=30) as http:
        if place == "upload.begun":
            upload = begin(http, "/v1/topics/t", len(LARGE))
        complete(http, upload)
        place = f"/v1/topics/t/uploads/{upload['upload_id']}"
        assert http.post(f"{place}/complete").status_code == 200
        said = {"reference": {"upload_id": upload["upload_id"]}}
        assert http.post("/v1/topics/t/messages", json=said).status_code == 200


def complete(http, upload) -> None:
    """Send what is not there yet, if anything can be, and have it put together."""
    place = f"/v1/topics/t/uploads/{upload['upload_id']}"
    answer = http.post(f"{place}/complete")
    if answer.status_code == 200:
        return
    for part in http.post(f"{place}/parts", json={"numbers": answer.json()["missing"]}).json()["parts"]:
        start = (part["number"] - 1) * PART
        sent = httpx.put(
            part["url"], content=LARGE[start : start + PART], headers=part["headers"], timeout=30, trust_env=False
        )
        assert sent.status_code == 200
    assert http.post(f"{place}/complete").status_code == 200

"""A broker is killed at each step of a write, and started again; the job is run again, with other files: every row is
there once."""

import signal
import time
from collections.abc import Sequence
from contextlib import suppress

import httpx
import pytest

from tests.support.http.uploading_files import Importer, check_all_once, numbered, parquet
from tests.support.tiers import later, soaked

pytestmark = pytest.mark.process

ROWS, FILES = 24_000, 6
BATCH = "4000"
PLACES = [
    soaked("write.listed"),
    later("write.checking"),
    soaked("write.claimed"),
    later("write.checked"),
    soaked("write.counted"),
    later("write.running"),
    later("change.made:3"),  # behind those of the broker's journal and of the topic
    soaked("write.batch:1"),
    soaked("write.batch:3"),
    soaked("write.progress:1"),
    later("write.batch:6"),
    soaked("write.done"),
    later("change.made:4"),
    later("commit.durable:5"),
    soaked("entry.appended:2"),
]


def uploads(importer: Importer, count: int) -> list[str]:
    """The rows in so many files, uploaded for the write."""
    table, size = numbered(ROWS), ROWS // count
    return [importer.upload(parquet(table.slice(at * size, size)), write="job/1") for at in range(count)]


def put(importer: Importer, named: Sequence[str]) -> httpx.Response:
    body = {"uploads": named, "format": "parquet"}
    return importer.http.put(f"{importer.path}/writes/job/1", params={"wait_s": 60}, json=body)


@pytest.mark.parametrize("place", PLACES)
def test_killed_and_run_again(broker_process, importer_of, place):
    broker = broker_process("--flush-max-bytes", "100000", "--import-batch-rows", BATCH, start=False)
    broker.start(env={"SEAWEEDQ_FAIL_AT": place})
    importer = importer_of(broker.url)
    importer.make(initial_segments=3)
    first = uploads(importer, FILES)
    with suppress(httpx.TransportError):
        put(importer, first)
        importer.flush()
    assert broker.wait_gone() == -signal.SIGKILL
    broker.start()
    second, end = uploads(importer, 4), time.monotonic() + 60
    while (found := put(importer, second)).status_code != 200:
        assert found.status_code in (202, 503), found.text
        assert time.monotonic() < end
        time.sleep(0.1)
    told = found.json()
    assert (told["count"], told["rows"], told["state"]) == (ROWS, ROWS, "done")
    assert told["duplicate"] == (place != "write.listed")
    check_all_once(importer.column(), ROWS)
    assert put(importer, first).json() == {**told, "duplicate": True}

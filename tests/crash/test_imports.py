"""A broker is killed at each step of an import, and started again: every row is there once, in order."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.support.http.uploading_files import check_all_once, numbered, parquet
from tests.support.tiers import later, soaked

pytestmark = pytest.mark.process

ROWS = 47_500  # ten batches
BATCH = "5000"
PLACES = [
    "import.claimed",
    soaked("import.checking"),
    "import.checked",
    later("import.running"),
    soaked("import.batch:1"),
    "import.batch:3",
    later("import.batch:4"),
    "import.progress:1",
    soaked("import.batch:7"),
    soaked("import.progress:2"),
    later("import.batch:10"),
    "import.done",
    "commit.durable:9",
    "entry.appended:2",
]


@pytest.fixture(scope="module")
def file() -> bytes:
    return parquet(numbered(ROWS), row_group_size=8_000)


def _ask_and_flush(importer, upload):
    """All rows may have been taken before the first of them were due to become an entry."""
    importer.ask(upload)
    importer.flush()


@pytest.mark.parametrize("place", PLACES)
def test_killed_and_started_again(broker_process, importer_of, file, place):
    broker = broker_process("--flush-max-bytes", "200000", "--import-batch-rows", BATCH, start=False)
    broker.start(env={"SEAWEEDQ_FAIL_AT": place})
    importer = importer_of(broker.url)
    importer.make(initial_segments=3)
    upload = importer.upload(file)
    with pytest.raises(httpx.TransportError):
        _ask_and_flush(importer, upload)
    assert broker.wait_gone() == -signal.SIGKILL
    broker.start()
    if place == "import.claimed":  # nobody was told, and nothing but the claim is written
        assert importer.show(upload).status_code == 404
    else:
        importer.ended(upload)
    told = importer.ask(upload)
    assert told.status_code == 200, told.text
    assert told.json()["count"] == sum(one["count"] for one in told.json()["segments"]) == ROWS
    check_all_once(importer.column(), ROWS)


@pytest.mark.long
def test_a_reader_that_is_killed_is_started_again(broker, importer_of, file):
    importer = importer_of(broker.url)
    importer.make(initial_segments=3)
    upload = importer.upload(file)
    assert importer.ask(upload, wait_s=0).status_code == 202
    os.kill(_readers(broker.process.pid, 2)[-1], signal.SIGKILL)
    assert importer.ended(upload)["count"] == ROWS
    check_all_once(importer.column(), ROWS)


def test_a_reader_ends_with_its_broker(broker, importer_of, file):
    importer = importer_of(broker.url)
    importer.make()
    assert importer.ask(importer.upload(file), wait_s=0).status_code == 202
    (reader,) = _readers(broker.process.pid, 1)
    broker.kill()
    end = time.monotonic() + 20
    while Path(f"/proc/{reader}").exists() and Path(f"/proc/{reader}/stat").read_text().rpartition(") ")[2][0] != "Z":
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.long
def test_sigterm_lets_go_at_the_end_of_a_batch(broker, importer_of, file):
    importer = importer_of(broker.url)
    importer.make(initial_segments=3)
    upload = importer.upload(file)
    assert importer.ask(upload, wait_s=0).status_code == 202
    while importer.show(upload).json()["count"] == 0:
        time.sleep(0.02)
    broker.terminate()
    broker.start()
    assert importer.ended(upload)["count"] == ROWS
    check_all_once(importer.column(), ROWS)


def _readers(parent: int, times: int) -> list[int]:
    """The pids of the reader that a broker has, waited for; of so many after one another."""
    found: list[int] = []
    end = time.monotonic() + 30
    while len(found) < times:
        assert time.monotonic() < end
        for task in Path(f"/proc/{parent}/task").iterdir():
            with suppress(FileNotFoundError):  # a thread or a process that ends meanwhile
                for pid in map(int, (task / "children").read_text().split()):
                    if pid not in found and b"seaweedq.import_worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        found.append(pid)
                        if len(found) < times:
                            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return found

"""Imports among several brokers: whoever works on one dies, stands still, or is told to stop, and others go on."""

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.http.uploading_files import Importer, check_all_once, numbered, parquet
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.together import Together, started

pytestmark = pytest.mark.process

ROWS = 120_000  # 120 batches


@pytest.fixture
def brokers(broker_process: Callable[..., BrokerProcess]) -> Iterator[Together]:
    def make(*arguments: str, **more) -> BrokerProcess:
        return broker_process(*arguments, "--import-batch-rows", "1000", **more)

    with started(make) as together:
        together.make()
        yield together


def begun(brokers: Together, importer: Importer, batches: int = 4) -> tuple[str, int]:
    """An import that has come so far, and the broker at which it runs."""
    upload = importer.upload(parquet(numbered(ROWS)))
    assert importer.ask(upload, wait_s=0).status_code == 202
    end = time.monotonic() + 60
    while (told := importer.show(upload).json())["count"] < batches * 1000:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert told["state"] == "running"
    url = next(b["url"] for b in brokers.get(0, "/v1/cluster")["brokers"] if b["id"] == told["broker"])
    return upload, brokers.urls.index(url)


def finish(importer: Importer, upload: str) -> None:
    told = importer.ended(upload, 120)
    assert (told["state"], told["count"]) == ("done", ROWS)
    assert sum(one["count"] for one in told["segments"]) == ROWS
    check_all_once(importer.column(), ROWS)


def test_one_that_is_killed_is_followed(brokers, importer_of):
    upload, runner = begun(brokers, importer_of(brokers.urls[0]))
    other = importer_of(brokers.urls[(runner + 1) % 3])
    brokers.signal(runner)
    finish(other, upload)


@pytest.mark.long
def test_one_that_stands_still_comes_back_and_does_no_harm(brokers, importer_of):
    upload, runner = begun(brokers, importer_of(brokers.urls[0]))
    other = importer_of(brokers.urls[(runner + 1) % 3])
    before = other.show(upload).json()["broker"]
    with brokers.stopped(runner):
        end = time.monotonic() + 60
        while (told := other.show(upload)).json()["broker"] == before:
            assert told.json()["state"] == "running", "it was over before it was stopped"
            assert time.monotonic() < end
            time.sleep(0.05)
    finish(other, upload)


@pytest.mark.long
def test_one_that_drains_lets_go_and_another_goes_on(brokers, importer_of):
    upload, runner = begun(brokers, importer_of(brokers.urls[0]))
    pid = brokers.pid(runner)
    os.kill(pid, signal.SIGTERM)
    finish(importer_of(brokers.urls[(runner + 1) % 3]), upload)


def test_who_asks_elsewhere_joins(brokers, importer_of):
    upload, runner = begun(brokers, importer_of(brokers.urls[0]), batches=1)
    answer = importer_of(brokers.urls[(runner + 1) % 3]).ask(upload, wait_s=90)
    assert answer.status_code == 200, answer.text
    assert answer.json()["count"] == ROWS
    finish(importer_of(brokers.urls[(runner + 2) % 3]), upload)

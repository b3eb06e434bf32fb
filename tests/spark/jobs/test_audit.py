"""`seaweedq spark audit` has of files the findings of `seaweedq verify`, and none of a sound topic, however its files
are shared out among tasks."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from seaweedq import Client
from seaweedq.cli import verify_run
from seaweedq.cli.verify_run import Audit
from seaweedq.segments.audit import Lasts, unended
from seaweedq.segments.entry import Seal
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange
from seaweedq.spark.jobs import audit as job
from seaweedq.spark.jobs.audit import Run, share_out
from tests.cli.verify.test_damage import rewritten
from tests.support.processes.bounded_client import wait_for
from tests.support.processes.broker_process import BrokerProcess
from tests.support.segments.sound_topic import SoundTopic
from tests.support.tiers import later

pytestmark = [
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]
LEFT, RIGHT, ALL = KeyRange(0, 1000), KeyRange(1000, KEY_SPACE), KeyRange(0, KEY_SPACE)
Printed = tuple[int, str, str]


def seal(successors: Mapping[int, KeyRange]) -> Seal:
    return Seal(tuple(successors), tuple((keys.low, keys.high) for keys in successors.values()))


@pytest.fixture
def topic(tmp_path: Path) -> SoundTopic:
    """0 was split into 1 and 2, which were merged into 3."""
    topic = SoundTopic(tmp_path / "store")
    topic.write(30, 20, 25, 10, 40, 30, 20, 10, seal=seal({1: LEFT, 2: RIGHT}))
    topic.write(10, 20, segment=1, keys=LEFT, seal=seal({3: ALL}))
    topic.write(5, segment=2, keys=RIGHT, seal=seal({3: ALL}))
    topic.write(15, 25, 5, segment=3)
    return topic


def _gap(topic: SoundTopic) -> None:
    topic.files(0)[4].unlink()


def _double(topic: SoundTopic) -> None:
    last = topic.files(3)[-1]
    copy = last.with_name("00000003-0000000000000045.parquet")
    shutil.copy(last, copy)
    rewritten(copy, sequence=3, first_offset=45, next_offset=50)


def _swapped_rows(topic: SoundTopic) -> None:
    file = topic.files(0)[2]
    metadata = pq.read_metadata(file).metadata
    table = pq.read_table(file, partitioning=None).take([1, 0, *range(2, 25)])
    pq.write_table(table.replace_schema_metadata(metadata), file)
    rewritten(file)


def _wrong_range(topic: SoundTopic) -> None:
    rewritten(topic.files(1)[1], high=1001)


def _seal_without_successor(topic: SoundTopic) -> None:
    rewritten(topic.files(0)[-1], seal=seal({1: LEFT}))


def _lost_seal(topic: SoundTopic) -> None:
    topic.files(0)[-1].unlink()


def _successor_with_other_keys(topic: SoundTopic) -> None:
    rewritten(topic.files(2)[0], seal=seal({3: RIGHT}))


def _cut(topic: SoundTopic) -> None:
    for file in topic.files(0)[3:5]:
        file.write_bytes(file.read_bytes()[:-9])


FAULTS = {
    _gap: "follows entry 3, but entry 4 is expected",
    _double: "row 0 has the _offset 40, but 45 is expected",
    _swapped_rows: "row 0 has the _offset 51, but 50 is expected",
    _wrong_range: "states the high 1001, but 1000 is expected",
    _seal_without_successor: "but its seal names the successors",
    _lost_seal: "ends without a seal, but the later segment 1 has files with some of its keys",
    _successor_with_other_keys: "but the seal of segment 2 states [1000,",
    _cut: "cannot be read as a segment's file",
}


TOGETHER = (_gap, _double, _swapped_rows, _wrong_range, _seal_without_successor)


@pytest.mark.parametrize("plants", [TOGETHER, *(later((plant,)) for plant in FAULTS)])
def test_planted_faults_are_found_as_verify_finds_them(
    topic: SoundTopic, command: Callable[..., Printed], plants: Sequence[Callable[[SoundTopic], None]]
) -> None:
    for plant in plants:
        plant(topic)
    code, out, err = command("audit", "flights", "--store", f"file://{topic.root}", "-o", "json")
    assert (code, err) == (1, "")
    found = [(one["where"], one["what"]) for one in json.loads(out)["findings"]]
    verified = Audit("flights", None, f"file://{topic.root}", 1)
    assert all(verified.run())
    assert sorted(found) == sorted((one.where, one.what) for one in verified.findings)
    for plant in plants:
        assert any(FAULTS[plant] in what for _, what in found)


@pytest.mark.long
def test_a_chain_that_retention_has_emptied_meanwhile_lacks_no_seal(
    topic: SoundTopic, command: Callable[..., Printed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its seal came behind the list, and it went before the second look."""
    kept = shutil.copytree(topic.root, topic.root.with_name("kept"))
    for root, module in ((topic.root, job), (kept, verify_run)):
        folder = root / "topics" / "flights" / "segment=0"
        max(folder.iterdir()).unlink()

        def emptied(lasts: Lasts, folder: Path = folder) -> dict[int, int]:
            found = unended(lasts)
            assert 0 in found
            shutil.rmtree(folder)
            return found

        monkeypatch.setattr(module, "unended", emptied)
    code, out, _ = command("audit", "flights", "--store", f"file://{topic.root}")
    assert (code, out.splitlines()[-1]) == (0, "topic flights: sound")
    verified = Audit("flights", None, f"file://{kept}", 1)
    assert all(verified.run())
    assert not list(verified.findings)


def test_a_sound_topic_has_no_findings(topic: SoundTopic, command: Callable[..., Printed]) -> None:
    topic.files(1)[0].unlink()  # as retention does
    code, out, err = command("audit", "flights", "--store", f"file://{topic.root}")
    assert (code, err) == (0, "")
    assert "topic flights: sound" in out
    assert out.splitlines()[1].split() == ["0", "8", "0", "to", "185", "185", "none"]


@pytest.mark.long
def test_splits_merges_and_retention_leave_a_topic_sound(
    command: Callable[..., Printed], broker_process: Callable[..., BrokerProcess]
) -> None:
    broker = broker_process()
    with Client(broker.url) as client:
        client.create_topic("t", initial_segments=2)

        def publish(count: int) -> None:
            for _ in range(count):
                client.publish("t", [{"key": f"k{key}", "value": key} for key in range(50)])
                client.flush("t")

        publish(3)
        assert httpx.post(f"{broker.url}/v1/topics/t/segments/1/split", timeout=30, trust_env=False).status_code == 200
        publish(3)
        merged = httpx.post(f"{broker.url}/v1/topics/t/segments/2/merge", json={"with": 3}, timeout=30, trust_env=False)
        assert merged.status_code == 200, merged.text
        publish(2)
        client.publish("t", [{"key": "tail", "value": 0}])
        code, out, _ = command("audit", "t", "--url", broker.url)
        assert (code, out.splitlines()[-1]) == (0, "topic t: sound")
        client.update_topic("t", retention={"max_bytes": 1})
    broker.terminate()
    broker.start()  # a leader's first round is at once
    with Client(broker.url) as client:
        wait_for(lambda: client.topic("t")["start_offsets"])
    code, out, _ = command("audit", "t", "--url", broker.url, "-o", "json")
    assert (code, json.loads(out)["findings"]) == (0, [])
    assert any(one["start_offset"] for one in json.loads(out)["segments"])


def test_what_cannot_be_audited_is_said_in_a_line(
    topic: SoundTopic, command: Callable[..., Printed], broker: Any
) -> None:
    store = f"file://{topic.root}"
    for arguments, code, said in (
        (("trains", "--store", store), 1, f"the store {store} has no folder topics/trains"),
        (("t", "--store", "file:///none"), 1, "file:///none is not a store of seaweedq: it has no file _cluster.json"),
        (("nosuch", "--url", broker.url), 1, "topic 'nosuch' does not exist"),
        (
            ("t", "--conf", "memory"),
            2,
            "--conf: the value must be NAME=VALUE, such as spark.driver.memory=2g, not 'memory'",
        ),
        (("t", "--storage-options", "[]"), 2, "--storage-options: the value must be a JSON object"),
    ):
        ended, out, err = command("audit", *arguments)
        assert (ended, out) == (code, ""), err
        assert said in err
        assert len(err.splitlines()) == 1


def test_tasks_have_alike_bytes_and_each_file_once() -> None:
    sizes = {0: [10] * 20, 2: [100], 7: [1] * 50}
    shares = share_out(sizes, 4)
    taken = [(run.segment, at) for one in shares for run in one for at in range(run.start, run.stop)]
    assert taken == [(number, at) for number, there in sizes.items() for at in range(len(there))]
    assert len(shares) == 4
    assert shares[1][-1] == Run(0, 9, 18)
    assert share_out({3: []}, 4) == []

"""Verify against a running broker: sound while a producer runs, and what the broker and the files disagree on is
found."""

import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest

from seaweedq import Client
from seaweedq.segments.entry import METADATA_KEY
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.command import seaweedq
from tests.support.segments.forged import write_guarded

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def broker(broker_processes: Callable[..., BrokerProcess]) -> BrokerProcess:
    return broker_processes()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with Client(broker.url) as client:
        yield client


def verify(broker: BrokerProcess, topic: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = seaweedq("verify", topic, *(arguments or ("--url", broker.url)), env={"COLUMNS": "200"})
    assert "Traceback" not in done.stderr
    return done


def publish(client: Client, topic: str, count: int, flush: bool = True) -> None:
    client.publish(topic, [{"key": f"k{n}", "value": {"n": n}, "headers": {"h": str(n)}} for n in range(count)])
    if flush:
        client.flush(topic)


def entries(broker: BrokerProcess, topic: str) -> list[Path]:
    return sorted((broker.store / "topics" / topic).rglob("*.parquet"))


def test_files_and_tail_of_a_sound_topic(broker: BrokerProcess, client: Client) -> None:
    client.create_topic("sound", initial_segments=3)
    publish(client, "sound", 3000)
    publish(client, "sound", 500, flush=False)
    done = verify(broker, "sound")
    assert done.returncode == 0, done.stdout
    figures = [line.split() for line in done.stdout.splitlines()[1:4]]
    assert sum(int(row[-3].replace(",", "")) for row in figures) == 3000  # answered
    assert sum(int(row[-2].replace(",", "")) for row in figures) == 500  # in the tail
    assert verify(broker, "sound", "--data-dir", str(broker.data_dir)).returncode == 0


def test_expired_messages_are_not_missed(broker: BrokerProcess, client: Client) -> None:
    client.publish("short", [{"value": n, "expires_in_s": 0.001 if n % 2 else 3600} for n in range(100)])
    client.flush("short")
    done = verify(broker, "short")
    assert done.returncode == 0, done.stdout
    assert " 100 " in done.stdout
    assert " 50 " in done.stdout


def test_numbers_that_are_none_agree_with_themselves(broker: BrokerProcess, client: Client) -> None:
    import pyarrow as pa

    fields = [{"id": 1, "name": "x", "required": False, "type": "double"}]
    client.create_topic("nan", format="typed", schema={"type": "struct", "schema-id": 0, "fields": fields})
    with client.producer("nan") as producer:
        producer.send_table(pa.table({"x": [1.0, float("nan"), None, float("-inf")]}))
    client.flush("nan")
    done = verify(broker, "nan")
    assert done.returncode == 0, done.stdout


@pytest.mark.long
def test_sound_while_a_producer_runs(broker: BrokerProcess, client: Client) -> None:
    client.create_topic("busy", initial_segments=2, flush={"max_bytes": 65_536, "max_age_s": 1})
    stop, failed = threading.Event(), []

    def produce() -> None:
        try:
            with Client(broker.url) as other, other.producer("busy") as producer:
                n = 0
                while not stop.is_set():
                    producer.send({"n": n, "text": "x" * 100}, key=str(n))
                    n += 1
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        while len(entries(broker, "busy")) < 4:
            assert not failed
            stop.wait(0.02)
        for arguments in [(), (), ("--data-dir", str(broker.data_dir))]:
            done = verify(broker, "busy", *arguments)
            assert done.returncode == 0, done.stdout
    finally:
        stop.set()
        thread.join()
    assert not failed


@pytest.mark.long
def test_sound_while_segments_give_way_to_others(broker: BrokerProcess, client: Client) -> None:
    client.create_topic("changing", flush={"max_bytes": 65_536, "max_age_s": 1})
    stop, failed = threading.Event(), []

    def change() -> None:
        try:
            while not stop.is_set():
                opened = sorted((s["low"], s["id"]) for s in client.segments("changing") if s["state"] == "open")
                path = f"{broker.url}/v1/topics/changing/segments/{opened[0][1]}"
                merge = {"url": f"{path}/merge", "json": {"with": opened[1][1]}} if len(opened) > 1 else {}
                answer = httpx.post(**(merge or {"url": f"{path}/split", "json": {}}), timeout=30)
                assert answer.status_code == 200, answer.text
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        with client.producer("changing") as producer:
            for arguments in [(), ("--data-dir", str(broker.data_dir)), (), ("--data-dir", str(broker.data_dir))]:
                for n in range(2000):
                    producer.send({"n": n, "text": "x" * 100}, key=str(n))
                done = verify(broker, "changing", *arguments)
                assert done.returncode == 0, done.stdout
    finally:
        stop.set()
        thread.join()
    assert not failed
    assert len(client.segments("changing")) > 10
    done = verify(broker, "changing")
    assert done.returncode == 0, done.stdout


def test_a_file_that_was_replaced_behind_the_broker_is_found(broker: BrokerProcess, client: Client) -> None:
    publish(client, "forged", 100)
    httpx.get(f"{broker.url}/v1/topics/forged/segments/0/messages", timeout=30)  # now in its cache
    file = entries(broker, "forged")[1]
    table, metadata = pq.read_table(file, partitioning=None), pq.read_metadata(file).metadata
    values = table["value"].to_pylist()
    values[42] = json.dumps({"n": -1})
    at = table.schema.get_field_index("value")
    table = table.set_column(at, table.schema.field(at), [values])
    with pq.ParquetWriter(file, table.schema, write_page_checksum=True) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({METADATA_KEY: metadata[METADATA_KEY]})
    write_guarded(file, file.read_bytes())
    assert verify(broker, "forged", "--data-dir", str(broker.data_dir)).returncode == 0
    done = verify(broker, "forged")
    assert done.returncode == 1
    assert "a different value at offset 42" in done.stdout


def test_a_missing_last_entry_is_found_though_the_broker_has_its_rows(broker: BrokerProcess, client: Client) -> None:
    publish(client, "short-chain", 100)
    publish(client, "short-chain", 100)
    httpx.get(f"{broker.url}/v1/topics/short-chain/segments/0/messages?offset=150", timeout=30)
    entries(broker, "short-chain")[-1].unlink()
    done = verify(broker, "short-chain")
    assert done.returncode == 1
    assert "ends at offset 100 in the files, but between 200 and 200 according to the broker" in done.stdout


def test_a_damaged_page_is_found_and_never_served(broker: BrokerProcess, client: Client) -> None:
    publish(client, "flipped", 2000)
    file = entries(broker, "flipped")[-1]
    data = bytearray(file.read_bytes())
    column = pq.read_metadata(file).row_group(0).column(10)
    assert column.path_in_schema == "value"
    at = (column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size - 20
    data[at] ^= 1
    file.write_bytes(data)
    done = verify(broker, "flipped")
    assert done.returncode == 1
    assert "row group 0" in done.stdout
    answer = httpx.get(f"{broker.url}/v1/topics/flipped/segments/0/messages", timeout=30)
    assert (answer.status_code, answer.json()["type"]) == (500, "/problems/chain-damaged")


def test_files_of_a_segment_that_the_broker_does_not_know_are_found(broker: BrokerProcess, client: Client) -> None:
    publish(client, "grown", 10)
    first = entries(broker, "grown")[0]
    shutil.copytree(first.parent, first.parent.with_name("segment=9"))
    done = verify(broker, "grown")
    assert done.returncode == 1
    assert "segment=9/: is in files, but the broker does not know the segment" in done.stdout


def test_what_cannot_be_looked_at_is_told_apart_from_damage(broker: BrokerProcess) -> None:
    assert verify(broker, "no-such-topic").returncode == 2
    done = verify(broker, "any", "--url", "http://127.0.0.1:1")
    assert done.returncode == 2
    assert "could not audit" in done.stderr

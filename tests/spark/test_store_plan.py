"""The plan of a read from the store alone: whole chains, pins from the last footers. Without Spark, without brokers."""

import shutil
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from seaweedq import Client
from seaweedq.client.core.table import Rows
from seaweedq.errors import ChainDamaged, ClientError, TopicNotFound
from seaweedq.segments.entry import ENTRIES
from seaweedq.spark.topic_table import plan_of_store, topic_folder
from tests.support.processes.broker_process import BrokerProcess

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def store(broker_processes: Callable[..., BrokerProcess]) -> Path:
    """The store of a dead broker: the topic `t` has three files of ten rows in a segment, and five rows in none."""
    broker = broker_processes()
    with Client(broker.url) as client:
        client.create_topic("t", initial_segments=1)
        for first in (0, 10, 20):
            client.publish("t", [{"value": n} for n in range(first, first + 10)])
            client.flush("t")
        client.publish("t", [{"value": n} for n in range(5)])
        fields = [{"id": 1, "name": name, "type": "int"} for name in ("k", "n", "m")]
        client.create_topic("typed", format="typed", schema={"fields": fields[:1]})
        for version, one in enumerate(fields[1:]):
            client.evolve_schema("typed", {"fields": [one]}, if_schema_id=version)
        client.publish("typed", {"value": {"m": 1}})
        client.flush("typed")
    broker.kill()
    return broker.store


@pytest.fixture
def chain(store: Path) -> Iterator[list[Path]]:
    """The files of the segment, which are as they were after the test."""
    files = sorted((store / "topics" / "t").rglob("*.parquet"))
    held = {file: file.read_bytes() for file in files}
    yield files
    for file, data in held.items():
        file.write_bytes(data)


def planned(store: Path, **bounds: dict[int, int]) -> tuple[Rows, ...]:
    folder = topic_folder(store.as_uri(), "t")
    return plan_of_store(folder, {}, bounds.get("starting"), bounds.get("ending"), None)[0].files


def number(store: Path) -> int:
    return int(next((store / "topics" / "t").iterdir()).name.partition("=")[2])


def test_the_pins_are_the_ends_of_the_chains(store: Path) -> None:
    segment = number(store)
    assert planned(store) == (Rows(segment, 0, 30),)
    assert planned(store, starting={segment: 5}, ending={segment: 12}) == (Rows(segment, 5, 12),)
    with pytest.raises(ValueError, match=r"must be from 0 to 30 \(the segment's end\)"):
        planned(store, ending={segment: 31})
    schema = plan_of_store(topic_folder(str(store), "t"), {}, None, None, None)[1]
    assert (schema.names[0], schema.names[-2:]) == ("_offset", ["value", "segment"])


def test_what_retention_took_from_the_beginning(store: Path, chain: list[Path]) -> None:
    for file in chain[:2]:
        file.unlink()
    assert planned(store) == (Rows(number(store), 10, 30),)


def test_a_gap_is_never_read_over(store: Path, chain: list[Path]) -> None:
    """The rows before it may be left over from retention, or those in it lost."""
    chain[2].unlink()
    with pytest.raises(ChainDamaged, match=r"00000001-0+\.parquet and 00000003-0+20\.parquet are missing"):
        planned(store)


def test_files_of_others(store: Path, chain: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    """They are left out, as brokers do; only a folder that Spark would stumble over is an error."""
    folder = store / "topics" / "t"
    expected = planned(store)
    assert not caplog.messages
    (folder / "_spark").mkdir()
    others = [folder / "notes.txt", chain[0].with_name("copy.parquet"), folder / "_spark" / "x"]
    for foreign in others:
        foreign.write_bytes(chain[0].read_bytes())
    assert planned(store) == expected
    assert [text.partition(" that seaweedq did not write: ")[2] for text in caplog.messages] == [
        str(sorted(str(other.relative_to(folder)) for other in others))
    ]
    for place in ("other/x.parquet", f"{chain[0].parent.name}/sub/{chain[0].name}", "segment=x/x", "segment=07/x"):
        foreign = folder / place
        foreign.parent.mkdir()
        foreign.write_text("x")
        with pytest.raises(
            ClientError, match=f"{place!r} at .*/topics/t is in a folder that does not belong to a segment"
        ):
            planned(store)
        foreign.unlink()
        foreign.parent.rmdir()
    for foreign in others:
        foreign.unlink()
    for file in chain:
        file.unlink()
    (folder / "notes.txt").write_text("x")
    with pytest.raises(TopicNotFound, match="no topic files were found at"):
        planned(store)
    (folder / "notes.txt").unlink()


def test_the_glob_of_entries_is_the_pattern_of_their_names(chain: list[Path]) -> None:
    assert all(fnmatchcase(file.name, ENTRIES) for file in chain)
    for other in ("copy.parquet", "00000001-0000000000000000.parquet.crc", "0000001-00000000000000000.parquet"):
        assert not fnmatchcase(other, ENTRIES)


def test_files_of_a_later_version_than_that_of_the_markers(store: Path, tmp_path: Path) -> None:
    """The listing was made before the marker, and behind it a broker wrote files."""
    shutil.copytree(store / "topics" / "typed", tmp_path / "topics" / "typed")
    folder = topic_folder(tmp_path.as_uri(), "typed")
    assert plan_of_store(folder, {}, None, None, None)[1].names[-2:] == ["m", "segment"]
    min((tmp_path / "topics" / "typed" / "segment=-1").iterdir()).unlink()
    with pytest.raises(ClientError, match="changed while the topic's files were listed; read the topic again"):
        plan_of_store(folder, {}, None, None, None)


def test_no_topic(store: Path) -> None:
    with pytest.raises(TopicNotFound, match="no topic files were found at"):
        plan_of_store(topic_folder(store.as_uri(), "nothing"), {}, None, None, None)

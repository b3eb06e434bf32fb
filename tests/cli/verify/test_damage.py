"""Every kind of damage on real files is found, by the command line as a user would call it; sound files pass."""

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from seaweedq.segments.entry import GUARD, METADATA_KEY, EntryMetadata, Seal
from tests.support.segments.forged import write_guarded
from tests.support.segments.sound_topic import SoundTopic

Verify = Callable[..., tuple[int, str]]


@pytest.fixture
def topic(tmp_path: Path) -> SoundTopic:
    topic = SoundTopic(tmp_path / "store")
    topic.write(0, 300, 200, 250)
    return topic


def found(verify: Verify, *expected: str) -> None:
    code, printed = verify()
    assert code == 1, printed
    assert "DAMAGED" in printed
    for each in expected:
        assert each in printed


def rewritten(file: Path, **changes: object) -> None:
    """The entry with its metadata changed, and the checksum of its new footer, all else the same."""
    table = pq.read_table(file, partitioning=None)
    metadata = msgspec.json.decode(pq.read_metadata(file).metadata[METADATA_KEY], type=EntryMetadata)
    metadata = msgspec.structs.replace(metadata, **changes)
    with pq.ParquetWriter(file, table.schema, compression="zstd", write_page_checksum=True) as writer:
        if table.num_rows:
            writer.write_table(table)
        writer.add_key_value_metadata({METADATA_KEY: msgspec.json.encode(metadata)})
    write_guarded(file, file.read_bytes())


def test_a_sound_topic_passes(verify: Verify) -> None:
    code, printed = verify()
    assert code == 0, printed
    assert "topic flights: sound" in printed
    assert "0 to 750" in printed


@pytest.mark.default
def test_a_long_entry_with_several_row_groups_passes(topic: SoundTopic, verify: Verify) -> None:
    topic.write(140_000)
    assert verify()[0] == 0


def test_retention_may_have_taken_the_oldest_entries(topic: SoundTopic, verify: Verify) -> None:
    for file in topic.files()[:2]:
        file.unlink()
    code, printed = verify()
    assert code == 0, printed
    assert "300 to 750" in printed


@pytest.mark.default
def test_every_flipped_byte_of_the_pages_is_found(topic: SoundTopic, verify: Verify) -> None:
    file = topic.files()[2]
    sound = file.read_bytes()
    footer = len(sound) - pq.read_metadata(file).serialized_size - 8
    for at in range(5, first_index_byte(file, footer), 97):
        file.write_bytes(sound[:at] + bytes([sound[at] ^ 0x10]) + sound[at + 1 :])
        assert verify()[0] == 1, f"the flip at {at} was not found"
    file.write_bytes(sound)
    assert verify()[0] == 0


def first_index_byte(file: Path, footer: int) -> int:
    """Where the pages end: column and offset indexes follow, which repeat what the pages say."""
    group = pq.read_metadata(file).row_group(0)
    ends = []
    for number in range(group.num_columns):
        column = group.column(number)
        start = column.dictionary_page_offset or column.data_page_offset
        ends.append(start + column.total_compressed_size)
    assert max(ends) <= footer
    return max(ends)


@pytest.mark.parametrize("left", [0, 3, 100, -1, -9])
def test_a_cut_file_is_found(topic: SoundTopic, verify: Verify, left: int) -> None:
    file = topic.files()[1]
    file.write_bytes(file.read_bytes()[:left])
    found(verify, file.name)
    printed = verify()[1]
    assert "1 findings" in printed, "the sound entry behind it was blamed too"


def test_a_missing_middle_entry_is_found(topic: SoundTopic, verify: Verify) -> None:
    topic.files()[2].unlink()
    found(verify, "00000003-0000000000000500.parquet: follows entry 1")


def test_a_copy_under_the_next_name_is_found(topic: SoundTopic, verify: Verify) -> None:
    last = topic.files()[-1]
    shutil.copy(last, last.with_name("00000004-0000000000000750.parquet"))
    found(
        verify,
        "00000004-0000000000000750.parquet",
        "the metadata has file number 3 and first offset 500",
    )


def test_a_convincing_copy_with_old_offsets_is_found(topic: SoundTopic, verify: Verify) -> None:
    last = topic.files()[-1]
    copy = last.with_name("00000004-0000000000000750.parquet")
    shutil.copy(last, copy)
    rewritten(copy, sequence=4, first_offset=750, next_offset=1000)
    found(verify, "row 0 has the _offset 500, but 750 is expected")


def test_two_entries_with_one_sequence_are_found(topic: SoundTopic, verify: Verify) -> None:
    last = topic.files()[-1]
    copy = last.with_name("00000003-0000000000000501.parquet")
    shutil.copy(last, copy)
    rewritten(copy, first_offset=501, next_offset=751)
    found(verify, "00000003-0000000000000501.parquet: follows entry 3")


def test_swapped_entries_are_found(topic: SoundTopic, verify: Verify) -> None:
    _, one, two, _ = topic.files()
    aside = one.with_name("aside")
    one.rename(aside)
    two.rename(one)
    aside.rename(two)
    found(verify, f"{one.name}: ", f"{two.name}: ")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"topic": "trains"}, "states the topic 'trains', but 'flights' is expected"),
        ({"cluster": "d" * 32}, "states the cluster"),
        ({"segment": 7}, "states the segment 7, but 0 is expected"),
        ({"low": 5}, "states the low 5, but 0 is expected"),
        ({"high": 5}, "states the high 5"),
        ({"next_offset": 501}, "states 201 rows, but the file contains 200"),
        ({"sequence": 9}, "the metadata has file number 9 and"),
        ({"max_timestamp_us": 0}, "newest"),
        ({"max_timestamp_us": 1 << 60}, "below that of the entry before"),
        ({"term": (0, 9)}, "is of the term (0, 9), below that of the entry before it, (1, 1)"),
        ({"producers": b"junk"}, "the producer tables cannot be read"),
        ({"seal": Seal((1,), ((0, 10),))}, "is sealed, but is not the last entry"),
    ],
)
def test_changed_metadata_is_found(
    topic: SoundTopic, verify: Verify, changes: dict[str, object], expected: str
) -> None:
    rewritten(topic.files()[2], **changes)
    found(verify, expected)


def test_row_groups_that_a_point_read_would_miss_are_found(topic: SoundTopic, verify: Verify) -> None:
    file = topic.files()[2]
    table, metadata = pq.read_table(file, partitioning=None), pq.read_metadata(file).metadata
    with pq.ParquetWriter(file, table.schema) as writer:
        writer.write_table(table, row_group_size=150)
        writer.add_key_value_metadata({METADATA_KEY: metadata[METADATA_KEY]})
    write_guarded(file, file.read_bytes())
    found(verify, "row groups of [150, 50] rows")


def test_statistics_that_would_hide_rows_are_found(topic: SoundTopic, verify: Verify) -> None:
    file = topic.files()[2]
    data, last = file.read_bytes(), (499).to_bytes(8, "little")
    footer = len(data) - pq.read_metadata(file).serialized_size - 8
    assert last in data[footer:]
    rows, wrong = data[: footer - GUARD.size], data[footer:].replace(last, (400).to_bytes(8, "little"))
    file.write_bytes(data[:footer] + wrong)
    found(verify, "the footer was changed after it was written")
    write_guarded(file, rows + wrong)  # as a writer with a defect, whose footer is as it was written
    assert pq.read_table(file, partitioning=None).num_rows == 200
    found(verify, "statistics")


def test_a_footer_without_its_checksum_is_found(topic: SoundTopic, verify: Verify) -> None:
    file = topic.files()[2]
    data = file.read_bytes()
    footer = len(data) - pq.read_metadata(file).serialized_size - 8
    file.write_bytes(data[: footer - GUARD.size] + data[footer:])
    assert pq.read_table(file, partitioning=None).num_rows == 200
    found(verify, "the footer was changed after it was written")
    write_guarded(file, file.read_bytes())
    assert file.read_bytes() == data
    assert verify()[0] == 0


def test_another_schema_is_found(topic: SoundTopic, verify: Verify) -> None:
    file = topic.files()[2]
    table, metadata = pq.read_table(file, partitioning=None), pq.read_metadata(file).metadata
    table = table.rename_columns([*table.column_names[:-1], "worth"])
    with pq.ParquetWriter(file, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({METADATA_KEY: metadata[METADATA_KEY]})
    write_guarded(file, file.read_bytes())
    found(verify, "other columns than the entries before")


@pytest.mark.parametrize(
    "stray",
    [
        "segment=0/part-0.parquet",
        "segment=0/00000004-0000000000000750.parquet.tmp",
        "segment=00/00000000-0000000000000000.parquet",
        "segment=-1/00000000-0000000000000000.parquet",
        "segment=0/more/00000004-0000000000000750.parquet",
        "_SUCCESS",
        ".hidden",
    ],
)
def test_a_stray_file_is_found(topic: SoundTopic, verify: Verify, stray: str) -> None:
    path = topic.root / "topics/flights" / stray
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x")
    found(verify, f"{stray}: is not an entry")


def test_what_is_not_there_cannot_be_verified(topic: SoundTopic, verify: Verify, tmp_path: Path) -> None:
    assert verify("--store", f"file://{tmp_path}/nowhere")[0] == 2
    shutil.rmtree(topic.root / "topics/flights")
    assert verify()[0] == 2


def test_a_sample_reads_less_and_still_finds_what_names_and_metadata_tell(topic: SoundTopic, verify: Verify) -> None:
    code, printed = verify("--sample", "0")
    assert code == 0, printed
    topic.files()[2].unlink()
    assert verify("--sample", "0")[0] == 1

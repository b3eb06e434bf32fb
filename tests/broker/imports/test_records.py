"""What an import decides, without I/O: batches, progress, states, who adopts."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seaweedq.broker.imports import records
from seaweedq.broker.imports.reader_protocol import Cutter
from seaweedq.broker.imports.reader_protocol import sizes as sizes_of
from seaweedq.broker.publish.batch_split import AppendedRows
from seaweedq.coordination.records import ImportedSegment, ImportProblem, ImportRecord
from seaweedq.segments.layout import Format, Layout
from seaweedq.segments.rows import assemble, microseconds, together
from tests.support.tiers import examples

LAYOUT = Layout.from_format(Format.BYTES)
RECORD = ImportRecord("parquet", False, "n", 1, "s", 0, 1000, 10, 100, "b")
SIZES = st.lists(st.integers(0, 800), min_size=1, max_size=40)


def rows_of(sizes: list[int], keyed: bool = False) -> pa.RecordBatch:
    values = pa.array([b"x" * size for size in sizes], pa.binary())
    key = pa.array([str(n) for n in range(len(sizes))]) if keyed else None
    return assemble(LAYOUT, microseconds(np.zeros(len(sizes), np.int64)), key, None, None, [values])


def batches(pieces: list[pa.RecordBatch], batch_rows: int = 7) -> list[pa.RecordBatch]:
    cutter = Cutter(LAYOUT, batch_rows, 1000)
    return [batch for piece in pieces for batch in cutter.cut(piece)] + list(cutter.end())


@settings(max_examples=examples(30), deadline=None)
@given(SIZES, st.lists(st.integers(1, 10), min_size=1), st.data())
def test_batches_are_a_function_of_the_rows(sizes, steps, data):
    rows = rows_of(sizes)
    whole = batches([rows])
    assert sum(batch.num_rows for batch in whole) == len(sizes)
    assert all(batch.num_rows == 1 or (batch.num_rows <= 7 and sizes_of(batch).sum() <= 1000) for batch in whole)
    pieces, at = [], 0
    while at < len(sizes):
        step = steps[len(pieces) % len(steps)]
        pieces.append(rows.slice(at, step))
        at += step
    assert [b.num_rows for b in batches(pieces)] == [b.num_rows for b in whole]
    ends = np.cumsum([0, *(batch.num_rows for batch in whole)]).tolist()
    skipped = data.draw(st.integers(0, len(whole) - 1))
    assert [b.num_rows for b in batches([rows.slice(ends[skipped])])] == [b.num_rows for b in whole[skipped:]]


def test_what_a_row_counts_does_not_depend_on_the_rows_beside_it():
    keyless, keyed = rows_of([5]), rows_of([7], keyed=True)
    both = together([keyless, keyed], LAYOUT)
    assert sizes_of(both).tolist() == [*sizes_of(keyless), *sizes_of(keyed)]


def test_a_column_that_only_some_have_is_null_in_the_others():
    (batch,) = batches([rows_of([1, 2]), rows_of([3], keyed=True)])
    assert batch.column("_key").to_pylist() == [None, None, "0"]
    assert batch.schema.equals(LAYOUT.rows(1))


def test_progress_adds_up_and_forgets_nothing():
    one = records.with_progress(
        RECORD, 5, [AppendedRows(3, 10, np.arange(2), False), AppendedRows(1, 0, np.arange(3), False)]
    )
    two = records.with_progress(one, 4, [AppendedRows(3, 20, np.arange(4), True)])
    assert two.rows_done == 9
    assert two.segments == (ImportedSegment(1, 0, 2, 3), ImportedSegment(3, 10, 23, 6))


@pytest.mark.parametrize("state", records.NEXT)
@pytest.mark.parametrize("to", records.NEXT)
def test_states(state, to):
    record = ImportRecord("parquet", False, "n", 1, "s", 0, 1000, 10, 100, "b", state=state)
    allowed = {("checking", "running"), ("checking", "failed"), ("running", "done"), ("running", "failed")}
    if (state, to) in allowed:
        assert records.with_state(record, to).state == to
    else:
        with pytest.raises(ValueError):
            records.with_state(record, to)
    assert records.is_over(record) == (state in ("done", "failed"))


def test_one_that_has_failed_is_nobodys_and_says_why():
    failed = records.ended(RECORD, "b", 5, ImportProblem("invalid-import", "why"))
    assert (failed.state, failed.broker, failed.problem.detail) == ("failed", None, "why")


def test_a_record_stays_a_day_longer_than_its_upload_could_be_claimed():
    done = records.with_state(records.with_state(RECORD, "running"), "done")
    assert not records.is_outlived(done, 1000 + records.KEPT_US)
    assert records.is_outlived(done, 1001 + records.KEPT_US)
    assert not records.is_outlived(RECORD, 10 * records.KEPT_US)


def test_one_adopts_and_when_it_goes_the_others_keep_theirs():
    uploads, brokers = [f"u{n}" for n in range(300)], ["a", "b", "c"]
    first = {upload: records.adopter(upload, brokers) for upload in uploads}
    assert set(first.values()) == set(brokers)
    second = {upload: records.adopter(upload, ["c", "a"]) for upload in uploads}
    assert all(second[upload] == first[upload] for upload in uploads if first[upload] != "b")
    assert records.adopter("u", []) is None


def test_progress_is_written_before_a_part_could_forget():
    from seaweedq.segments.keyrange import KeyRange
    from seaweedq.segments.producers import Duplicate, New, ProducerTable

    table = ProducerTable(0, KeyRange(0, 100))
    for batch in range(20):  # a zombie that began SAVED_EVERY batches behind the last progress of which anybody knows
        table.record("p", batch * 10, batch * 10 + 9, batch * 10, 10, batch)
    for behind in range(records.SAVED_EVERY):
        batch = 19 - behind
        assert isinstance(table.judge("p", batch * 10, batch * 10 + 9, 10), Duplicate)
    assert not isinstance(table.judge("p", 0, 9, 10), New)

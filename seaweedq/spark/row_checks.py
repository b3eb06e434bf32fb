"""The rows that a write takes: columns and types are checked on the driver before a task begins, rows by tasks before
they are uploaded. What a topic takes is decided by the brokers' own code (`seaweedq.rows`), and by brokers again; here
it is told as Spark's user has to change it. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seaweedq.client.core.table import table_schema
from seaweedq.errors import InvalidRequest, UnreadableBody
from seaweedq.rows.arrow_bodies import InvalidRow, check_columns
from seaweedq.rows.checking import check_rows, topic_intake
from seaweedq.rows.intake import Intake
from seaweedq.segments.layout import Format
from seaweedq.spark.compat import arrow_schema, spark_schema_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

READ_ONLY = ("_offset", "segment", "_reference")  # columns that a read has, and no write takes
QUEUE_COLUMNS = ("_key", "_timestamp", "_headers", "_expires")
INVALID_COLUMNS = pa.schema([("_key", pa.string()), ("value", pa.string())])


def check_frame(schema: "StructType", facts: Mapping[str, Any], now_us: int) -> None:
    """Raises ValueError, with the change that helps, unless a topic takes these columns; `facts` is the topic as a
    broker shows it."""
    topic = table_schema(facts)
    taken = [name for name in topic.names if name not in READ_ONLY]
    if given := [name for name in READ_ONLY if name in schema.names]:
        names = ", ".join(map(repr, given))
        raise ValueError(f"the topic sets the columns {names} itself; remove them with df.drop({names})")
    for name in schema.names:
        if name not in taken:
            raise ValueError(_unknown(name, schema.names, taken, facts))
        if schema.names.count(name) > 1:
            raise ValueError(f"the column {name!r} appears {schema.names.count(name)} times")
    intake = topic_intake(facts, now_us)
    for field in schema.fields:
        if wrong := _misfit(field, topic.field(field.name).type, intake):
            raise ValueError(f"the column {field.name!r} {wrong}: write {_cast(field, topic, facts)}")
    try:
        check_columns(_as_written(arrow_schema(schema), intake), intake)
    except InvalidRequest as error:
        raise ValueError(f"{error.detail}; the columns are {', '.join(schema.names)}{_as_value(facts)}") from None


def _unknown(name: str, given: Sequence[str], taken: Sequence[str], facts: Mapping[str, Any]) -> str:
    same = [each for each in taken if each.lower() == name.lower()]
    if renamed := same or [each for each in QUEUE_COLUMNS if each == f"_{name}"]:
        return (
            f"the column {name!r} is called {renamed[0]!r} in the topic: write df.withColumnRenamed({name!r}, "
            f"{renamed[0]!r})"
        )
    others = ", ".join(repr(each) for each in given if each not in taken)
    has = f"the topic has no column {name!r}; it takes {', '.join(taken)}"
    return (
        f"{has}: write df.drop({others})"
        if "value" in given
        else f"{has}{_as_value(facts) or f': write df.drop({others})'}"
    )


def _as_value(facts: Mapping[str, Any]) -> str:
    if facts["format"] != Format.JSON:
        return ""
    return ": a json topic needs each row as JSON, such as df.selectExpr('to_json(struct(*)) AS value')"


def _misfit(field: "StructField", wanted: pa.DataType, intake: Intake) -> str:
    """Returns why a column's type is not taken, empty if it is."""
    from pyspark.sql.types import StructType

    try:
        column = _as_written(arrow_schema(StructType([field])), intake)[0]
    except Exception:  # Spark's own, of several classes: a type that Arrow does not have
        return f"is {field.dataType.simpleString()}, which cannot be converted to {wanted}"
    try:
        check_columns(pa.schema([column]), intake)
    except InvalidRequest as error:
        return str(error.fields["reason"]) if error.fields.get("field") == field.name else ""
    return ""


def _cast(field: "StructField", topic: pa.Schema, facts: Mapping[str, Any]) -> str:
    kind = spark_schema_of(topic, [field.name])[0].dataType.simpleString()
    column = f"df[{field.name!r}]"
    nested = field.dataType.typeName() in ("struct", "map", "array", "variant")
    as_json = nested and field.name == "value" and facts["format"] == Format.JSON
    return f"df.withColumn({field.name!r}, {f'to_json({column})' if as_json else f'{column}.cast({kind!r})'})"


def judge(batch: pa.RecordBatch, intake: Intake) -> tuple[pa.RecordBatch, list[InvalidRow]]:
    """Returns the valid rows as they are written, and the others, by their numbers in the batch."""
    batch, wrong = _with_fixed(batch, intake)
    found = {each.row: each for each in [*_refused(batch, 0, intake), *wrong]}
    if not found:
        return batch, []
    taken = np.ones(batch.num_rows, bool)
    taken[list(found)] = False
    return batch.filter(pa.array(taken)), [found[row] for row in sorted(found)]


def _refused(batch: pa.RecordBatch, first: int, intake: Intake) -> list[InvalidRow]:
    """Returns the invalid rows of a batch. Of one that cannot be decoded nothing names a row, so halves are checked."""
    count = batch.num_rows
    if not count:
        return []
    try:
        return [InvalidRow(first + each.row, *each[1:]) for each in check_rows(batch, intake)]
    except (InvalidRequest, UnreadableBody) as error:
        if count == 1:
            return [InvalidRow(first, error.fields.get("field"), error.detail)]
    half = count // 2
    return _refused(batch.slice(0, half), first, intake) + _refused(batch.slice(half), first + half, intake)


def _as_written(schema: pa.Schema, intake: Intake) -> pa.Schema:
    """Returns the columns of a frame as they are written: Spark has no binary of a fixed size."""
    for at, wanted in _fixed(schema, intake):
        schema = schema.set(at, pa.field(wanted.name, wanted.type))
    return schema


def _with_fixed(batch: pa.RecordBatch, intake: Intake) -> tuple[pa.RecordBatch, list[InvalidRow]]:
    wrong = []
    for at, wanted in _fixed(batch.schema, intake):
        column, size = batch.column(at), wanted.type.byte_width
        other = pc.not_equal(pc.binary_length(column), size).fill_null(False)
        for row in np.flatnonzero(other.to_numpy(zero_copy_only=False)):
            has = len(column[int(row)].as_buffer())
            wrong.append(InvalidRow(int(row), wanted.name, f"{wanted.name} has {has} bytes, but needs {size}"))
        fitting = pc.if_else(other, pa.scalar(None, column.type), column)
        batch = batch.set_column(at, wanted.name, fitting.cast(wanted.type))
    return batch, wrong


def _fixed(schema: pa.Schema, intake: Intake) -> list[tuple[int, pa.Field]]:
    fixed = {field.name: field for field in intake.layout.values if pa.types.is_fixed_size_binary(field.type)}
    return [
        (at, fixed[field.name])
        for at, field in enumerate(schema)
        if field.name in fixed and (pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type))
    ]


def invalid_as_json(batch: pa.RecordBatch, wrong: Sequence[InvalidRow], topic: str, limit_bytes: int) -> pa.RecordBatch:
    """Returns invalid rows as messages of a json topic: `topic`, `column`, `reason`, and `row`, which is null if the
    message would be over the limit. They keep their `_key`."""
    names = batch.schema.names
    keys, values = [], []
    for each in wrong:
        row = {name: _plain(batch.column(at)[each.row]) for at, name in enumerate(names)}
        told = {"topic": topic, "column": each.column, "reason": each.reason}
        value = msgspec.json.encode({**told, "row": row})
        if len(value) > limit_bytes:
            value = msgspec.json.encode({**told, "row": None, "bytes": len(value)})
        key = row.get("_key")
        keys.append(key if key is not None and len(key.encode()) <= limit_bytes else None)
        values.append(value.decode())
    return pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.string()), pa.array(values, pa.string())], schema=INVALID_COLUMNS
    )


def _plain(scalar: pa.Scalar) -> Any:
    """Returns a value that JSON has. Spark has text that is not UTF-8, and times that Python does not have."""
    if scalar.is_valid and pa.types.is_string(scalar.type):
        return scalar.as_buffer().to_pybytes().decode("utf-8", "replace")
    try:
        return scalar.as_py(maps_as_pydicts="lossy")
    except (ValueError, OverflowError):
        return getattr(scalar, "value", None)

"""The calls that open a typed topic's directory without a broker, one for each reader: `topic show` prints them.
A renamed field is the first of its names that a row has."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seaweedq.cli.shared.common import location

_POLARS = (
    'hive_partitioning=True, missing_columns="insert", extra_columns="ignore", '
    'cast_options=pl.ScanCastOptions(integer_cast="upcast", float_cast="upcast")'
)


def calls(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the readers and their Python statements, after which `rows` has the topic's rows; none for a topic
    without a schema, which every reader opens as it is."""
    if not facts.get("schema"):
        return []
    from seaweedq.segments.evolution import aliases_of, distinct

    place, aliases = location(facts["path"]), aliases_of(facts["schema"])
    plain = place.replace("s3a://", "s3://", 1)
    # engines of SQL take names that differ by case alone for one
    of_sql = {name: told for name, ones in aliases.items() if (told := distinct(name, ones))}
    readers = (
        ("pyarrow", _pyarrow(plain, aliases)),
        ("DuckDB", _duckdb(plain, of_sql)),
        ("Polars", _polars(plain, aliases)),
        ("Spark", _spark(place, of_sql)),
    )
    return [(name, "\n".join(found)) for name, found in readers]


def _pyarrow(place: str, aliases: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield f'rows = ds.dataset({place!r}, partitioning="hive")'
    if aliases:
        more = ", ".join(f"rows.schema.field({name!r}).with_name({one!r})" for name, one in _pairs(aliases))
        yield f'both = ds.dataset({place!r}, pa.schema([*rows.schema, {more}]), partitioning="hive")'
        firsts = ", ".join(
            f"{name!r}: pc.coalesce({_called('ds.field', name, ones)})" for name, ones in aliases.items()
        )
        yield f"rows = both.to_table({{**{{name: ds.field(name) for name in rows.schema.names}}, {firsts}}})"


def _duckdb(place: str, aliases: Mapping[str, Sequence[str]]) -> Iterator[str]:
    files = f"{place}/**/*.parquet".replace("'", "''")
    shown, rows = "*", f"read_parquet('{files}', hive_partitioning = true, union_by_name = true)"
    if aliases:
        nulls = ", ".join(f"NULL AS {_quoted(one)}" for _, one in _pairs(aliases))  # retention may take all files of it
        rows = f"(FROM {rows} UNION ALL BY NAME SELECT {nulls} WHERE false)"
        gone = ", ".join(_quoted(one) for _, one in _pairs(aliases))
        firsts = (
            f"coalesce({', '.join(map(_quoted, (name, *ones)))}) AS {_quoted(name)}" for name, ones in aliases.items()
        )
        shown = f"* EXCLUDE ({gone}) REPLACE ({', '.join(firsts)})"
    statement = f"SELECT {shown} FROM {rows}"
    yield f"rows = duckdb.sql({statement!r})"


def _polars(place: str, aliases: Mapping[str, Sequence[str]]) -> Iterator[str]:
    files = f"{place}/**/*.parquet"
    yield f"rows = pl.scan_parquet({files!r}, {_POLARS})"
    if aliases:
        more = ", ".join(f"{one!r}: kinds[{name!r}]" for name, one in _pairs(aliases))
        firsts = ", ".join(
            f"pl.coalesce({', '.join(map(repr, (name, *ones)))}).alias({name!r})" for name, ones in aliases.items()
        )
        yield "kinds = rows.collect_schema()"
        yield f"both = pl.scan_parquet({files!r}, schema={{**kinds, {more}}}, {_POLARS})"
        yield f"rows = both.with_columns({firsts}).select(*kinds)"


def _spark(place: str, aliases: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield f"rows = spark.read.parquet({place!r})"
    if aliases:
        more = "".join(f".add({one!r}, rows.schema[{name!r}].dataType)" for name, one in _pairs(aliases))
        firsts = ", ".join(
            f"{name!r}: coalesce({', '.join(map(repr, (name, *ones)))})" for name, ones in aliases.items()
        )
        yield "names = rows.columns"
        yield f"both = spark.read.schema(rows.schema{more}).parquet({place!r})"
        yield f"rows = both.withColumns({{{firsts}}}).select(names)"


def _pairs(aliases: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    return [(name, one) for name, ones in aliases.items() for one in ones]


def _called(function: str, name: str, ones: Sequence[str]) -> str:
    return ", ".join(f"{function}({one!r})" for one in (name, *ones))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

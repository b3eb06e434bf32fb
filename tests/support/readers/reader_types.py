"""How each library names the type of each column. Versions differ in some names: those are given with a bar."""

from typing import NamedTuple

import pyarrow as pa


class Names(NamedTuple):
    """One type in each library."""

    pyarrow: str
    spark: str
    duckdb: str
    polars: str
    pandas: str

    def of(self, library: str) -> list[str]:
        """The names that a library may give."""
        names: str = getattr(self, library)
        return names.split("|")


LONG = Names("int64", "bigint", "BIGINT", "Int64", "int64")
TEXT = Names("string", "string", "VARCHAR", "String", "str|object")
BINARY = Names("binary", "binary", "BLOB", "Binary", "object")
MOMENT = Names(
    "timestamp[us, tz=UTC]",
    "timestamp",
    "TIMESTAMP WITH TIME ZONE",
    "Datetime(time_unit='us', time_zone='UTC')",
    "datetime64[us, UTC]",
)
QUEUE_TYPES = {
    "_offset": LONG,
    "_timestamp": MOMENT,
    "_key": TEXT,
    "_headers": Names(
        "map<string, string>|map<string, string ('_headers')>",
        "map<string,string>",
        "MAP(VARCHAR, VARCHAR)",
        "Map(String, String)|List(Struct({'key': String, 'value': String}))",
        "object",
    ),
    "_expires": MOMENT,
    "_reference": Names(
        "struct<uri: string, size: int64, content_type: string, sha256: string>",
        "struct<uri:string,size:bigint,content_type:string,sha256:string>",
        "STRUCT(uri VARCHAR, size BIGINT, content_type VARCHAR, sha256 VARCHAR)",
        "Struct({'uri': String, 'size': Int64, 'content_type': String, 'sha256': String})",
        "object",
    ),
    # A dictionary's values are integers: so pq.read_table and pandas keep what a path says.
    "segment": Names("int32|dictionary<values=int32, indices=int32, ordered=0>", "int", "BIGINT", "Int64", "category"),
}


def _decimal(precision: int, scale: int) -> Names:
    name = f"decimal({precision},{scale})"
    polars = f"Decimal(precision={precision}, scale={scale})"
    return Names(f"decimal128({precision}, {scale})", name, name.upper(), polars, "object")


# Iceberg's types. A time of day is text: the TIME type is the one that not all open, Spark refuses the whole table.
FIELD_TYPES = {
    "boolean": Names("bool", "boolean", "BOOLEAN", "Boolean", "bool"),
    "int": Names("int32", "int", "INTEGER", "Int32", "int32"),
    "long": LONG,
    "float": Names("float", "float", "FLOAT", "Float32", "float32"),
    "double": Names("double", "double", "DOUBLE", "Float64", "float64"),
    "decimal(9,2)": _decimal(9, 2),
    "decimal(18,0)": _decimal(18, 0),
    "decimal(38,38)": _decimal(38, 38),
    "date": Names("date32[day]", "date", "DATE", "Date", "object"),
    "time": TEXT,
    "timestamp": Names(
        "timestamp[us]", "timestamp_ntz", "TIMESTAMP", "Datetime(time_unit='us', time_zone=None)", "datetime64[us]"
    ),
    "timestamptz": MOMENT,
    "string": TEXT,
    "uuid": TEXT,
    "fixed[4]": BINARY._replace(pyarrow="fixed_size_binary[4]"),
    "binary": BINARY,
}
FIELD_ARROW = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal(9,2)": pa.decimal128(9, 2),
    "decimal(18,0)": pa.decimal128(18, 0),
    "decimal(38,38)": pa.decimal128(38, 38),
    "date": pa.date32(),
    "time": pa.string(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "string": pa.string(),
    "uuid": pa.string(),
    "fixed[4]": pa.binary(4),
    "binary": pa.binary(),
}

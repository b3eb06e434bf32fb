"""A table of a million rows as messages, all of them or none: the file is uploaded, and a broker reads it there.

    pip install '.[arrow]'
    python examples/import_measurements.py [ROWS]

The topic is typed: a column for each field, which Spark, DuckDB, Polars and pandas read without parsing.
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from seaweedq import Client
from seaweedq.errors import InvalidMessages

URL = os.environ.get("SEAWEEDQ_URL", "http://127.0.0.1:8080")
TOPIC = "measurements"
FIELDS = {"sensor": "string", "celsius": "double", "humidity": "int"}
SCHEMA = {
    "type": "struct",
    "fields": [
        {"id": number, "name": name, "required": True, "type": kind}
        for number, (name, kind) in enumerate(FIELDS.items(), 1)
    ],
}


def measurements(rows: int) -> pa.Table:
    """Returns what a day of sensors gives."""
    numbers = np.arange(rows)
    sensors = pa.array(numbers % 500).cast(pa.string())
    celsius = 20 + 5 * np.sin(numbers / rows * 2 * np.pi)
    return pa.table({"sensor": sensors, "celsius": celsius, "humidity": pa.array(numbers % 100, pa.int32())})


def show(rows: int, total: int | None) -> None:
    """Reports on the import; there is no total while the file is checked."""
    if total is not None:
        print(f"{rows:,} rows of {total:,}")


def main() -> None:
    """Imports a good file and a bad one, and counts."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with TemporaryDirectory() as folder, Client(URL) as client:
        client.create_topic(TOPIC, format="typed", schema=SCHEMA, key_field="sensor")
        good, bad = Path(folder, "good.parquet"), Path(folder, "bad.ndjson")
        pq.write_table(measurements(rows), good)
        done = client.import_file(TOPIC, good, rows=show)
        print(f"imported {done.count:,} rows of {good.stat().st_size:,} bytes")
        bad.write_text('{"value": {"sensor": "1", "celsius": 20.5, "humidity": 40}}\n{"value": {"sensor": "1"}}\n')
        try:
            client.import_file(TOPIC, bad)
        except InvalidMessages as error:
            print(f"nothing of {bad.name}: {error.fields['errors'][0]['reason']}")
        table = client.read_table(TOPIC, columns=["celsius"], live=True)
        print(f"in the topic: {table.num_rows:,} rows")


if __name__ == "__main__":
    main()

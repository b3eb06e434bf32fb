"""What any reader of Parquet finds in the topic's directory on S3, past all proxies: in between, and at last."""

from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import s3fs
from pyarrow import BufferReader

from tests.support.chaos.store_server import client
from tests.support.history.final_read import COLUMNS, rows_of
from tests.support.history.history import Row
from tests.support.history.load import TOPIC
from tests.support.processes.s3_service import KEY, SECRET


class StoreReader:
    """Reads `{bucket}/{prefix}/topics/t`. A file is read once: its name and its ETag say that it is the same."""

    def __init__(self, endpoint: str, bucket: str, prefix: str) -> None:
        self.endpoint = endpoint
        self.bucket = bucket
        self.folder = f"{prefix}/topics/{TOPIC}/"
        self._client = client(endpoint)
        self._files: dict[tuple[str, str], list[Row]] = {}

    def listing(self) -> list[Row]:
        """All rows of all files that are there now."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.folder)
        return [row for page in pages for found in page.get("Contents", []) for row in self._rows(found)]

    def at_last(self) -> list[Row]:
        """As pyarrow over s3fs reads the directory."""
        files = s3fs.S3FileSystem(
            key=KEY, secret=SECRET, endpoint_url=self.endpoint, use_listings_cache=False, skip_instance_cache=True
        )
        found = ds.dataset(f"{self.bucket}/{self.folder}", format="parquet", partitioning="hive", filesystem=files)
        return rows_of(found.to_table(COLUMNS))

    def _rows(self, found: dict[str, Any]) -> list[Row]:
        file = found["Key"], found["ETag"]
        if file not in self._files:
            body = self._client.get_object(Bucket=self.bucket, Key=found["Key"])["Body"].read()
            segment = int(found["Key"].rsplit("segment=", 1)[1].split("/")[0])
            table = pq.read_table(BufferReader(body), columns=COLUMNS[1:], partitioning=None)
            self._files[file] = rows_of(table.append_column("segment", [[segment] * table.num_rows]))
        return self._files[file]

"""An S3 server of `s3_service` outside pytest, with one bucket, and plain clients of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from tests.support.processes.s3_service import KEY, SECRET, S3Service, running


@dataclass(frozen=True)
class StoreServer:
    """A running server and its bucket."""

    service: S3Service
    bucket: str


@contextmanager
def store_server(kind: str, folder: Path) -> Iterator[StoreServer]:
    """A server of `s3_service.SERVERS` on `folder`, gone afterwards. Raises Absent."""
    folder.mkdir()
    with running(kind, folder) as service:
        yield StoreServer(service, service.bucket())


def client(url: str, attempts: int = 1) -> Any:
    """A client that tries everything so often."""
    config = Config(
        retries={"total_max_attempts": attempts}, s3={"addressing_style": "path"}, read_timeout=5, proxies={}
    )
    return boto3.Session(KEY, SECRET, region_name="us-east-1").client("s3", endpoint_url=url, config=config)

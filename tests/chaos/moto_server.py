"""The S3 server of `s3_service` outside pytest, with one bucket, and plain clients of it."""

import subprocess
import sys
import time
from typing import Any, Self

import boto3
import s3_service
from botocore.config import Config
from broker_process import free_port
from s3_service import KEY, SECRET, START_S, S3Service


class MotoServer:
    """`service` answers for as long as this is open."""

    def __init__(self) -> None:
        port = free_port()
        command = [sys.executable, "-W", "ignore", s3_service.__file__, str(port)]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
        self.service = S3Service(f"http://127.0.0.1:{port}", self.process.pid)

    def __enter__(self) -> Self:
        end = time.monotonic() + START_S
        while not self.service.ready():
            assert time.monotonic() < end, "moto's server does not answer"
            time.sleep(0.05)
        self.bucket = self.service.bucket()
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait()


def client(url: str) -> Any:
    """A client that tries everything once."""
    config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, read_timeout=5, proxies={})
    return boto3.Session(KEY, SECRET, region_name="us-east-1").client("s3", endpoint_url=url, config=config)

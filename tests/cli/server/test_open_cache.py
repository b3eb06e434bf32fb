"""The cache on disk that the settings name: for a store on the network alone, and never the reason of a failed start
but for a path that cannot be a folder."""

import errno
import os
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from seaweedq.cli.server.backends import open_cache
from seaweedq.clock import SystemClock
from seaweedq.errors import InvalidRequest
from seaweedq.settings import Settings


def settings(cache_dir: Path | str, store: str = "s3://bucket/q") -> Settings:
    return Settings(store=store, cache_dir=str(cache_dir), cache_bytes=1 << 20)


async def test_only_a_store_on_the_network_has_a_cache(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        assert open_cache(settings(""), SystemClock(), stack) is None
        assert open_cache(settings(tmp_path / "a", f"file://{tmp_path}/store"), SystemClock(), stack) is None
        assert not (tmp_path / "a").exists()
        cache = open_cache(settings(tmp_path / "a" / "b"), SystemClock(), stack)
        assert cache
        os.pwrite(cache.descriptor, b"bytes", 0)
    assert os.fstat(cache.descriptor).st_size == 0, "a life that has ended keeps the disk's space"


async def test_a_path_that_cannot_be_a_folder_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with AsyncExitStack() as stack:
        for path in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(
                InvalidRequest, match=r"cache_dir='.*file.*' is not a folder that the broker can write to"
            ):
                open_cache(settings(path), SystemClock(), stack)


async def test_a_broken_disk_costs_the_cache_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(**_: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(tempfile, "TemporaryFile", broken)
    async with AsyncExitStack() as stack:
        assert open_cache(settings(tmp_path), SystemClock(), stack) is None
    assert "nothing is cached on disk" in caplog.text

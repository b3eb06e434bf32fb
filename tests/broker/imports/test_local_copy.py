"""The file of an import as a descriptor: a store's own, or a copy that is what was claimed; and a real S3."""

import hashlib
import os
from collections import namedtuple
from random import Random

import pytest

from seaweedq.broker.imports import runner
from seaweedq.broker.imports.runner import opened
from seaweedq.clock import SystemIds
from seaweedq.errors import InvalidImport, StoreUnavailable
from seaweedq.storage.local import LocalStore
from seaweedq.storage.memory import MemoryStore
from tests.support.http.uploading_files import check_all_once, numbered, parquet

DATA = Random(0).randbytes(1_000_003)
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture(params=["local", "copied"])
async def store(request, tmp_path):
    made = LocalStore(tmp_path / "store", SystemIds()) if request.param == "local" else MemoryStore()
    await made.create("a/b", DATA)
    return made


async def test_all_bytes_are_there(store, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "PIECE_BYTES", 10_007)
    before = sorted(tmp_path.iterdir())
    descriptor = await opened(store, "a/b", len(DATA), SHA, tmp_path)
    try:
        assert os.pread(descriptor, 2 * len(DATA), 0) == DATA
        assert sorted(tmp_path.iterdir()) == before
    finally:
        os.close(descriptor)


async def test_another_file_is_refused(store, tmp_path):
    with pytest.raises(InvalidImport):
        await opened(store, "a/b", len(DATA) + 1, SHA, tmp_path)
    with pytest.raises(InvalidImport):
        await opened(store, "a/c", len(DATA), SHA, tmp_path)
    if isinstance(store, MemoryStore):
        with pytest.raises(InvalidImport, match="SHA-256"):
            await opened(store, "a/b", len(DATA), "0" * 64, tmp_path)


async def test_a_disk_without_room_is_waited_for(tmp_path, monkeypatch):
    store = MemoryStore()
    await store.create("a/b", DATA)
    usage = namedtuple("usage", "total free")
    monkeypatch.setattr(runner.shutil, "disk_usage", lambda _: usage(10**12, len(DATA)))
    with pytest.raises(StoreUnavailable, match="disk"):
        await opened(store, "a/b", len(DATA), SHA, tmp_path)


@pytest.mark.parametrize(("spare", "fits"), [(0.09, False), (0.11, True)])
async def test_a_small_disk_takes_imports_too(tmp_path, monkeypatch, spare, fits):
    store = MemoryStore()
    await store.create("a/b", DATA)
    usage = namedtuple("usage", "total free")
    total = 100 * 1024 * 1024
    monkeypatch.setattr(runner.shutil, "disk_usage", lambda _: usage(total, len(DATA) + int(spare * total)))
    if fits:
        os.close(await opened(store, "a/b", len(DATA), SHA, tmp_path))
    else:
        with pytest.raises(StoreUnavailable, match=r"plus a reserve of .* bytes, but only"):
            await opened(store, "a/b", len(DATA), SHA, tmp_path)


@pytest.mark.long
@pytest.mark.process
@pytest.mark.service
def test_from_s3(moto_server, broker_process, importer_of):
    store = f"s3://{moto_server.place()}/x"
    broker = broker_process(
        "--store", store, "--s3-endpoints", moto_server.endpoint, "--import-batch-rows", "5000", env=moto_server.env
    )
    importer = importer_of(broker.url)
    importer.make(initial_segments=2)
    upload = importer.upload(parquet(numbered(30_000)))
    answer = importer.ask(upload, wait_s=90)
    assert answer.status_code == 200, answer.text
    check_all_once(importer.column(), 30_000)

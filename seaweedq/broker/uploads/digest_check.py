"""The check of an uploaded object's size and SHA-256 against those announced; the object is read once if the store
cannot say, in chunks: the next one is read while one is used, and there are never more than these two.

A reading continues when its caller goes away, and all callers meanwhile wait for the same one: a repeated publish need
not begin anew.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing

from seaweedq.coordination.records import UploadRecord
from seaweedq.errors import UploadIncomplete, UploadMismatch
from seaweedq.storage.interface import ObjectStore, PayloadStore

PIECE_BYTES = 4 * 1024 * 1024  # at most
READINGS = 2  # concurrent ones: each holds three chunks, and hashes on a core


async def pieces(
    store: ObjectStore, name: str, start: int, end: int, piece_bytes: int = PIECE_BYTES
) -> AsyncGenerator[bytes, None]:
    """The bytes [start, end) of an object that has them, in order. Memory: twice `piece_bytes`.

    Raises FileNotFoundError, StoreUnavailable. To be closed (`aclosing`) by who does not take all of it.
    """
    ahead: asyncio.Task[bytes] | None = None
    try:
        for at in range(start, end, piece_bytes):
            piece = await (ahead or store.read(name, at, min(at + piece_bytes, end)))
            behind = at + piece_bytes
            if behind < end:
                ahead = asyncio.create_task(store.read(name, behind, min(behind + piece_bytes, end)))
            yield piece
    finally:
        if ahead is not None:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)


class DigestCheck:
    """Checks the objects of one store."""

    def __init__(self, store: PayloadStore) -> None:
        self._store = store
        self._readings: dict[str, asyncio.Task[str]] = {}
        self._places = asyncio.Semaphore(READINGS)

    async def digest(self, upload: str, record: UploadRecord) -> str:
        """Returns the SHA-256 of an upload's object, which has the announced size. Raises UploadIncomplete,
        UploadMismatch, StoreUnavailable."""
        try:
            size, known = await self._store.digest(record.name)
            check_size(upload, record, size)
            return record.checked or known or await self._read(record)
        except FileNotFoundError:
            raise UploadIncomplete(
                "the upload's bytes are not in the store; put them, then complete the upload", upload_id=upload
            ) from None

    async def close(self) -> None:
        """Cancels the readings."""
        readings = list(self._readings.values())
        for reading in readings:
            reading.cancel()
        await asyncio.gather(*readings, return_exceptions=True)

    async def _read(self, record: UploadRecord) -> str:
        reading = self._readings.get(record.name)
        if reading is None:
            reading = asyncio.create_task(self._hash(record), name=f"check of {record.name}")
            self._readings[record.name] = reading
            reading.add_done_callback(lambda ended: self._ended(record.name, ended))
        return await asyncio.shield(reading)

    async def _hash(self, record: UploadRecord) -> str:
        hashed = hashlib.sha256()
        async with self._places, aclosing(pieces(self._store, record.name, 0, record.size)) as found:
            async for piece in found:
                await asyncio.to_thread(hashed.update, piece)
        return hashed.hexdigest()

    def _ended(self, name: str, reading: asyncio.Task[str]) -> None:
        del self._readings[name]
        if not reading.cancelled():
            reading.exception()  # seen, also where nobody waits any more


def check_size(upload: str, record: UploadRecord, size: int) -> None:
    """Raises UploadMismatch."""
    if size != record.size:
        detail = f"the upload was announced with {record.size} bytes, but has {size}"
        raise UploadMismatch(detail, upload_id=upload, field="size", value=size, bound=record.size)


def check_digest(upload: str, record: UploadRecord, digest: str) -> None:
    """Raises UploadMismatch."""
    if record.sha256 is not None and digest != record.sha256:
        detail = f"the upload was announced with the SHA-256 {record.sha256}, but has {digest}"
        raise UploadMismatch(detail, upload_id=upload, field="sha256", value=digest, bound=record.sha256)

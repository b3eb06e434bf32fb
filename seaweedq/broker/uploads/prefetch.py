"""An object's bytes in chunks: the next one is read while one is used, and there are never more than these two."""

import asyncio
from collections.abc import AsyncGenerator

from seaweedq.storage.interface import ObjectStore

PIECE_BYTES = 4 * 1024 * 1024  # at most


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

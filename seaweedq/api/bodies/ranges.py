"""Sends stored objects in chunks, whole or a byte range of them (RFC 9110, 14).

One range a request is understood. Several ranges, or other units, are answered with the whole, as the RFC allows.
"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from seaweedq.api.problems import problem
from seaweedq.api.request import Answer, Request, Send
from seaweedq.errors import OffsetOutOfRange, SeaweedqError

MAX_DIGITS = 18
SEND_BYTES = 256 * 1024  # at a time: the server holds that much more for a client that does not take it
_RANGE = re.compile(r"bytes=\s*([0-9]*)\s*-\s*([0-9]*)\s*", re.IGNORECASE)
# A browser must never show an upload as a page of the broker's.
SAFE = {"accept-ranges": "bytes", "x-content-type-options": "nosniff", "content-disposition": "attachment"}
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object of the store. `tag` names its bytes for If-Range; `read` yields the bytes of a half-open range."""

    size: int
    tag: str
    content_type: str
    read: Callable[[int, int], AsyncGenerator[bytes, None]]


def parse_range(text: str | None, size: int) -> tuple[int, int] | None:
    """Returns the half-open range [start, end) of an object of `size` bytes that a Range header asks for, None for the
    whole object. Raises OffsetOutOfRange where the range has no byte of the object."""
    found = _RANGE.fullmatch(text) if text else None
    if found is None or found[1] == found[2] == "":
        return None
    if any(len(number) > MAX_DIGITS for number in found.groups()):
        raise _beyond(text, size)
    if not found[1]:
        last = int(found[2])
        if not last or not size:
            raise _beyond(text, size)
        return max(0, size - last), size
    start = int(found[1])
    if found[2] and int(found[2]) < start:
        return None
    if start >= size:
        raise _beyond(text, size)
    return start, min(size, int(found[2]) + 1) if found[2] else size


def _beyond(text: str | None, size: int) -> OffsetOutOfRange:
    return OffsetOutOfRange(f"the range {(text or '')[:100]!r} has no byte of an object of {size} bytes", size=size)


async def send_object(stored: StoredObject, request: Request, out: Send, stall_s: float) -> Answer | None:
    """Sends an object, or the range of it that was asked for; to HEAD its headers alone. Returns an answer that is
    still to be sent, None where everything was sent.

    Raises what `stored.read` raises before its first bytes. A client that takes nothing for `stall_s` seconds is cut
    off, and so is one that would get an incomplete body.
    """
    headers = {**SAFE, "content-type": stored.content_type, "etag": f'"{stored.tag}"'}
    try:
        span = parse_range(_wanted(request, headers["etag"]), stored.size)
    except OffsetOutOfRange as error:
        status, said, content = problem(error)
        return Answer(status, content, {**said, "content-range": f"bytes */{stored.size}"})
    start, end = span or (0, stored.size)
    headers["content-length"] = str(end - start)
    if span:
        headers["content-range"] = f"bytes {start}-{end - 1}/{stored.size}"
    if request.method == "HEAD" or start == end:
        await _begin(out, span, headers)
        await out({"type": "http.response.body", "body": b""})
        return None
    async with aclosing(stored.read(start, end)) as chunks:
        first = await anext(chunks)
        await _begin(out, span, headers)
        watcher = asyncio.create_task(request.until_gone())  # to send to a client that has gone is no error
        try:
            await _send_chunks(out, first, chunks, watcher, stall_s)
        except (SeaweedqError, FileNotFoundError, TimeoutError) as error:  # the server closes an incomplete answer
            logger.warning("a payload was cut off while it was sent: %s", str(error) or type(error).__name__)
        finally:
            watcher.cancel()
    return None


def _wanted(request: Request, etag: str) -> str | None:
    """Returns the Range header, None where it is for other bytes than the object has."""
    condition = request.header(b"if-range")
    return request.header(b"range") if condition in (None, etag) else None


async def _begin(out: Send, span: tuple[int, int] | None, headers: Mapping[str, str]) -> None:
    encoded = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()]
    await out({"type": "http.response.start", "status": 206 if span else 200, "headers": encoded})


async def _send_chunks(
    out: Send, chunk: bytes | None, chunks: AsyncGenerator[bytes, None], gone: asyncio.Task[None], stall_s: float
) -> None:
    while chunk is not None and not gone.done():
        view = memoryview(chunk)
        for at in range(0, len(view), SEND_BYTES):
            async with asyncio.timeout(stall_s):
                await out({"type": "http.response.body", "body": view[at : at + SEND_BYTES], "more_body": True})
        chunk = await anext(chunks, None)
    if chunk is None:
        await out({"type": "http.response.body", "body": b""})

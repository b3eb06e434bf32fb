"""Byte ranges (RFC 9110, 14), and an object that is sent in pieces, whole or a range of it.

One range a request is understood; several, or other units, are answered with the whole, as the RFC allows.
"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from seaweedq.api.asgi.http import Answer, Receive, Scope, Send, header
from seaweedq.api.asgi.problems import problem
from seaweedq.errors import OffsetOutOfRange, SeaweedqError

Pieces = Callable[[int, int], AsyncGenerator[bytes, None]]
MAX_DIGITS = 18
SEND_BYTES = 256 * 1024  # at a time: the server holds that much more for a client that does not take it
_RANGE = re.compile(r"bytes=\s*([0-9]*)\s*-\s*([0-9]*)\s*", re.IGNORECASE)
# What somebody uploaded is never shown as a page of the broker's.
SAFE = {"accept-ranges": "bytes", "x-content-type-options": "nosniff", "content-disposition": "attachment"}
logger = logging.getLogger(__name__)


def parse_range(text: str | None, size: int) -> tuple[int, int] | None:
    """The half-open range [start, end) of an object of `size` bytes that a Range header asks for. None: the whole.

    Raises OffsetOutOfRange where it has no byte of the object.
    """
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
    return OffsetOutOfRange(f"{(text or '')[:100]!r} has no byte of an object of {size}", size=size)


async def send_object(
    scope: Scope,
    receive: Receive,
    out: Send,
    size: int,
    tag: str,
    content_type: str,
    pieces: Pieces,
    stall_s: float,
) -> Answer | None:
    """Send an object, or the range of it that was asked for; to HEAD its headers alone. None: it was sent here.

    `tag` names the object's bytes for If-Range. `pieces` gives a range of it; what it raises before its first piece
    is raised. Whoever takes nothing for `stall_s` seconds is cut off, and so is who would get an incomplete body.
    """
    headers = {**SAFE, "content-type": content_type, "etag": f'"{tag}"'}
    try:
        span = parse_range(_wanted(scope, headers["etag"]), size)
    except OffsetOutOfRange as error:
        status, said, content = problem(error)
        return Answer(status, content, {**said, "content-range": f"bytes */{size}"})
    start, end = span or (0, size)
    headers["content-length"] = str(end - start)
    if span:
        headers["content-range"] = f"bytes {start}-{end - 1}/{size}"
    if scope["method"] == "HEAD" or start == end:
        await _begin(out, span, headers)
        await out({"type": "http.response.body", "body": b""})
        return None
    async with aclosing(pieces(start, end)) as found:
        first = await anext(found)
        await _begin(out, span, headers)
        watcher = asyncio.create_task(_gone(receive))
        try:
            await _send_pieces(out, first, found, watcher, stall_s)
        except (SeaweedqError, FileNotFoundError, TimeoutError) as error:  # the server closes what is not complete
            logger.warning("a payload was cut off while it was sent: %s", str(error) or type(error).__name__)
        finally:
            watcher.cancel()
    return None


def _wanted(scope: Scope, etag: str) -> str | None:
    """The Range header, unless it is for other bytes than those that are there."""
    condition = header(scope, b"if-range")
    return header(scope, b"range") if condition in (None, etag) else None


async def _begin(out: Send, span: tuple[int, int] | None, headers: Mapping[str, str]) -> None:
    encoded = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()]
    await out({"type": "http.response.start", "status": 206 if span else 200, "headers": encoded})


async def _gone(receive: Receive) -> None:
    """Until the client has gone: to send to nobody is no error."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_pieces(
    out: Send, piece: bytes | None, found: AsyncGenerator[bytes, None], gone: asyncio.Task[None], stall_s: float
) -> None:
    while piece is not None and not gone.done():
        view = memoryview(piece)
        for at in range(0, len(view), SEND_BYTES):
            async with asyncio.timeout(stall_s):
                await out({"type": "http.response.body", "body": view[at : at + SEND_BYTES], "more_body": True})
        piece = await anext(found, None)
    if piece is None:
        await out({"type": "http.response.body", "body": b""})

"""A WebSocket whose frames a test writes itself, right or wrong."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.http.serving_protocol import Limits, serving

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]
LIMIT = 4096  # bytes that a client takes ahead


async def asked(port: int, path: str) -> Ends:
    """A connection that has asked for a WebSocket at the path."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=LIMIT)
    writer.write(
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    return reader, writer


async def accepted(reader: asyncio.StreamReader) -> None:
    """Takes the end of the handshake."""
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")


@asynccontextmanager
async def opened(port: int, path: str) -> AsyncIterator[Ends]:
    """A WebSocket."""
    reader, writer = await asked(port, path)
    await accepted(reader)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


@asynccontextmanager
async def raw(app: Any, limits: Limits, path: str) -> AsyncIterator[Ends]:
    """A WebSocket to an application; its client takes little."""
    async with serving(app, limits) as port, opened(port, f"{path}/stream") as ends:
        yield ends


def frame(opcode: int, content: bytes, size: int | None = None, *, last: bool = True) -> bytes:
    """A frame, masked by zeros; it may announce more than it has."""
    size = len(content) if size is None else size
    head = bytes([0x80 * last | opcode])
    if size < 126:
        return head + bytes([0x80 | size, 0, 0, 0, 0]) + content
    return head + bytes([0x80 | 127]) + size.to_bytes(8, "big") + bytes(4) + content


async def next_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The opcode and the content of the frame that comes."""
    first, size = await asyncio.wait_for(reader.readexactly(2), 20)
    if size > 125:
        size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
    return first & 0x0F, await reader.readexactly(size)


async def close_code(reader: asyncio.StreamReader) -> int | None:
    """The code of the close frame that comes; what comes before is left out. None where none comes."""
    try:
        while True:
            opcode, content = await next_frame(reader)
            if opcode == 8:
                return int.from_bytes(content[:2], "big")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


WRONG_FRAMES = {  # and the codes of the close frames that answer them
    "unmasked": (b"\x81\x02{}", 1002),
    "reserved bit": (b"\xc1\x80" + bytes(4), 1002),
    "unknown opcode": (frame(3, b""), 1002),
    "unknown control frame": (frame(11, b""), 1002),
    "ping too long": (frame(9, b"a" * 126), 1002),
    "ping in fragments": (frame(9, b"a", last=False), 1002),
    "continuation of nothing": (frame(0, b"a"), 1002),
    "text amid fragments": (frame(1, b"a", last=False) + frame(1, b"b"), 1002),
    "close amid fragments": (frame(1, b"a", last=False) + frame(8, b"\x03\xe8"), 1002),
    "unmasked behind a ping amid fragments": (frame(1, b"a", last=False) + frame(9, b"p") + b"\x80\x01b", 1002),
    "close of 1 byte": (frame(8, b"a"), 1002),
    "close with no code of a client": (frame(8, b"\x03\xe7"), 1002),
    "reason that is not UTF-8": (frame(8, b"\x03\xe8\xff"), 1007),
    "text that is not UTF-8": (frame(1, b"\xff\xfe"), 1007),
    "fragments that are not UTF-8": (frame(1, b"\xc3", last=False) + frame(0, b"\xc3"), 1007),
    "too long": (frame(1, b"", (1 << 20) + 1), 1009),
    "too long by far": (frame(1, b"", 1 << 62), 1009),
    "too many fragments": (frame(1, b"", last=False) + frame(0, b"", last=False) * 1024, 1009),
    "HTTP": (b"GET / HTTP/1.1\r\n\r\n", 1002),
    "close": (frame(8, b"\x03\xe8"), 1000),
}

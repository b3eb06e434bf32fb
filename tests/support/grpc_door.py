"""A broker with a gRPC port, calls of its methods by name, and an HTTP/2 client that stops in the middle."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from seaweedq.api.grpc import queue_pb2 as pb
from seaweedq.broker.broker import Broker
from tests.support.brokers.in_process import running
from tests.support.brokers.serving import Served, served
from tests.support.processes.broker_process import free_port

SERVICES = {
    method.name: service.full_name for service in pb.DESCRIPTOR.services_by_name.values() for method in service.methods
}
STREAMS = {
    method.name
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if method.server_streaming
}
BOTH_WAYS = {
    method.name
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if method.client_streaming
}
CALL_S = 20.0


class Calls:
    """The methods at one target, as `await calls.Publish(topic="t", ...)`."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Sequence[tuple[str, str]] = ()) -> None:
        self.channel = channel
        self._metadata = list(metadata)

    def __getattr__(self, name: str) -> Any:
        takes, gives = getattr(pb, f"{name}Request"), getattr(pb, f"{name}Response")
        path = f"/{SERVICES[name]}/{name}"
        if name in BOTH_WAYS:
            both = self.channel.stream_stream(path, takes.SerializeToString, gives.FromString)
            return lambda timeout=CALL_S: both(timeout=timeout, metadata=self._metadata)
        kind = self.channel.unary_stream if name in STREAMS else self.channel.unary_unary

        def call(timeout: float = CALL_S, **fields: Any) -> Any:
            method = kind(path, takes.SerializeToString, gives.FromString)
            return method(takes(**fields), timeout=timeout, metadata=self._metadata)

        return call


@dataclass
class Door:
    """A broker that serves HTTP at `served.url` and gRPC at `target`."""

    broker: Broker
    served: Served
    target: str
    calls: Calls

    def bearing(self, token: str) -> Calls:
        """The methods with a token."""
        return Calls(self.calls.channel, [("authorization", f"Bearer {token}")])


@asynccontextmanager
async def door(folder: Path, **settings: Any) -> AsyncIterator[Door]:
    """A broker in the test's own loop, with a gRPC port."""
    port = free_port()
    async with (
        running(folder, grpc_port=port, **settings) as broker,
        served(broker) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel,
    ):
        yield Door(broker, server, f"127.0.0.1:{port}", Calls(channel))


async def refused(call: Any) -> tuple[str, str, dict[str, Any]]:
    """Code, text and details (by the names of their types) of a call, or of the read of a stream, that fails."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        status = rpc_status.from_call(error)
        details = {}
        for one in status.details if status else ():
            name = one.type_url.rpartition(".")[2]
            details[name] = getattr(error_details_pb2, name).FromString(one.value)
        return error.code().name, error.details() or "", details
    raise AssertionError(f"answered: {answer}")


def half_call(
    target: str, path: str, content: bytes, sent: int | None = None, window: int | None = None, stream: int = 1
) -> socket.socket:
    """A connection with a call of which `sent` bytes of its message were sent, all by default, and whose answer nobody
    reads; `window` is the number of bytes of it that may come. The call's `stream` has this number."""
    host, port = target.split(":")
    block = call_head(target, path)
    data = b"\x00" + len(content).to_bytes(4) + content[:sent]
    frames = [data[at : at + 16_384] for at in range(0, len(data), 16_384)]
    wire = socket.create_connection((host, int(port)))
    settings = b"" if window is None else (4).to_bytes(2) + window.to_bytes(4)
    wire.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, settings) + frame(1, 4, stream, block))
    wire.sendall(b"".join(frame(0, 0, stream, one) for one in frames))
    return wire


async def until_ended(wire: socket.socket) -> None:
    """Until the broker has ended the connection."""
    wire.settimeout(30)
    with suppress(ConnectionResetError):
        while await asyncio.to_thread(wire.recv, 65_536):
            pass


class Flood:
    """A connection whose `count` streams each send all but the last byte of a message of `size` bytes, as fast as the
    windows of HTTP/2 allow. `sent` counts their bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int, size: int) -> None:
        self._reader, self._writer = reader, writer
        self._prefix = b"\x00" + size.to_bytes(4)
        self._left = {1 + 2 * at: size + 4 for at in range(count)}
        self._windows = dict.fromkeys(self._left, 65_535)
        self._window, self._initial = 65_535, 65_535
        self._begun: set[int] = set()
        self._knows_settings = False
        self.sent = 0

    @classmethod
    async def open(cls, target: str, path: str, count: int, size: int) -> "Flood":
        """Opens the connection and its streams."""
        host, port = target.split(":")
        flood = cls(*await asyncio.open_connection(host, int(port)), count, size)
        flood.begin(call_head(target, path))
        return flood

    def begin(self, head: bytes) -> None:
        """Opens all streams."""
        self._writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
        for stream in self._left:
            self._writer.write(frame(1, 4, stream, head))

    async def run(self) -> None:
        """Sends until all is sent, or the broker ends the connection; then ends it here, too."""
        with closing(self._writer), suppress(OSError, asyncio.IncompleteReadError):
            while self._left:
                head = await self._reader.readexactly(9)
                content = await self._reader.readexactly(int.from_bytes(head[:3]))
                self._hear(head[3], head[4], int.from_bytes(head[5:]), content)
                self._send()
                await self._writer.drain()
                if self._writer.is_closing():
                    return

    def _hear(self, kind: int, flags: int, stream: int, content: bytes) -> None:
        if kind == 8:  # more window
            if stream:
                self._windows[stream] += int.from_bytes(content)
            else:
                self._window += int.from_bytes(content)
        elif kind == 4 and not flags:  # settings
            self._knows_settings = True
            for at in range(0, len(content), 6):
                if int.from_bytes(content[at : at + 2]) == 4:
                    new = int.from_bytes(content[at + 2 : at + 6])
                    for one in self._windows:
                        self._windows[one] += new - self._initial
                    self._initial = new
            self._writer.write(frame(4, 1, 0, b""))
        elif kind == 3 or (kind == 1 and flags & 1):  # the broker ends the stream
            self._left.pop(stream, None)

    def _send(self) -> None:
        if not self._knows_settings:
            return
        for stream, left in list(self._left.items()):
            size = min(left, self._windows[stream], self._window, 16_384)
            if size < 6:
                continue
            prefix = b"" if stream in self._begun else self._prefix
            self._begun.add(stream)
            self._writer.write(frame(0, 0, stream, prefix + bytes(size - len(prefix))))
            self._windows[stream] -= size
            self._window -= size
            self.sent += size
            if left == size:
                del self._left[stream]
            else:
                self._left[stream] = left - size


def ping() -> bytes:
    """A ping of HTTP/2."""
    return frame(6, 0, 0, bytes(8))


def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    """A frame of HTTP/2."""
    return len(content).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + content


def call_head(target: str, path: str) -> bytes:
    """The headers of a call."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": target,
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in fields.items())


def _text(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()

"""The way of gRPC's bytes: clients connect to the relay, which hands their bytes to gRPC over a Unix socket.

gRPC lets the bytes of a message in as soon as somebody reads its call, up to the largest message, and nobody sees them
before the message is whole: a hundred idle streams would hide 1.6 GB. It bounds no connections by address either. So
the relay splits what a client sends into HTTP/2's frames, and the content of its streams into messages. A message that
has come in part holds memory as a body of HTTP does (connections/memory); if that has to go, its connection ends. A
stream that nobody reads lets in WINDOW_BYTES, and no more. What the broker sends is split only to learn of the ends of
streams.

The relay's streams must be those of gRPC, or some would count for nothing. gRPC ignores what a client may not send, and
ends its whole port if the path of a call is no text: the relay ends such a connection before gRPC hears of it. gRPC
itself takes more streams than the SETTINGS tell clients, since it forgets a stream later than its client, and would
refuse the next one.

Connections have the places, the TLS and the bounds of HTTP's. A connection is busy while it has streams, but for those
of strangers who have not asked yet, and quiet otherwise. gRPC knows each by the name of its Unix socket, which names
the client's address and certificate for calls; calls over any other socket are refused. The sockets are in a folder
that only this user enters.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from ssl import SSLContext
from struct import Struct
from typing import cast
from urllib.parse import quote, unquote_to_bytes

from hpack import Decoder, HPACKError

from seaweedq.access.limits import Account
from seaweedq.api.connections.connections import Admission, ConnectionBounds
from seaweedq.api.connections.handshakes import Handshake
from seaweedq.api.connections.memory import IncompleteBodies, IncompleteBody, UnreadBuffer
from seaweedq.api.connections.protocol import BUFFER_BYTES, certificate_of
from seaweedq.broker.access import ClientCertificate
from seaweedq.errors import Overloaded

CALLS_PER_CONNECTION = 100
STREAMS_PER_CONNECTION = 2 * CALLS_PER_CONNECTION  # those included that gRPC is about to refuse
WINDOW_BYTES = 16 * 1024
STEP_BYTES = 4 * 1024  # in which a message that has come in part holds memory
BLOCK_BYTES = 8 * 1024  # in which gRPC reads: a piece of a message keeps all of its blocks
SEND_BYTES = 32 * 1024  # of the socket to gRPC, which would read in larger blocks otherwise
HEAD_BYTES = 64 * 1024  # of a header block
CALL_BYTES = 128 * 1024  # that a call takes with its metadata, counted until its message comes
HEAD_FRAMES = 8
CONTROL_BURST, CONTROL_PER_S = 1000, 200  # control frames, such as the reset of a stream: at once, and in the long run
PREFACE_BYTES, PREFIX_BYTES = 24, 5
FRAME_HEAD = Struct(">BHBBI")  # bytes of content, in two parts; kind, flags, stream
DATA, HEADERS, RESET, SETTINGS, PING, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 8, 9  # kinds of frames
END_STREAM = ACK = 1  # flags
END_HEADERS, PADDED, PRIORITY = 4, 8, 32
SETTING = Struct(">HI")
FOR_CLIENTS = {3: CALLS_PER_CONNECTION, 0xFE03: 0}  # settings: concurrent streams; whether metadata may be binary
BACKLOG = 2048
END_S = 1.0  # for an answer to be sent


class Relay:
    """The relayed connections of one life of a broker, to gRPC's socket at `folder`/grpc."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.clients: dict[str, Client] = {}  # by the names of their sockets in the folder
        self._made = 0
        self._empty = asyncio.Event()
        self._server: asyncio.Server | None = None

    @property
    def target(self) -> str:
        """Where gRPC listens, as a URI."""
        return f"unix:{quote(str(self._folder))}/grpc"

    def find(self, peer: str) -> "Client | None":
        """Returns the client that gRPC calls so, as a URI of its socket."""
        place = unquote_to_bytes(peer.removeprefix("unix:")).decode("utf-8", "surrogateescape")
        folder, _, name = place.rpartition("/")
        return self.clients.get(name) if folder == str(self._folder) else None

    async def start(
        self, listener: socket.socket, bounds: ConnectionBounds, context: Callable[[], SSLContext] | None
    ) -> None:
        """Accepts connections; with TLS if there is a `context` for new ones."""
        speak = partial(Client, self, bounds)
        begin = partial(Handshake, speak, context, bounds) if context else speak
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(begin, sock=listener, backlog=BACKLOG)

    def close(self) -> None:
        """Accepts no more connections."""
        if self._server:
            self._server.close()

    async def end(self) -> None:
        """Ends all connections, which gRPC has ended: what it sent last goes out before that, within END_S."""
        self.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S if self.clients else 0):
                await self._empty.wait()
        for client in list(self.clients.values()):
            client.abort()

    def leave(self, client: "Client") -> None:
        """Forgets a client."""
        self.clients.pop(client.name, None)
        if not self.clients:
            self._empty.set()

    async def connect(self, client: "Client") -> None:
        """Connects a client to gRPC. Raises OSError."""
        self._made += 1
        name = str(self._made)
        place = self._folder / name
        loop = asyncio.get_running_loop()
        with ExitStack() as failing:
            wire = failing.enter_context(socket.socket(socket.AF_UNIX))
            wire.setblocking(False)
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
            wire.bind(str(place))
            self.clients[name] = client
            self._empty.clear()
            client.name = name
            try:
                await loop.sock_connect(wire, f"{self._folder}/grpc")
            finally:
                os.unlink(place)
            await loop.create_unix_connection(lambda: Inner(client, wire), sock=wire.dup())
            failing.pop_all()  # Inner closes it


class Client(asyncio.Protocol):
    """One client's connection: for gRPC's calls its address, its certificate, and the account to whose limit of
    connections it counts. `calls` is the number of these, `streams` what arrives, by the streams' numbers."""

    def __init__(self, relay: Relay, bounds: ConnectionBounds) -> None:
        self._relay, self._bounds = relay, bounds
        self.name = self.address = ""
        self.account: Account | None = None
        self.certificate: ClientCertificate | None = None
        self.calls = 0
        self.unread: dict[UnreadBuffer, None] = {}
        self._answers: dict[int, None] = {}  # short ones of unary calls that gRPC has not sent, by number
        self._last_answer = 0
        self._looks = False  # whether it looks again if the client takes them
        self.inner: asyncio.Transport | None = None
        self._transport: asyncio.Transport | None = None
        self.streams: dict[int, Arriving] = {}
        self._newest = 0  # number of a stream
        self._waiting = 0  # of its streams, those of strangers who have not asked yet
        self._blocks = HeaderBlocks()
        self._settings: bytes | None = b""  # gRPC's first frame, as long as it has come in part
        self._control, self._control_s = 0.0, 0.0
        self._sent = Frames(self._hear, PREFACE_BYTES, tells=frozenset({DATA, HEADERS, CONTINUATION}))
        self._answered = Frames(self._tell)
        self._touched: list[Arriving] = []  # by the bytes that have just come
        self._early: list[bytes] = []  # came before gRPC was connected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes a place, and connects to gRPC."""
        self._transport = cast(asyncio.Transport, transport)
        self._unread = UnreadBuffer(self._transport.get_write_buffer_size, self.abort)
        self._transport.set_write_buffer_limits(BUFFER_BYTES)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        if self._bounds.enter(self, self._transport) is not Admission.REGULAR:
            is_over = self._bounds.connections.is_over(self)
            reason, most = ("address", "_per_address") if is_over else ("connection", "")
            self._bounds.refusals.note(reason, f"a gRPC connection is beyond max_connections{most}")
            self.abort()
            return
        self.certificate = certificate_of(self._transport)
        self._transport.pause_reading()
        self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        try:
            await self._relay.connect(self)
        except OSError:  # gRPC ends
            self.abort()
        if self._transport is None:
            self._relay.leave(self)

    def begin(self, inner: asyncio.Transport) -> None:
        """Begins to relay."""
        self.inner = inner
        if self._transport is None:
            inner.abort()
            return
        for data in self._early:
            self.data_received(data)
        self._early.clear()
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Counts the client's bytes, and hands them on."""
        if self.inner is None:
            self._early.append(data)
            return
        if self._transport is None or self._transport.is_closing():
            return  # gRPC would take what follows a refused piece for the begin of a connection
        self._bounds.connections.touch(self)
        try:
            self._sent.feed(data)
            touched, self._touched = self._touched, []
            for stream in touched:
                stream.hold()
        except _ProtocolError as error:
            self._bounds.refusals.note("protocol", str(error))
            self.abort()
            return
        except Overloaded as error:
            self._bounds.refusals.note("bodies", error.detail)
            self.abort()
            return
        self.inner.write(data)

    @property
    def taken(self) -> int:
        """How many bytes of messages the client has taken. What answers its pings is none of them."""
        return self._answered.data_bytes - (self._transport.get_write_buffer_size() if self._transport else 0)

    def answer(self, data: bytes) -> None:
        """Hands on what the broker sends."""
        if self._transport is None:
            return
        if self._settings is not None:
            self._settings += data
            size = FRAME_HEAD.size + int.from_bytes(self._settings[:3])
            if len(self._settings) < max(FRAME_HEAD.size, size):
                return
            data, self._settings = for_clients(self._settings[:size]) + self._settings[size:], None
        self._answered.feed(data)
        self._transport.write(data)

    def begin_answer(self) -> Callable[[], object]:
        """Waits until gRPC has sent a short answer, and calls what this returns; ends the connection if that takes one
        to two answer_timeout_s, whatever else the client takes. One timer looks after all answers."""
        self._last_answer += 1
        self._answers[self._last_answer] = None
        if not self._looks:
            self._look_later()
        return partial(self._answers.pop, self._last_answer, None)

    def _look_later(self) -> None:
        self._looks = True
        loop, oldest = asyncio.get_running_loop(), next(iter(self._answers))
        loop.call_later(self._bounds.answer_timeout_s, self._look, oldest)

    def _look(self, oldest: int) -> None:
        """Looks whether the answer was sent that waited for longest."""
        self._looks = False
        if self._transport is None:
            return
        if oldest in self._answers:
            told = f"the client did not read a message within answer_timeout_s={self._bounds.answer_timeout_s:g}"
            self._bounds.refusals.note("unread_answer", told)
            self.abort()
        elif self._answers:
            self._look_later()

    def pause_writing(self) -> None:
        """Counts the bytes that the client does not take, and reads no more from gRPC meanwhile."""
        self._bounds.unread.begin(self._unread)
        if self.inner:
            self.inner.pause_reading()

    def resume_writing(self) -> None:
        """Goes on."""
        self._bounds.unread.end(self._unread)
        if self.inner and not self.inner.is_closing():
            self.inner.resume_reading()

    def pause_reading(self, paused: bool) -> None:
        """Reads no more from the client while gRPC takes nothing."""
        if self._transport and not self._transport.is_closing():
            (self._transport.pause_reading if paused else self._transport.resume_reading)()

    def connection_lost(self, exc: Exception | None) -> None:
        """Releases all that the connection held."""
        self._transport = None
        self._relay.leave(self)
        self._bounds.connections.leave(self)
        self._bounds.unread.end(self._unread)
        for number in list(self.streams):
            self._drop(number)
        if self.inner:
            self.inner.abort()

    def close(self) -> None:
        """Ends the connection behind the last answer, since gRPC has ended it."""
        if self._transport:
            self._transport.close()
            asyncio.get_running_loop().call_later(self._bounds.answer_timeout_s, self.abort)

    def end_soon(self) -> None:
        """Ends the connection once its last answer was sent."""
        asyncio.get_running_loop().call_later(END_S, self.abort)

    def abort(self) -> None:
        """Ends the connection at once."""
        if self._transport:
            self._transport.abort()

    def make_room(self) -> None:
        """Ends a quiet connection for another one."""
        self._bounds.refusals.note("quiet_connection", "it was idle for longest, and other connections need its place")
        self.abort()

    def _hear(self, kind: int, flags: int, number: int, content: memoryview | None) -> None:
        """Follows the streams of the client; `content` is a piece of a frame, None its end. Raises _ProtocolError."""
        if kind in (HEADERS, CONTINUATION):
            if content is not None:
                self._blocks.take(content)
                return
            whole = self._blocks.end(kind, flags, number)
            if whole is None:
                return
            kind, flags = HEADERS, whole
            self._begin(number, flags)
        elif content is None and kind not in (DATA, WINDOW) and (kind != PING or flags & ACK):
            self._count_control()  # gRPC bounds the pings of clients, which measure with them while they read
        stream = self.streams.get(number)
        if stream is None:
            return
        if kind == RESET:
            self._drop(number)
        elif content is not None:
            stream.take(content, self._sent.at)
            self._touched.append(stream)
        if content is None and flags & END_STREAM and kind in (DATA, HEADERS):
            stream.end()

    def _begin(self, number: int, flags: int) -> None:
        """Begins a stream, unless it is there. Raises _ProtocolError for one that gRPC would ignore."""
        if number in self.streams:
            return
        if number <= self._newest:
            if not flags & END_STREAM:  # otherwise the late end of one that the broker has ended
                raise _ProtocolError(f"a gRPC client began stream {number} behind stream {self._newest}")
            return
        if not number % 2:
            raise _ProtocolError(f"a gRPC client may not begin stream {number}: its streams have odd numbers")
        if len(self.streams) >= STREAMS_PER_CONNECTION:
            raise _ProtocolError(f"a gRPC client began over {STREAMS_PER_CONNECTION} streams on a connection at once")
        self._newest = number
        self.streams[number] = stream = Arriving(self._bounds.bodies, self._dismiss)
        self._touched.append(stream)
        self._mark()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Lets a stream of a stranger, who has not asked yet, keep no place."""
        self._waiting += 1
        self._mark()
        try:
            yield
        finally:
            self._waiting -= 1
            self._mark()

    def _mark(self) -> None:
        if self._transport:
            connections = self._bounds.connections
            (connections.mark_busy if len(self.streams) > self._waiting else connections.mark_quiet)(self)

    def _count_control(self) -> None:
        now_s = asyncio.get_running_loop().time()
        self._control = max(0.0, self._control - CONTROL_PER_S * (now_s - self._control_s)) + 1
        self._control_s = now_s
        if self._control > CONTROL_BURST:
            raise _ProtocolError(f"a gRPC client sent over {CONTROL_PER_S} resets and other control frames per second")

    def _tell(self, kind: int, flags: int, number: int, content: memoryview | None) -> None:
        """Forgets streams that the broker ends."""
        if content is None and (kind == RESET or (flags & END_STREAM and kind in (DATA, HEADERS))):
            self._drop(number)

    def _drop(self, number: int) -> None:
        stream = self.streams.pop(number, None)
        if stream:
            stream.end()
            self._mark()

    def _dismiss(self) -> None:
        self._bounds.refusals.note("slow_body", "a message arrived slowly while other requests needed its memory")
        self.abort()


class _ProtocolError(Exception):
    """A frame that no client of gRPC sends, with which gRPC would deal in its own way."""


class Inner(asyncio.Protocol):
    """A client's connection to gRPC, over `wire`."""

    def __init__(self, client: Client, wire: socket.socket) -> None:
        self._client, self._wire = client, wire

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins."""
        self._client.begin(cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        """Hands on what gRPC sends."""
        self._client.answer(data)

    def pause_writing(self) -> None:
        """Holds the client up: gRPC takes nothing."""
        self._client.pause_reading(True)

    def resume_writing(self) -> None:
        """Goes on."""
        self._client.pause_reading(False)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the client's connection. A write that fails, since gRPC has closed its end, ends the transport before it
        has read the last of gRPC's bytes, such as the status of a call: they are still there."""
        with self._wire, suppress(OSError):
            while exc and (data := self._wire.recv(BUFFER_BYTES)):
                self._client.answer(data)
        self._client.close()


class Arriving:
    """The messages of one stream that arrive. Only one that has come in part holds memory, and a call before its first
    message comes."""

    __slots__ = ("_block", "_bodies", "_body", "_dismiss", "_left", "_new", "_prefix")

    def __init__(self, bodies: IncompleteBodies, dismiss: Callable[[], None]) -> None:
        self._bodies = bodies
        self._dismiss = dismiss
        self._prefix = b""
        self._left = 0  # bytes of the message that have not come
        self._new = CALL_BYTES  # bytes of it that came and are not counted
        self._block = -1  # of the connection's bytes, the last one that counts
        self._body: IncompleteBody | None = None

    def take(self, content: memoryview, place: int) -> None:
        """Splits a piece of the stream into messages. It begins at this place of the connection's bytes."""
        at, is_between = 0, not (self._left or self._prefix)
        if is_between and len(content) == PREFIX_BYTES + int.from_bytes(content[1:PREFIX_BYTES]):
            if self._new or self._body:
                self.end()
            return  # a whole message, most often
        while at < len(content):
            if self._left:
                size = min(self._left, len(content) - at)
                self._left -= size
                self._count(place + at, size)
            else:
                size = min(PREFIX_BYTES - len(self._prefix), len(content) - at)
                self._prefix += content[at : at + size]
                if len(self._prefix) == PREFIX_BYTES:
                    self._left, self._prefix = int.from_bytes(self._prefix[1:]), b""
            at += size
            if not self._left and not self._prefix:
                self.end()

    def _count(self, place: int, size: int) -> None:
        """Counts the blocks of a piece that do not count yet: gRPC keeps each whole, whatever else is in it."""
        first, last = max(self._block + 1, place // BLOCK_BYTES), (place + size - 1) // BLOCK_BYTES
        self._new += BLOCK_BYTES * max(0, last - first + 1)
        self._block = last

    def hold(self) -> None:
        """Holds the memory of a message that has come in part. Raises Overloaded."""
        if self._new:
            self._body = self._body or IncompleteBody(self._dismiss, step_bytes=STEP_BYTES)
            new, self._new = self._new, 0
            self._bodies.add(self._body, new)

    def end(self) -> None:
        """Releases it: the message has come whole, or never will."""
        self._new, self._block = 0, -1
        if self._body:
            self._bodies.release(self._body)
            self._body = None


class HeaderBlocks:
    """The header blocks of a client's connection, one after the other."""

    def __init__(self) -> None:
        self._decoder = Decoder()
        self._block = bytearray()
        self._stream = self._flags = self._frames = 0  # of the block that has come in part

    def take(self, content: memoryview) -> None:
        """Takes a piece of a block. Raises _ProtocolError."""
        self._block += content
        if len(self._block) > HEAD_BYTES:
            raise _ProtocolError(f"a gRPC client sent a header block of over {HEAD_BYTES} bytes")

    def end(self, kind: int, flags: int, number: int) -> int | None:
        """Ends a frame of a block. Returns the flags of its first frame if the block is whole. Raises _ProtocolError,
        also for metadata that is not ASCII: gRPC would end its whole port."""
        if (kind == CONTINUATION) != bool(self._frames) or (self._frames and number != self._stream) or flags & PADDED:
            raise _ProtocolError(f"a gRPC client sent a wrong header block on stream {number}")
        if not self._frames:
            self._stream, self._flags = number, flags
        self._frames += 1
        if not flags & END_HEADERS:
            if self._frames == HEAD_FRAMES:
                raise _ProtocolError(f"a gRPC client sent a header block of over {HEAD_FRAMES} frames")
            return None
        block = bytes(self._block[5:] if self._flags & PRIORITY else self._block)
        self._block.clear()
        self._frames = 0
        if block and min(block) < 0x80:  # otherwise it has nothing but indexes of fields that came before
            try:
                fields = self._decoder.decode(block, raw=True)
            except HPACKError as error:
                raise _ProtocolError(f"a gRPC client sent a wrong header block: {error}") from None
            if any(not (name + value).isascii() for name, value in fields):
                raise _ProtocolError("a gRPC client sent metadata that is not ASCII")
        return self._flags


def for_clients(settings: bytes) -> bytes:
    """Returns gRPC's frame of SETTINGS as clients get it."""
    told = bytearray(settings)
    if told[3] == SETTINGS:
        for at in range(FRAME_HEAD.size, len(told), SETTING.size):
            name, value = SETTING.unpack_from(told, at)
            SETTING.pack_into(told, at, name, FOR_CLIENTS.get(name, value))
    return bytes(told)


class Frames:
    """Splits bytes into frames of HTTP/2, behind `before` other bytes. `hear` is told kind, flags, stream and content
    of each piece of the kinds of frames that it `tells`, of data without padding; and of the end of each frame, with
    None as content. `data_bytes` counts what frames of data have had. `at` is the place of the piece that is told."""

    __slots__ = (
        *("_before", "_flags", "_head", "_hear", "_is_padded", "_kind", "_left", "_padding", "_stream", "_taken"),
        *("_tells", "at", "data_bytes"),
    )

    def __init__(
        self,
        hear: Callable[[int, int, int, memoryview | None], None],
        before: int = 0,
        tells: frozenset[int] = frozenset(),
    ) -> None:
        self._hear = hear
        self._before = before
        self._tells = tells
        self._taken = self.at = 0
        self._head = b""
        self.data_bytes = 0
        self._left = self._padding = self._kind = self._flags = self._stream = 0
        self._is_padded = False  # the next byte says how long the padding is

    def feed(self, data: bytes) -> None:
        """Takes the next bytes."""
        end = len(data)
        at = min(self._before, end)
        self._before -= at
        before, self._taken = self._taken, self._taken + end
        view = memoryview(data)
        while at < end:
            if not self._left:
                size = FRAME_HEAD.size - len(self._head)
                self._head += data[at : at + size]
                if len(self._head) < FRAME_HEAD.size:
                    return
                at += size
                high, low, self._kind, self._flags, stream = FRAME_HEAD.unpack(self._head)
                self._head = b""
                self._left, self._stream = high << 16 | low, stream & 0x7FFF_FFFF
                self._padding, self._is_padded = 0, self._kind == DATA and bool(self._flags & PADDED)
            size = min(self._left, end - at)
            if size and self._kind == DATA:
                self.data_bytes += size
            if size and self._kind in self._tells:
                self.at = before + at
                self._take(view[at : at + size])
            self._left -= size
            at += size
            if not self._left:
                self._hear(self._kind, self._flags, self._stream, None)

    def _take(self, piece: memoryview) -> None:
        """Hands on a piece of a frame that has `_left` bytes, the padding of data included."""
        left = self._left
        if self._is_padded:
            self._is_padded, self._padding = False, piece[0]
            piece, left = piece[1:], left - 1
        content = piece[: max(0, left - self._padding)]
        if content:
            self._hear(self._kind, self._flags, self._stream, content)

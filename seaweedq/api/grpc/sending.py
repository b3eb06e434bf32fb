"""The messages of one call on their way to its client, and its status.

A message that its client does not take in time stays in gRPC until the connection ends: a status goes behind it, and
gRPC has no way to end one call. So its bytes, and the call itself, count until gRPC has sent the status or given it up.
A message counts as an answer of HTTP does (connections/memory), COPIES times: a client that goes on not to take it, or
takes it slowly while others need the memory, loses its connection, and that frees the memory.

The answer of a unary call goes together with its status, in one step of gRPC. A short one is not counted; if its client
does not take it within answer_timeout_s, no status can tell why, and the connection ends at once.

The head of a stream goes by itself, before the first message. Otherwise, gRPC would not know that it was sent, once a
message is given up, and refuse to send the status.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc.aio
from google.rpc import status_pb2
from grpc_status.rpc_status import to_status

from seaweedq.api.connections.memory import LARGE_BYTES, UnreadAnswers, UnreadBuffer
from seaweedq.api.grpc.bounds import Peer
from seaweedq.api.problems import Refusals
from seaweedq.api.request import ClientGone
from seaweedq.errors import RequestTimeout

COPIES = 3  # of a message: its rows, Python's, and gRPC's
Context = Any  # grpc.aio.ServicerContext


class Sending:
    """The way to the client of one call of a `method`. `held` are functions that release what counts until gRPC has
    ended the call, `failed` the error after which nothing more can be sent, `peer` the client's connection, once the
    call counts."""

    peer: Peer

    def __init__(
        self, context: Context, unread: UnreadAnswers, refusals: Refusals, timeout_s: float, method: str = ""
    ) -> None:
        self.context = context
        self.method = method
        self.held: list[Callable[[], object]] = []
        self.failed: Exception | None = None
        self._unread = unread
        self._refusals = refusals
        self._timeout_s = timeout_s
        self._has_begun = False
        self._turn = asyncio.Lock()  # gRPC takes one message of a call at a time

    async def begin(self) -> None:
        """Sends the head of the answer, unless it was sent. Raises ClientGone."""
        if not self._has_begun:
            self._has_begun = True
            try:
                with _noticing():
                    await self.context.send_initial_metadata(())
            except ClientGone as error:
                self.failed = error
                raise

    async def idle(self) -> None:
        """Returns once no message is on its way."""
        async with self._turn:
            pass

    def release(self, _: Context) -> None:
        """Releases what counts, once gRPC has ended the call."""
        while self.held:
            self.held.pop()()

    def last(self, content: bytes) -> bytes:
        """Returns the answer of a unary call, which counts until gRPC has sent it. Raises Overloaded."""
        if len(content) >= LARGE_BYTES:
            self._unread.admit(COPIES * len(content))
            counted = ExitStack()
            counted.enter_context(self.counting(len(content)))
            self.held.append(counted.close)
        else:
            self.held.append(self.peer.begin_answer())
        return content

    async def write(self, content: bytes) -> None:
        """Sends a message, behind those that others of the call send. Raises RequestTimeout if its client does not take
        all of it within answer_timeout_s, Overloaded, ClientGone."""
        if len(content) >= LARGE_BYTES:
            self._unread.admit(COPIES * len(content))
        with self.counting(len(content)):
            await self.write_counted(content)

    @contextmanager
    def counting(self, size: int) -> Iterator[None]:
        """Counts a message of `size` bytes while it is made and sent; until the call ends if gRPC keeps it."""
        peer, before = self.peer, self.peer.taken
        unread = UnreadBuffer(lambda: COPIES * max(0, size - (peer.taken - before)), self._cut)
        self._unread.begin(unread)
        peer.unread[unread] = None
        with ExitStack() as counted:
            counted.callback(peer.unread.pop, unread)
            counted.callback(self._unread.end, unread)
            try:
                yield
            except (asyncio.CancelledError, RequestTimeout):
                self._unread.renew(unread)
                self.held.append(counted.pop_all().close)
                raise

    def _cut(self) -> None:
        """Ends the client's connection, and with it the memory of all its calls."""
        for unread in self.peer.unread:
            self._unread.end(unread)
        self.peer.abort()

    async def write_counted(self, content: bytes) -> None:
        """Sends a message that counts already, as `write` does."""
        async with self._turn:
            if self.failed:
                raise self.failed
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self.begin()
                    with _noticing():
                        await self.context.write(content)
            except TimeoutError:
                told = f"the client did not read a message within answer_timeout_s={self._timeout_s:g}"
                self._refusals.note("unread_answer", told)
                self.failed = RequestTimeout(told, timeout_s=self._timeout_s)
                raise self.failed from None
            except ClientGone as error:
                self.failed = error
                raise

    async def end(self, status: status_pb2.Status) -> None:
        """Ends the call with an error, once gRPC has sent or given up all of it. Raises AbortError, ClientGone."""
        with _noticing():
            await self.context.abort_with_status(to_status(status))


@contextmanager
def _noticing() -> Iterator[None]:
    """Raises ClientGone for a call that has ended."""
    try:
        yield
    except grpc.aio.InternalError:
        raise ClientGone from None

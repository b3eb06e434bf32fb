"""A stream's call as a WebSocket of its route, inside the process. Nothing is written here but acks, by the route.

States: opening -> open -> ended. *Opening*: the route judges the first message, and accepts: then the head of the
answer goes out. *Open*: the route's frames go out as messages, one at a time, each once gRPC has taken the one before.
A `Subscribe` takes messages, too: one is read once the one before is answered, so that a stream holds one, and gRPC's
windows hold back a client that is faster. *Ended*, at which the route ends the leases:

- the client ends its side: what it sent is answered, a message on its way to it goes out, and the status is OK;
- the client goes, or does not take a message within answer_timeout_s;
- it sends what is no message of the method: the status says so;
- the token, the right, the topic or the subscription ends, or the broker leaves: the status is the route's last frame.
  A broker that leaves answers the message that it has begun, if that takes no longer than ANSWER_S
  (streams/transports).

An ack that was answered is durable, at any broker. One that was not may be: the client sends it again, to any broker,
where it adds nothing. So no ack is lost, wherever the stream breaks. A crash of this broker leaves leases that end at
their deadline, or with their dispatcher.
"""

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any

import grpc.aio
import msgspec

from seaweedq.api.connections.memory import DecodingMemory
from seaweedq.api.connections.web_sockets import MAX_MESSAGE_BYTES
from seaweedq.api.grpc.methods import (
    ANSWER_COPIES,
    INLINE_BYTES,
    Incoming,
    Streaming,
    answered,
    decoded,
    needed,
    problem_of_last,
)
from seaweedq.api.grpc.sending import Sending
from seaweedq.api.request import ClientGone, headers_of
from seaweedq.errors import RequestTimeout, RequestTooLarge, SeaweedqError, Unavailable

AGAIN = {"retry-after": "1"}  # behind a 503: a frame has no headers
_GONE = {"type": "websocket.disconnect"}


class CallSocket:
    """The WebSocket of one call. `problem` is its last frame, or the refusal of the handshake."""

    def __init__(self, sending: Sending, method: Streaming, decoding: DecodingMemory, caller: str) -> None:
        self.problem: Incoming | None = None
        self._sending, self._method, self._decoding, self._caller = sending, method, decoding, caller
        self._fault: SeaweedqError | None = None  # of a message of the client
        self._is_open = self._is_over = False
        self._refusal: tuple[int, dict[str, str]] = 0, {}

    @property
    def failed(self) -> Exception | None:
        """Returns the error with which the call ends, if the WebSocket has not said one."""
        failed = self._sending.failed
        if isinstance(failed, RequestTimeout):
            return Unavailable(f"{failed.detail}; {self._method.again}")
        return failed or self._fault

    async def receive(self) -> MutableMapping[str, Any]:
        """As ASGI: what the client says."""
        if not self._is_open:
            self._is_open = True
            return {"type": "websocket.connect"}
        if self._method.says is None:
            await asyncio.Event().wait()  # the call is cancelled if its client goes
        try:
            message = await self._sending.context.read()
            if message is not grpc.aio.EOF:
                return {"type": "websocket.receive", "text": await self._text_of(bytes(message))}
        except SeaweedqError as error:
            self._fault = error
            return _GONE
        self._is_over = True
        await self._sending.idle()
        return _GONE

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """As ASGI: what the broker says. Raises OSError if the client does not take it, as if it had gone."""
        kind = message["type"]
        if kind == "websocket.http.response.start":
            self._refusal = message["status"], headers_of(message)
        elif kind == "websocket.http.response.body":
            self.problem = Incoming(*self._refusal, bytes(message["body"]))
        elif kind == "websocket.accept":
            await self._sending.begin()
        elif kind == "websocket.send" and self.problem is None:
            frame = message.pop("text").encode()
            if (last := problem_of_last(frame)) is not None:
                status = msgspec.json.decode(last)["status"]
                self.problem = Incoming(status, AGAIN if status == 503 else {}, last)
            elif self._is_over:
                raise OSError("the client has ended the stream")
            else:
                try:
                    with self._sending.counting(len(frame)):
                        message["bytes"] = content = await self._converted(frame)  # instead of the text, which may go
                        del frame
                        await self._sending.write_counted(content)
                except (RequestTimeout, ClientGone) as error:
                    raise OSError(str(error)) from None

    async def _converted(self, frame: bytes) -> bytes:
        if len(frame) < INLINE_BYTES:
            return answered(self._method, frame)
        return await self._decoding.run_at_once(ANSWER_COPIES * len(frame), answered, self._method, frame)

    async def _text_of(self, content: bytes) -> str:
        """Returns a message as that of a WebSocket, and bounded like one. Raises RequestTooLarge, UnreadableBody,
        InvalidRequest."""
        if len(content) > MAX_MESSAGE_BYTES:
            raise RequestTooLarge(
                f"a message of a stream must have at most {MAX_MESSAGE_BYTES} bytes, not {len(content)}",
                limit_bytes=MAX_MESSAGE_BYTES,
            )
        assert self._method.says
        if len(content) < INLINE_BYTES:
            return _text(self._method.takes, self._method.says, content)
        work = _text, self._method.takes, self._method.says, content
        return await self._decoding.run(self._caller, 0, needed(content), *work)


def _text(kind: Any, says: Callable[[Any], str], content: bytes) -> str:
    return says(decoded(kind, content))

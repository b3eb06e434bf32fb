"""Pulls of SIZE messages, the ids in their answers, and the acks of those; beside an empty app, too."""

import msgspec

from benchmarks.http import request

SIZE = 500
JSON = "application/json"
PULL = b'{"max_messages":%d}' % SIZE


class _Message(msgspec.Struct):
    id: str


class _Pulled(msgspec.Struct):
    messages: list[_Message]


_pulled = msgspec.json.Decoder(_Pulled)


def ids_of(answer: bytes) -> list[str]:
    """The ids of the messages in an answer."""
    return [message.id for message in _pulled.decode(answer).messages]


def ack(path: str, ids: list[str]) -> bytes:
    """The request that acks messages."""
    return request(path, msgspec.json.encode({"ids": ids}), JSON)


def sample(size: int, count: int) -> bytes:
    """An answer of about `size` bytes, with ids as long as those of `count` messages."""
    messages = [{"id": f"0-{number}", "value": "x" * (size // SIZE - 40)} for number in range(count, count + SIZE)]
    return msgspec.json.encode({"messages": messages})

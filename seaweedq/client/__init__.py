"""The Python client's public names. One sans-I/O core, a sync and an async shell.

Each name is imported when it is first asked for: a program that uses one of the shells does not wait for the other.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seaweedq.client.aio.client import AsyncClient
    from seaweedq.client.core.held_messages import Reject, Worked
    from seaweedq.client.core.message import AsyncBatch, AsyncMessage, Batch, Message
    from seaweedq.client.core.wire import Published
    from seaweedq.client.sync.client import Client

__all__ = [
    "AsyncBatch",
    "AsyncClient",
    "AsyncMessage",
    "Batch",
    "Client",
    "Message",
    "Published",
    "Reject",
    "Worked",
]

_HOMES = {
    "AsyncBatch": "seaweedq.client.core.message",
    "AsyncClient": "seaweedq.client.aio.client",
    "AsyncMessage": "seaweedq.client.core.message",
    "Batch": "seaweedq.client.core.message",
    "Client": "seaweedq.client.sync.client",
    "Message": "seaweedq.client.core.message",
    "Published": "seaweedq.client.core.wire",
    "Reject": "seaweedq.client.core.held_messages",
    "Worked": "seaweedq.client.core.held_messages",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__

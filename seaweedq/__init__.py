"""seaweedq: a message queue whose storage is a directory of Parquet files.

Names of the client are handed on when they are first asked for, so that a broker never pays for their import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from seaweedq.levels import VERSION as __version__

if TYPE_CHECKING:
    from seaweedq.client import (
        AsyncBatch,
        AsyncClient,
        AsyncMessage,
        Batch,
        Client,
        Message,
        Published,
        Reject,
        Worked,
    )
    from seaweedq.errors import SeaweedqError

__all__ = [
    "AsyncBatch",
    "AsyncClient",
    "AsyncMessage",
    "Batch",
    "Client",
    "Message",
    "Published",
    "Reject",
    "SeaweedqError",
    "Worked",
    "__version__",
]

_HOMES = {
    "AsyncBatch": "seaweedq.client",
    "AsyncClient": "seaweedq.client",
    "AsyncMessage": "seaweedq.client",
    "Client": "seaweedq.client",
    "Batch": "seaweedq.client",
    "Message": "seaweedq.client",
    "Published": "seaweedq.client",
    "Reject": "seaweedq.client",
    "Worked": "seaweedq.client",
    "SeaweedqError": "seaweedq.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__

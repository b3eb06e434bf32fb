"""The Python client's public names. One sans-I/O core, a sync and an async shell."""

from seaweedq.client.aio.client import AsyncClient
from seaweedq.client.core.batch import Batch
from seaweedq.client.core.message import Message
from seaweedq.client.core.working import Reject, Worked
from seaweedq.client.sync.client import Client

__all__ = ["AsyncClient", "Batch", "Client", "Message", "Reject", "Worked"]

"""The Python client's public names. One sans-I/O core, a sync and an async shell."""

from seaweedq.client.aio.client import AsyncClient
from seaweedq.client.core.consuming.working import Reject, Worked
from seaweedq.client.core.messages.batch import Batch
from seaweedq.client.core.messages.message import Message
from seaweedq.client.sync.client import Client

__all__ = ["AsyncClient", "Batch", "Client", "Message", "Reject", "Worked"]

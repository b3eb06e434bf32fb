"""The Python client: what users import. One sans-I/O core, a sync and an async shell."""

from seaweedq.client.async_client import AsyncClient
from seaweedq.client.client import Client
from seaweedq.client.message import Message

__all__ = ["AsyncClient", "Client", "Message"]

"""Coordination of the brokers: a small key-value interface, its backends, the key catalogue, membership, election."""

from seaweedq.coordination.election import Election
from seaweedq.coordination.interface import (
    Change,
    Compare,
    Coordination,
    Delete,
    Entry,
    Leases,
    Page,
    Put,
    WatchLost,
    read_all,
)
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.sqlite import EmbeddedCoordination

__all__ = [
    "Change",
    "Compare",
    "Coordination",
    "Delete",
    "Election",
    "EmbeddedCoordination",
    "Entry",
    "Leases",
    "Membership",
    "MemoryCoordination",
    "Page",
    "Put",
    "WatchLost",
    "read_all",
]

"""Coordination of the brokers: a small key-value interface, its backends, the key catalogue, membership, election."""

from seaweedq.coordination.election import Election
from seaweedq.coordination.interface import Change, Compare, Coordination, Delete, Entry, Leases, Page, Put, WatchLost
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.sqlite.backend import EmbeddedCoordination
from seaweedq.coordination.transactions import read_all

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

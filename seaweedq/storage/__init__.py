"""Object stores with create-if-absent: the interface, the local store, its in-memory twin, the checks at start."""

from seaweedq.storage.identity import Identity, cluster_identity
from seaweedq.storage.interface import Data, ObjectStore
from seaweedq.storage.local import LocalStore
from seaweedq.storage.memory import MemoryStore
from seaweedq.storage.probe import probe

__all__ = ["Data", "Identity", "LocalStore", "MemoryStore", "ObjectStore", "cluster_identity", "probe"]

"""Keys between brokers whose roots are made at once: scrypt takes a tenth of a second."""

import hashlib

from seaweedq.broker.rpc.peer_keys import PeerKeys


def quick_root(secret: str, cluster: str) -> bytes:
    """A root as `stretch` makes it, at no cost."""
    return hashlib.sha256(f"{cluster}\n{secret}".encode()).digest()


def keys_of(*secrets: str, cluster: str = "c1") -> PeerKeys:
    """The keys of some secrets."""
    return PeerKeys.of(secrets, cluster, quick_root)

"""Keys between brokers whose roots are made at once: scrypt takes a tenth of a second."""

import hashlib
from collections.abc import Sequence

from seaweedq.broker.rpc.peer_keys import PeerKeys


def quick_root(secret: str, cluster: str) -> bytes:
    """A root as `stretch` makes it, at no cost."""
    return hashlib.sha256(f"{cluster}\n{secret}".encode()).digest()


def keys_of(*secrets: str, cluster: str = "c1") -> PeerKeys:
    """The keys of some secrets."""
    return PeerKeys.from_secrets(secrets, cluster, quick_root)


async def make_quick_keys(secrets: Sequence[str], cluster: str) -> PeerKeys:
    """As `make_keys`, without a thread."""
    return keys_of(*secrets, cluster=cluster)

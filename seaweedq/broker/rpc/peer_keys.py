"""The keys by which brokers know each other. All are derived from the secrets of `cluster_secret`, which no broker
sends.

Each secret has a root: scrypt of the secret, salted with the cluster's id, so that two clusters with one secret share
no key. It is made once a start, as it takes a tenth of a second and 32 MiB. Every key comes from a root by HKDF (RFC
5869) under a label of its own, so none tells anything of another one. Nothing of them is stored or logged.

A broker's record holds one proof for each secret that the broker has: a MAC over the members by which it is called. So
others see which of their own secrets that broker takes, and one that takes none of them is not called at all.
"""

import asyncio
import hashlib
import hmac
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from seaweedq.coordination.records import BrokerRecord

SCRYPT_N, SCRYPT_R = 1 << 15, 8
_SCRYPT_BYTES = 64 * 1024 * 1024
Stretch = Callable[[str, str], bytes]  # the root of a secret and a cluster's id


def stretch(secret: str, cluster: str) -> bytes:
    """Returns the root of a secret."""
    salt = cluster.encode()
    return hashlib.scrypt(secret.encode(), salt=salt, n=SCRYPT_N, r=SCRYPT_R, p=1, maxmem=_SCRYPT_BYTES, dklen=32)


def hkdf(key: bytes, salt: bytes, info: bytes, length: int = 32) -> bytes:
    """Returns `length` bytes derived from a key (RFC 5869, SHA-256)."""
    extracted = hmac.digest(salt, key, "sha256")
    block = found = b""
    for number in range(1, -(-length // 32) + 1):
        block = hmac.digest(extracted, block + info + bytes([number]), "sha256")
        found += block
    return found[:length]


def framed(*parts: bytes) -> bytes:
    """Returns parts as one text, from which nobody can make other parts: each follows its length."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


@dataclass(frozen=True, slots=True)
class RootKeys:
    """The keys of one secret."""

    root: bytes = field(repr=False)
    hello: bytes = field(repr=False)
    record: bytes = field(repr=False)

    @staticmethod
    def from_root(root: bytes) -> "RootKeys":
        """Returns the keys of a root."""
        return RootKeys(root, _labelled(root, b"hello"), _labelled(root, b"record"))

    def derive(self, label: bytes, context: bytes = b"", length: int = 32) -> bytes:
        """Returns the key of a label and a context."""
        return _labelled(self.root, label, context, length)

    def prove(self, broker: str, record: BrokerRecord) -> str:
        """Returns the proof that a broker with this record knows the secret."""
        return hmac.digest(self.record, _proven(broker, record), "sha256").hex()

    def is_proven(self, broker: str, record: BrokerRecord) -> bool:
        """Tells whether a broker's record proves that it knows the secret."""
        made = self.prove(broker, record).encode()
        return any(hmac.compare_digest(made, shown.encode()) for shown in record.proofs)


@dataclass(frozen=True, slots=True)
class PeerKeys:
    """The keys of all secrets of a broker. The first one signs if the other side takes it; all are accepted."""

    roots: tuple[RootKeys, ...] = ()

    @staticmethod
    def from_secrets(secrets: Sequence[str], cluster: str, stretched: Stretch = stretch) -> "PeerKeys":
        """Returns the keys of secrets in a cluster. It takes a while."""
        return PeerKeys(tuple(RootKeys.from_root(stretched(secret, cluster)) for secret in secrets))

    def prove(self, broker: str, record: BrokerRecord) -> tuple[str, ...]:
        """Returns the `proofs` of a broker's record."""
        return tuple(one.prove(broker, record) for one in self.roots)

    def shared(self, broker: str, record: BrokerRecord) -> RootKeys | None:
        """Returns the first of these keys that a broker's record proves to be the broker's, too."""
        return next((one for one in self.roots if one.is_proven(broker, record)), None)


class Secured(NamedTuple):
    """TLS of a connection to a port for brokers: the context, and the name that the other side must show."""

    context: ssl.SSLContext
    name: str


async def make_keys(secrets: Sequence[str], cluster: str) -> PeerKeys:
    """Returns the keys of secrets in a cluster. The loop goes on meanwhile."""
    return await asyncio.to_thread(PeerKeys.from_secrets, secrets, cluster)


MakeKeys = Callable[[Sequence[str], str], Awaitable[PeerKeys]]


def _labelled(root: bytes, label: bytes, context: bytes = b"", length: int = 32) -> bytes:
    return hkdf(root, b"seaweedq between brokers", framed(label, context), length)


def _proven(broker: str, record: BrokerRecord) -> bytes:
    """Returns the members that a proof covers: none of them changes as long as the broker lives."""
    numbers = (record.started_us, record.lowest, record.highest)
    return framed(*(text.encode() for text in (broker, record.url, record.peer_url, *map(str, numbers))))

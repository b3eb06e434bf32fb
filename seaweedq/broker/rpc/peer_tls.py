"""TLS at the ports for brokers: 1.3, with certificates on both sides, which broker/rpc/peer_certificates makes.

A caller checks that the callee has the broker id that it means, by the name in its certificate; the address has no part
in it. The callee takes every certificate of an authority that it has; who calls is shown by the session inside, whose
MAC needs the same secret.

While the secret is changed a broker has several authorities. The caller chooses one that both have, by the proofs in
the callee's record: it shows a certificate of that one, trusts that one alone, and names it in the server's name, by
which the callee chooses its own certificate. A name without an authority that the callee has gets a certificate of the
first one, which the caller refuses.
"""

import os
import ssl
import tempfile
from dataclasses import dataclass
from typing import Any

from seaweedq.broker.rpc.peer_certificates import SEED_BYTES, SERIAL_BYTES, Authority, Pair, private_key
from seaweedq.broker.rpc.peer_keys import PeerKeys, RootKeys
from seaweedq.broker.rpc.transport import Secured
from seaweedq.clock import Ids


@dataclass(frozen=True, slots=True)
class _Side:
    """The contexts of one authority."""

    authority: Authority
    client: ssl.SSLContext
    server: ssl.SSLContext


class PeerTls:
    """The contexts of one life of a broker."""

    def __init__(self, keys: PeerKeys, me: str, ids: Ids) -> None:
        authorities = [Authority.of(one) for one in keys.roots]
        key = private_key(_random(ids, SEED_BYTES))
        trusted = "".join(one.certificate for one in authorities)
        self._sides: dict[RootKeys, _Side] = {}
        for root, authority in zip(keys.roots, authorities, strict=True):
            serial = int.from_bytes(_random(ids, SERIAL_BYTES), "big") >> 1 | 1
            pair = authority.issue(me, key, serial)
            client = _context(ssl.PROTOCOL_TLS_CLIENT, pair, authority.certificate)
            server = _context(ssl.PROTOCOL_TLS_SERVER, pair, trusted)
            self._sides[root] = _Side(authority, client, server)
        self._by_tag = {side.authority.tag: side.server for side in self._sides.values()}
        self._first = next(iter(self._by_tag.values()))
        self._first.sni_callback = self._choose

    def server(self) -> ssl.SSLContext:
        """Returns the context for a connection that comes in."""
        return self._first

    def client(self, broker: str, keys: RootKeys) -> Secured:
        """Returns how a connection to another broker is secured, with keys that both know."""
        side = self._sides[keys]
        return Secured(side.client, side.authority.name(broker))

    def _choose(self, connection: Any, name: str | None, first: ssl.SSLContext) -> None:
        """Shows a certificate of the authority that the caller has named."""
        connection.context = self._by_tag.get((name or "").rpartition(".")[2], first)


def _random(ids: Ids, size: int) -> bytes:
    return b"".join(bytes.fromhex(ids.nonce()) for _ in range(size // 16))


def _context(side: int, pair: Pair, trusted: str) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=trusted)
    if side == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # nobody would use them
    _load(context, pair)
    return context


def _load(context: ssl.SSLContext, pair: Pair) -> None:
    """Gives a context its certificate; ssl takes it from files alone, so one is there for a moment, for nobody else."""
    fd, path = tempfile.mkstemp(prefix="seaweedq-")
    try:
        with open(fd, "w") as file:
            file.write(pair.key + pair.certificate)
        context.load_cert_chain(path)
    finally:
        os.unlink(path)

"""TLS at the ports for brokers: 1.3, with certificates on both sides.

A caller checks that the callee has the broker id that it means, by the name in its certificate; the address has no part
in it. The callee takes every certificate of an authority that it has; who calls is shown by the session inside, whose
MAC needs the same secret.

While the secret is changed a broker has several authorities. The caller chooses one that both have, by the proofs in
the callee's record: it shows a certificate of that one, trusts that one alone, and names it in the server's name, by
which the callee chooses its own certificate. A name without an authority that the callee has gets a certificate of the
first one, which the caller refuses.

The certificates (RFC 5280) are signed by an authority that each broker makes of the secret. It has a key that HKDF
derives from a secret's root, and a subject, a serial number and a validity that are the same everywhere, and its
signature comes of these alone (RFC 6979): brokers with one secret have one authority, and never talk of it. It signs
one certificate a life, for a key that is drawn at the start, under the name of the broker's id. All are valid from 1970
to 2100, since nobody's clock has a part in this: who knows the secret belongs to the cluster, and a certificate ends
with its key.

An authority has a *tag*, which is derived, too, and tells nothing of the secret. It is the last part of the names that
the authority signs: while the secret is changed, a caller asks by the name for a certificate under an authority that it
has.

`cryptography` makes keys and certificates. It takes a while to import, so broker/rpc/peer_keyring imports this module
at the first need.
"""

import os
import ssl
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    derive_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from seaweedq.broker.rpc.peer_keys import PeerKeys, RootKeys, Secured
from seaweedq.clock import Ids

SEED_BYTES, TAG_BYTES, SERIAL_BYTES = 48, 8, 16
BEGIN, END = datetime(1970, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, PEM."""

    certificate: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Authority:
    """The authority of one secret."""

    tag: str
    certificate: str
    _key: EllipticCurvePrivateKey = field(repr=False)
    _id: x509.SubjectKeyIdentifier = field(repr=False)

    @staticmethod
    def from_keys(keys: RootKeys) -> "Authority":
        """Returns the authority of a secret."""
        tag = keys.derive(b"authority of peers, tag", length=TAG_BYTES).hex()
        key = private_key(keys.derive(b"authority of peers", length=SEED_BYTES))
        id = _key_id(key.public_key())
        name = _subject(tag)
        builder = (
            _builder(name, name, key.public_key(), 1)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)  # it signs no authorities
            .add_extension(_usage(key_cert_sign=True), critical=True)
            .add_extension(id, critical=False)
        )
        return Authority(tag, _signed(builder, key), key, id)

    def name(self, broker: str) -> str:
        """Returns the name in the certificate of a broker."""
        return f"{broker}.{self.tag}"

    def issue(self, broker: str, key: EllipticCurvePrivateKey, serial: int) -> Pair:
        """Returns the certificate of a broker for a private key."""
        public = key.public_key()
        both_sides = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = (
            _builder(_subject(self.tag), _name("a broker"), public, serial)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(both_sides, critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(self.name(broker))]), critical=False)
            .add_extension(_key_id(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._id), critical=False)
        )
        shown = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        return Pair(_signed(builder, self._key), shown)


def private_key(seed: bytes) -> EllipticCurvePrivateKey:
    """Returns the private key that a seed of 48 bytes makes (FIPS 186-5, A.2.1)."""
    assert len(seed) == SEED_BYTES
    return derive_private_key(int.from_bytes(seed, "big") % (_ORDER - 1) + 1, SECP256R1())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _subject(tag: str) -> x509.Name:
    return _name(f"seaweedq brokers {tag}")


def _key_id(public: EllipticCurvePublicKey) -> x509.SubjectKeyIdentifier:
    """Returns the id of a key (RFC 7093, method 1)."""
    point = public.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return x509.SubjectKeyIdentifier(sha256(point).digest()[:20])


def _usage(digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    issuer: x509.Name, subject: x509.Name, public: EllipticCurvePublicKey, serial: int
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(issuer, subject, public, serial, BEGIN, END)


def _signed(builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey) -> str:
    """Returns a certificate, the same one each time."""
    return builder.sign(key, SHA256(), ecdsa_deterministic=True).public_bytes(Encoding.PEM).decode()


@dataclass(frozen=True, slots=True)
class _Side:
    """The contexts of one authority."""

    authority: Authority
    client: ssl.SSLContext
    server: ssl.SSLContext


class PeerTls:
    """The contexts of one life of a broker."""

    def __init__(self, keys: PeerKeys, me: str, ids: Ids) -> None:
        authorities = [Authority.from_keys(one) for one in keys.roots]
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

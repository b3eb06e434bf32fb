"""Certificates (RFC 5280) between brokers: an authority that each broker makes of the secret, and what it signs.

An authority has a key that HKDF derives from a secret's root, and a subject, a serial number and a validity that are
the same everywhere, and its signature comes of these alone (RFC 6979): brokers with one secret have one authority, and
never talk of it. It signs one certificate a life, for a key that is drawn at the start, under the name of the broker's
id. All are valid from 1970 to 2100, since nobody's clock has a part in this: who knows the secret belongs to the
cluster, and a certificate ends with its key.

An authority has a *tag*, which is derived, too, and tells nothing of the secret. It is the last part of the names that
the authority signs: while the secret is changed, a caller asks by the name for a certificate under an authority that it
has (broker/rpc/peer_tls).

`cryptography` makes keys and certificates. It takes a while to import, so broker/rpc/peer_trust imports this module at
the first need.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256

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

from seaweedq.broker.rpc.peer_keys import RootKeys

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
    def of(keys: RootKeys) -> "Authority":
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

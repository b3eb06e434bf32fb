"""Certificates (RFC 5280) between brokers: an authority that each broker makes of the secret, and what it signs.

An authority has a key that HKDF derives from a secret's root, and a subject, a serial number and a validity that are
the same everywhere: brokers with one secret have one authority, and never talk of it. It signs one certificate a life,
for a key that is drawn at the start, under the name of the broker's id. All are valid from 1970 to 2100, since nobody's
clock has a part in this: who knows the secret belongs to the cluster, and a certificate ends with its key.

An authority has a *tag*, which is derived, too, and tells nothing of the secret. It is the last part of the names that
the authority signs: while the secret is changed, a caller asks by the name for a certificate under an authority that it
has (broker/rpc/peer_tls).
"""

from base64 import encodebytes
from dataclasses import dataclass, field
from hashlib import sha256

from seaweedq.broker.rpc import p256
from seaweedq.broker.rpc.peer_keys import RootKeys

SEED_BYTES, TAG_BYTES, SERIAL_BYTES = 48, 8, 16
_BOOLEAN, _INTEGER, _BITS, _OCTETS, _OID, _UTF8, _UTC_TIME, _TIME, _SEQUENCE, _SET = (
    bytes([tag]) for tag in (0x01, 0x02, 0x03, 0x04, 0x06, 0x0C, 0x17, 0x18, 0x30, 0x31)
)
_VERSION, _EXTENSIONS, _CURVE_OF_KEY, _KEY_ID, _DNS_NAME = (bytes([tag]) for tag in (0xA0, 0xA3, 0xA0, 0x80, 0x82))


def _der(tag: bytes, *parts: bytes) -> bytes:
    """Returns an element of DER."""
    content = b"".join(parts)
    size = len(content)
    if size < 0x80:
        return tag + bytes([size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return tag + bytes([0x80 | len(length)]) + length + content


def _integer(number: int) -> bytes:
    return _der(_INTEGER, number.to_bytes(number.bit_length() // 8 + 1, "big"))


def _oid(*bytes_: int) -> bytes:
    return _der(_OID, bytes(bytes_))


def _bits(content: bytes, unused: int = 0) -> bytes:
    return _der(_BITS, bytes([unused]), content)


_TRUE = _der(_BOOLEAN, b"\xff")
_CURVE = _oid(0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x03, 0x01, 0x07)  # P-256
_KIND_OF_KEY = _der(_SEQUENCE, _oid(0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x02, 0x01), _CURVE)
_SIGNED_BY = _der(_SEQUENCE, _oid(0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x04, 0x03, 0x02))  # ECDSA with SHA-256
_VALIDITY = _der(_SEQUENCE, _der(_UTC_TIME, b"700101000000Z"), _der(_TIME, b"21000101000000Z"))
_COMMON_NAME = _oid(0x55, 0x04, 0x03)
_BOTH_SIDES = _der(_SEQUENCE, *(_oid(0x2B, 6, 1, 5, 5, 7, 3, one) for one in (1, 2)))  # of a server, of a client
_OF_SUBJECT, _USAGE, _NAMES, _BASIC, _OF_AUTHORITY, _EXTENDED = (
    _oid(0x55, 0x1D, one) for one in (14, 15, 17, 19, 35, 37)
)


def _extension(kind: bytes, value: bytes, critical: bool = False) -> bytes:
    return _der(_SEQUENCE, kind, _TRUE if critical else b"", _der(_OCTETS, value))


def _name(text: str) -> bytes:
    return _der(_SEQUENCE, _der(_SET, _der(_SEQUENCE, _COMMON_NAME, _der(_UTF8, text.encode()))))


def _point(public: p256.Point) -> bytes:
    return b"\4" + b"".join(one.to_bytes(p256.BYTES, "big") for one in public)


def _pem(label: str, content: bytes) -> str:
    return f"-----BEGIN {label}-----\n{encodebytes(content).decode()}-----END {label}-----\n"


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
    _key: int = field(repr=False)
    _id: bytes = field(repr=False)

    @staticmethod
    def of(keys: RootKeys) -> "Authority":
        """Returns the authority of a secret."""
        tag = keys.derive(b"authority of peers, tag", length=TAG_BYTES).hex()
        key = p256.private_key(keys.derive(b"authority of peers", length=SEED_BYTES))
        public = p256.public_key(key)
        id = _key_id(public)
        extensions = [
            _extension(_BASIC, _der(_SEQUENCE, _TRUE, _integer(0)), critical=True),  # it signs no authorities
            _extension(_USAGE, _bits(b"\x04", unused=2), critical=True),  # it signs certificates
            _extension(_OF_SUBJECT, _der(_OCTETS, id)),
        ]
        name = _subject(tag)
        return Authority(tag, _signed(1, name, name, public, extensions, key), key, id)

    def name(self, broker: str) -> str:
        """Returns the name in the certificate of a broker."""
        return f"{broker}.{self.tag}"

    def issue(self, broker: str, key: int, serial: int) -> Pair:
        """Returns the certificate of a broker for a private key."""
        public = p256.public_key(key)
        extensions = [
            _extension(_BASIC, _der(_SEQUENCE), critical=True),
            _extension(_USAGE, _bits(b"\x80", unused=7), critical=True),  # it signs handshakes
            _extension(_EXTENDED, _BOTH_SIDES),
            _extension(_NAMES, _der(_SEQUENCE, _der(_DNS_NAME, self.name(broker).encode()))),
            _extension(_OF_SUBJECT, _der(_OCTETS, _key_id(public))),
            _extension(_OF_AUTHORITY, _der(_SEQUENCE, _der(_KEY_ID, self._id))),
        ]
        subject = _name("a broker")
        certificate = _signed(serial, _subject(self.tag), subject, public, extensions, self._key)
        private = [_integer(1), _der(_OCTETS, key.to_bytes(p256.BYTES, "big")), _der(_CURVE_OF_KEY, _CURVE)]
        return Pair(certificate, _pem("EC PRIVATE KEY", _der(_SEQUENCE, *private)))


def _subject(tag: str) -> bytes:
    return _name(f"seaweedq brokers {tag}")


def _key_id(public: p256.Point) -> bytes:
    return sha256(_point(public)).digest()[:20]


def _signed(serial: int, issuer: bytes, subject: bytes, public: p256.Point, extensions: list[bytes], key: int) -> str:
    content = _der(
        _SEQUENCE,
        _der(_VERSION, _integer(2)),  # which is 3
        _integer(serial),
        _SIGNED_BY,
        issuer,
        _VALIDITY,
        subject,
        _der(_SEQUENCE, _KIND_OF_KEY, _bits(_point(public))),
        _der(_EXTENSIONS, _der(_SEQUENCE, *extensions)),
    )
    signature = _der(_SEQUENCE, *map(_integer, p256.sign(key, content)))
    return _pem("CERTIFICATE", _der(_SEQUENCE, content, _SIGNED_BY, _bits(signature)))

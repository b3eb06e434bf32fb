"""The curve P-256 (FIPS 186-5) by plain arithmetic: public keys, and signatures of certificates.

A broker signs a few certificates of its own at its start, and nothing that others give it; all else of TLS is done by
OpenSSL, which Python does not let make certificates. It takes a hundredth of a second a signature, and not the same
time for each key: who could time it on this machine could read this process's memory.
"""

import hmac
from collections.abc import Iterator
from hashlib import sha256

Point = tuple[int, int]
Jacobian = tuple[int, int, int]  # the point (x / z², y / z³); the neutral one where z is 0
FIELD = 2**256 - 2**224 + 2**192 + 2**96 - 1
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
BASE: Point = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
BYTES = 32


def private_key(seed: bytes) -> int:
    """Returns the private key that a seed of 48 bytes makes (FIPS 186-5, A.2.1)."""
    assert len(seed) == BYTES + 16
    return int.from_bytes(seed, "big") % (ORDER - 1) + 1


def public_key(key: int) -> Point:
    """Returns the public key of a private one."""
    found = _multiply(key)
    assert found is not None, "a key is below the order of the curve"
    return found


def sign(key: int, message: bytes) -> Point:
    """Returns the signature of a message: ECDSA with SHA-256, and numbers that come of key and message (RFC 6979)."""
    digest = int.from_bytes(sha256(message).digest(), "big")
    for number in _numbers(key, digest):
        point = _multiply(number)
        r = point[0] % ORDER if point else 0
        s = pow(number, -1, ORDER) * (digest + r * key) % ORDER
        if r and s:
            return r, s
    raise AssertionError("there is always one more number")


def _numbers(key: int, digest: int) -> Iterator[int]:
    """Yields secret numbers, of which the first one nearly always does."""
    seed = key.to_bytes(BYTES, "big") + (digest % ORDER).to_bytes(BYTES, "big")
    state, mac = b"\1" * BYTES, b"\0" * BYTES
    for mark in (b"\0", b"\1"):
        mac = hmac.digest(mac, state + mark + seed, "sha256")
        state = hmac.digest(mac, state, "sha256")
    while True:
        state = hmac.digest(mac, state, "sha256")
        if 0 < (number := int.from_bytes(state, "big")) < ORDER:
            yield number
        mac = hmac.digest(mac, state + b"\0", "sha256")
        state = hmac.digest(mac, state, "sha256")


def _multiply(factor: int) -> Point | None:
    """Returns a multiple of BASE; None for the neutral point."""
    found = (1, 1, 0)
    for bit in bin(factor)[2:]:
        found = _double(found)
        if bit == "1":
            found = _add_base(found)
    x, y, z = found
    if not z:
        return None
    inverse = pow(z, -1, FIELD)
    return x * inverse**2 % FIELD, y * inverse**3 % FIELD


def _double(point: Jacobian) -> Jacobian:
    x, y, z = point
    delta, gamma = z * z % FIELD, y * y % FIELD
    beta, alpha = x * gamma % FIELD, 3 * (x - delta) * (x + delta) % FIELD
    x = (alpha * alpha - 8 * beta) % FIELD
    return x, (alpha * (4 * beta - x) - 8 * gamma * gamma) % FIELD, 2 * y * z % FIELD


def _add_base(point: Jacobian) -> Jacobian:
    x, y, z = point
    if not z:
        return *BASE, 1
    square = z * z % FIELD
    dx, dy = (BASE[0] * square - x) % FIELD, (BASE[1] * square * z - y) % FIELD
    if not dx:
        return (1, 1, 0) if dy else _double(point)
    dx2 = dx * dx % FIELD
    dx3, v = dx * dx2 % FIELD, x * dx2 % FIELD
    x = (dy * dy - dx3 - 2 * v) % FIELD
    return x, (dy * (v - x) - y * dx3) % FIELD, z * dx % FIELD

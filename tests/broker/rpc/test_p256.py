"""The curve: vectors of RFC 6979, and the same as a library that others rely on."""

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from hypothesis import given, settings
from hypothesis import strategies as st

from seaweedq.broker.rpc import p256
from tests.support.tiers import examples

KEY = 0xC9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721
OF_SAMPLE = (
    0xEFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716,
    0xF7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8,
)
OF_TEST = (
    0xF1ABB023518351CD71D881567B1EA663ED3EFCF6C5132B354F28D3B0B7D38367,
    0x019F4113742A2B14BD25926B49C649155F267E60D3814B4C0CC84250E46F0083,
)


@pytest.mark.parametrize(("message", "expected"), [(b"sample", OF_SAMPLE), (b"test", OF_TEST)])
def test_signatures_are_those_of_rfc_6979(message: bytes, expected: tuple[int, int]) -> None:
    assert p256.sign(KEY, message) == expected


@settings(max_examples=examples(20))
@given(st.binary(min_size=48, max_size=48), st.binary(max_size=100))
def test_keys_and_signatures_are_those_of_others(seed: bytes, message: bytes) -> None:
    key = p256.private_key(seed)
    known = ec.derive_private_key(key, ec.SECP256R1()).public_key()
    assert p256.public_key(key) == (known.public_numbers().x, known.public_numbers().y)
    known.verify(encode_dss_signature(*p256.sign(key, message)), message, ec.ECDSA(hashes.SHA256()))


@pytest.mark.parametrize("key", [1, 2, 3, p256.ORDER - 1, p256.ORDER - 2])
def test_the_first_and_the_last_keys_are_keys(key: int) -> None:
    known = ec.derive_private_key(key, ec.SECP256R1()).public_key().public_numbers()
    assert p256.public_key(key) == (known.x, known.y)


def test_each_seed_makes_a_key_in_range() -> None:
    seeds = [bytes(48), b"\xff" * 48, (p256.ORDER - 1).to_bytes(48, "big"), p256.ORDER.to_bytes(48, "big")]
    assert all(0 < p256.private_key(seed) < p256.ORDER for seed in seeds)

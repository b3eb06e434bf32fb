"""Certificates between brokers, as a library that others rely on reads them."""

from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from seaweedq.broker.rpc.peer_certificates import SEED_BYTES, Authority, private_key
from tests.support.brokers.peer_keys import keys_of

(ROOT,) = keys_of("sesame").roots
BROKER = "Broker-1.0123456789abcdef"
KEY = private_key(bytes(range(SEED_BYTES)))


def read(pem: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem.encode())


def test_two_brokers_make_one_authority_and_another_secret_or_cluster_another_one() -> None:
    mine, theirs = Authority.of(ROOT), Authority.of(keys_of("sesame").roots[0])
    assert mine.certificate == theirs.certificate
    assert mine.name("b") == theirs.name("b")
    others = [keys_of("other").roots[0], keys_of("sesame", cluster="c2").roots[0]]
    for other in map(Authority.of, others):
        assert other.tag != mine.tag
        assert read(other.certificate).public_key() != read(mine.certificate).public_key()


def test_an_authority_signs_certificates_and_no_authorities_from_1970_to_2100() -> None:
    found = read(Authority.of(ROOT).certificate)
    found.verify_directly_issued_by(found)
    assert found.extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(True, 0)
    assert found.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    assert found.not_valid_before_utc == datetime(1970, 1, 1, tzinfo=UTC)
    assert found.not_valid_after_utc == datetime(2100, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("serial", [1, 127, 128, 255, 256, (1 << 127) - 1])
def test_a_broker_gets_a_certificate_under_its_name_for_its_key(serial: int) -> None:
    authority = Authority.of(ROOT)
    pair = authority.issue(BROKER, KEY, serial)
    found = read(pair.certificate)
    found.verify_directly_issued_by(read(authority.certificate))
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [f"{BROKER}.{authority.tag}"]
    assert found.serial_number == serial
    assert found.public_key() == load_pem_private_key(pair.key.encode(), None).public_key()
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_neither_key_is_shown() -> None:
    authority = Authority.of(ROOT)
    shown = repr((authority, authority.issue(BROKER, KEY, 1)))
    assert "PRIVATE" not in shown
    for key in (authority._key, KEY):
        assert str(key.private_numbers().private_value) not in shown

"""Handshakes at ports for brokers, without a network: who takes whom, also while the secret is changed, at any time.

Certificates between brokers, as a library that others rely on reads them.
"""

import itertools
import os
import ssl
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from seaweedq.broker.rpc.client import Secured
from seaweedq.broker.rpc.peer_tls import SEED_BYTES, Authority, PeerTls, private_key
from seaweedq.clock import SystemIds
from tests.support.brokers.peer_keys import keys_of
from tests.support.chaos.clocks import ABSENT, library
from tests.support.tiers import later

CALLER, CALLEE = "caller.0000000000000001", "callee.0000000000000002"


@cache
def tls_of(broker: str, *secrets: str, cluster: str = "c1") -> PeerTls:
    return PeerTls(keys_of(*secrets, cluster=cluster), broker, SystemIds())


def caller(secret: str, *more: str, cluster: str = "c1", means: str = CALLEE) -> Secured:
    """One with these secrets that knows the first to be the callee's, too."""
    return tls_of(CALLER, secret, *more, cluster=cluster).client(means, keys_of(secret, cluster=cluster).roots[0])


def shake(secured: Secured, context: ssl.SSLContext) -> tuple[str, str]:
    """The versions that both sides speak at last. Raises SSLError where one refuses the other."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = secured.context.wrap_bio(to_client, to_server, server_hostname=secured.name)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for side in itertools.islice(itertools.cycle((client, server)), 8):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            pass
    client.write(b"ping")
    assert server.read() == b"ping"
    server.write(b"pong")
    assert client.read() == b"pong"  # by now the client knows that its certificate was taken
    return client.version() or "", server.version() or ""


def test_brokers_with_one_secret_speak_tls_1_3() -> None:
    assert shake(caller("a"), tls_of(CALLEE, "a").server()) == ("TLSv1.3", "TLSv1.3")


@pytest.mark.parametrize(
    ("who", "why"),
    [
        ({"secret": "a", "means": "other.0000000000000003"}, "Hostname mismatch"),
        ({"secret": "b"}, "verify failed"),
        ({"secret": "a", "cluster": "c2"}, "verify failed"),
    ],
    ids=["is another broker", "has another secret", "is of another cluster"],
)
def test_a_caller_refuses_a_callee_that(who: dict[str, str], why: str) -> None:
    with pytest.raises(ssl.SSLError, match=why):
        shake(caller(**who), tls_of(CALLEE, "a").server())


def trusting_anybody(own: ssl.SSLContext | None = None) -> Secured:
    """A caller that refuses nobody."""
    context = own or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return Secured(context, CALLEE)


@pytest.mark.parametrize("shown", [None, "b"])
def test_a_callee_refuses_who_shows_no_certificate_of_its_secret(shown: str | None) -> None:
    own = (
        PeerTls(keys_of(shown), CALLER, SystemIds()).client(CALLEE, keys_of(shown).roots[0]).context if shown else None
    )
    secured = trusting_anybody(own)
    with pytest.raises(ssl.SSLError):
        shake(secured, tls_of(CALLEE, "a").server())


def test_older_versions_of_tls_are_refused() -> None:
    secured = PeerTls(keys_of("a"), CALLER, SystemIds()).client(CALLEE, keys_of("a").roots[0])
    secured.context.minimum_version = ssl.TLSVersion.TLSv1_2
    secured.context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        shake(secured, tls_of(CALLEE, "a").server())


def test_each_step_of_a_secrets_change_finds_a_certificate_for_both_sides() -> None:
    states = [("old",), ("new", "old"), ("new",)]
    for mine, others in itertools.product(states, states):
        shared = [secret for secret in mine if secret in others]
        if shared:
            keys = keys_of(shared[0]).roots[0]
            secured = tls_of(CALLER, *mine).client(CALLEE, keys)
            assert shake(secured, tls_of(CALLEE, *others).server())[0] == "TLSv1.3", (mine, others)


def test_a_name_of_no_known_authority_gets_the_first_ones_certificate() -> None:
    callee = tls_of(CALLEE, "a", "b").server()
    for name in ("", "x", f"{CALLEE}.0000000000000000"):
        secured = Secured(caller("a").context, name or "localhost")
        with pytest.raises(ssl.SSLError, match="Hostname mismatch"):
            shake(secured, callee)


def test_each_life_has_a_key_of_its_own_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shown = set()
    for _ in range(2):
        server = PeerTls(keys_of("a"), CALLEE, SystemIds()).server()
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        secured = caller("a")
        client = secured.context.wrap_bio(to_client, to_server, server_hostname=secured.name)
        callee = server.wrap_bio(to_server, to_client, server_side=True)
        for side in (client, callee, client):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
        shown.add(client.getpeercert(binary_form=True))
    assert len(shown) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.process
def test_only_a_port_for_brokers_makes_a_broker_import_cryptography() -> None:
    code = (
        "import sys, seaweedq.api.app, seaweedq.broker.broker;"
        "from seaweedq.broker.rpc.peer_keyring import PeerKeyring;"
        "from seaweedq.clock import SystemIds; trust = PeerKeyring(['a'], SystemIds());"
        "assert 'cryptography' not in sys.modules; from tests.support.brokers.peer_keys import keys_of;"
        "trust.begin(keys_of('a'), 'b.1'); trust.tls; assert 'cryptography' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.process
@pytest.mark.parametrize("years", [later(-50), 50])
def test_clocks_that_are_wrong_by_fifty_years_do_not_matter(years: int) -> None:
    code = (
        "from tests.broker.rpc.test_peer_tls import *; print(datetime.now(UTC).year);"
        "print(shake(caller('a'), tls_of(CALLEE, 'a').server())[0])"
    )
    if (faked := library()) is None:
        pytest.skip(ABSENT)
    variables = {"LD_PRELOAD": str(faked), "FAKETIME": f"{years:+d}y", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    year, version = done.stdout.split()
    assert abs(int(year) - datetime.now(UTC).year - years) <= 1
    assert version == "TLSv1.3"


(ROOT,) = keys_of("sesame").roots
BROKER = "Broker-1.0123456789abcdef"
KEY = private_key(bytes(range(SEED_BYTES)))


def read(pem: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem.encode())


def test_two_brokers_make_one_authority_other_secrets_or_clusters_another() -> None:
    mine, theirs = Authority.from_keys(ROOT), Authority.from_keys(keys_of("sesame").roots[0])
    assert mine.certificate == theirs.certificate
    assert mine.name("b") == theirs.name("b")
    others = [keys_of("other").roots[0], keys_of("sesame", cluster="c2").roots[0]]
    for other in map(Authority.from_keys, others):
        assert other.tag != mine.tag
        assert read(other.certificate).public_key() != read(mine.certificate).public_key()


def test_an_authority_signs_certificates_only_from_1970_to_2100() -> None:
    found = read(Authority.from_keys(ROOT).certificate)
    found.verify_directly_issued_by(found)
    assert found.extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(True, 0)
    assert found.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    assert found.not_valid_before_utc == datetime(1970, 1, 1, tzinfo=UTC)
    assert found.not_valid_after_utc == datetime(2100, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("serial", [1, 127, 128, 255, 256, (1 << 127) - 1])
def test_a_broker_gets_a_certificate_under_its_name_for_its_key(serial: int) -> None:
    authority = Authority.from_keys(ROOT)
    pair = authority.issue(BROKER, KEY, serial)
    found = read(pair.certificate)
    found.verify_directly_issued_by(read(authority.certificate))
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [f"{BROKER}.{authority.tag}"]
    assert found.serial_number == serial
    assert found.public_key() == load_pem_private_key(pair.key.encode(), None).public_key()
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_neither_key_is_shown() -> None:
    authority = Authority.from_keys(ROOT)
    shown = repr((authority, authority.issue(BROKER, KEY, 1)))
    assert "PRIVATE" not in shown
    for key in (authority._key, KEY):
        assert str(key.private_numbers().private_value) not in shown

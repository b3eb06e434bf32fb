"""The certificate of a broker's files: renewed, half renewed, amiss."""

import logging
import ssl
from datetime import timedelta
from pathlib import Path

import pytest

from seaweedq.cli.server.credentials import Certificate, certificate_of, trust_of
from seaweedq.errors import InvalidRequest
from seaweedq.settings import Settings
from tests.support.http.certificates import Authority, Pair

AUTHORITY = Authority()
FIRST, SECOND = AUTHORITY.issue("127.0.0.1"), AUTHORITY.issue("127.0.0.1")


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    found = certificate_of(Settings(**FIRST.write(tmp_path)))
    assert found is not None
    return found


def looked(certificate: Certificate, times: int = 2) -> ssl.SSLContext:
    for _ in range(times):
        certificate.refresh()
    return certificate.context()


def test_a_renewed_pair_is_shown_after_two_looks_over_tls_1_2_or_newer(
    certificate: Certificate, tmp_path: Path
) -> None:
    first = looked(certificate, 3)
    SECOND.write(tmp_path)
    assert looked(certificate, 1) is first, "the other file may still come"
    assert looked(certificate, 1) is not first
    assert looked(certificate, 3).minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    "pair",
    [
        Pair(SECOND.cert, FIRST.key),
        Pair(b"", SECOND.key),
        Pair(SECOND.cert[:300], SECOND.key),
        AUTHORITY.issue("127.0.0.1", password=b"secret"),
    ],
)
def test_a_pair_that_does_not_fit_keeps_the_old_one_and_warns_once(
    certificate: Certificate, tmp_path: Path, caplog: pytest.LogCaptureFixture, pair: Pair
) -> None:
    first = certificate.context()
    pair.write(tmp_path)
    assert looked(certificate, 5) is first
    (line,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "tls_cert_file" in line.getMessage()
    assert "continues to use the previous certificate" in line.getMessage()
    SECOND.write(tmp_path)
    assert looked(certificate) is not first


def test_files_that_are_gone_for_a_while_change_nothing(certificate: Certificate, tmp_path: Path) -> None:
    first = certificate.context()
    (tmp_path / "key.pem").unlink()
    assert looked(certificate, 3) is first
    FIRST.write(tmp_path)
    assert looked(certificate, 3) is first


def test_half_a_pair_and_one_that_does_not_fit_are_refused_at_the_start(tmp_path: Path) -> None:
    named = Pair(SECOND.cert, FIRST.key).write(tmp_path)
    with pytest.raises(InvalidRequest, match="not a certificate and its key"):
        certificate_of(Settings(**named))
    for name, missing in (("tls_cert_file", "tls_key_file"), ("tls_key_file", "tls_cert_file")):
        with pytest.raises(InvalidRequest, match=f"{missing} is missing"):
            certificate_of(Settings(**{name: named[name]}))
    assert certificate_of(Settings()) is None


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        (Pair(b"garbage", FIRST.key), "tls_cert_file=.*cert.pem contains no PEM certificate"),
        (Pair(FIRST.cert[:300], FIRST.key), "tls_cert_file=.*cert.pem contains no PEM certificate"),
        (Pair(FIRST.cert, b"garbage"), "tls_key_file=.*key.pem contains no PEM key"),
        (Pair(FIRST.cert, FIRST.key[:80]), "tls_key_file=.*key.pem contains no PEM key"),
    ],
)
def test_the_file_that_is_garbage_is_named(tmp_path: Path, pair: Pair, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as refused:
        certificate_of(Settings(**pair.write(tmp_path)))
    assert refused.value.fields["field"] == said.partition("=")[0]


@pytest.mark.parametrize("name", ["tls_cert_file", "tls_key_file"])
def test_the_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    named = FIRST.write(tmp_path)
    Path(named[name]).unlink()
    with pytest.raises(InvalidRequest, match=f"^{name}={named[name]} cannot be read: No such file"):
        certificate_of(Settings(**named))


def test_an_authority_that_is_none_is_refused_at_the_start(tmp_path: Path) -> None:
    for content in (None, b"nothing"):
        path = tmp_path / "ca.pem"
        if content:
            path.write_bytes(content)
        with pytest.raises(InvalidRequest, match="tls_ca_file"):
            trust_of(Settings(tls_ca_file=str(path)), None)
    path.write_bytes(AUTHORITY.pem)
    assert trust_of(Settings(tls_ca_file=str(path)), None) is not None


def shakes(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """A handshake in memory. Raises SSLError."""
    here, there = (ssl.MemoryBIO(), ssl.MemoryBIO()), None
    ours = client.wrap_bio(*here, server_hostname="127.0.0.1")
    theirs = server.wrap_bio(here[1], here[0], server_side=True)
    for _ in range(4):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                there = side
    assert there is not None
    assert ours.version()


def test_brokers_of_one_machine_trust_the_certificate_before_it_is_shown(tmp_path: Path) -> None:
    pairs = [AUTHORITY.issue("queue.example.com") for _ in range(3)]
    settings = Settings(brokers=2, **pairs[0].write(tmp_path))
    one, other = (Certificate(tmp_path / "cert.pem", tmp_path / "key.pem") for _ in range(2))
    trusts = [trust_of(settings, member) for member in (one, other)]
    assert None not in trusts
    pairs[1].write(tmp_path)
    for member in (one, other, one):
        member.refresh()  # one shows the new certificate now, the other does not
        for trust in trusts:
            for shown in (one, other):
                shakes(trust(), shown.context())  # type: ignore[misc]
    stranger = pairs[2].write(tmp_path / "elsewhere")
    with pytest.raises(ssl.SSLCertVerificationError):
        shakes(trusts[0](), Certificate(*map(Path, stranger.values())).context())  # type: ignore[misc]


def test_an_expired_certificate_is_shown_all_the_same(tmp_path: Path) -> None:
    """Clients refuse it; a broker whose clock is wrong must not refuse to start."""
    expired = AUTHORITY.issue("127.0.0.1", ends=-timedelta(hours=1))
    assert certificate_of(Settings(**expired.write(tmp_path))) is not None

"""Real certificates: an authority of a test's own, and what it issues."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM, DAY = serialization.Encoding.PEM, timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, PEM."""

    cert: bytes
    key: bytes

    def write(self, folder: Path) -> dict[str, str]:
        """Puts both into a folder, and returns the settings that name them."""
        folder.mkdir(exist_ok=True)
        (folder / "cert.pem").write_bytes(self.cert)
        (folder / "key.pem").write_bytes(self.key)
        return {"tls_cert_file": str(folder / "cert.pem"), "tls_key_file": str(folder / "key.pem")}


class Authority:
    """A certificate authority."""

    def __init__(self, name: str = "an authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        builder = _builder(self._name, self._name, self._key, -DAY, DAY)
        self._cert = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).sign(
            self._key, hashes.SHA256()
        )

    @property
    def pem(self) -> bytes:
        return self._cert.public_bytes(PEM)

    def issue(self, *names: str, ends: timedelta = DAY, password: bytes | None = None) -> Pair:
        """A certificate for host names and addresses, which ends that much later than now."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(names[0]), self._name, key, -2 * DAY, ends)
        shown = x509.SubjectAlternativeName([_general(name) for name in names])
        cert = builder.add_extension(shown, critical=False).sign(self._key, hashes.SHA256())
        locked = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        return Pair(cert.public_bytes(PEM), key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, locked))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, begins: timedelta, ends: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    return builder.serial_number(x509.random_serial_number()).not_valid_before(now + begins).not_valid_after(now + ends)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)

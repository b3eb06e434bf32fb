"""A broker's credentials: the cluster's secret, the first token, and the TLS certificate.

Each secret can be given in a file, with the setting whose name ends in `_file`. Then the secret is neither on the
command line nor in the environment, which child processes inherit. With embedded coordination, a missing cluster secret
and a missing admin token are generated once, in the data folder. A secret is never printed: errors describe the problem
without any of its characters.

The certificate file and the key file are read every EVERY_S. If two successive reads find the same new pair, and the
key matches the certificate, new connections use the new pair; existing connections keep the old one. If the new pair is
invalid, the broker logs a warning and keeps the old pair. A single read is not enough, because it may happen between
the writes of the two files.

Brokers on one machine (`brokers`) share one certificate, which need not name a loopback address, because they trust the
certificate itself. A new certificate is trusted after the first read and used after the second, so every member trusts
it before any member uses it."""

import asyncio
import logging
import os
import secrets
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from seaweedq.access.tokens import draw
from seaweedq.clock import SystemIds
from seaweedq.errors import InvalidRequest
from seaweedq.journal.disk import Disk
from seaweedq.settings import Settings

SECRET_FILE = "cluster-secret"
MIN_CHARACTERS, GOOD_CHARACTERS = 16, 32
logger = logging.getLogger("seaweedq")


def secret_of(settings: Settings, name: str) -> str:
    """Returns a secret by the name of its setting: the setting's value, or the content of its file without the line
    end. Returns empty text if neither is given. Raises InvalidRequest if both are given, or if the file cannot be
    read."""
    given, path = str(getattr(settings, name)), str(getattr(settings, f"{name}_file"))
    if not path:
        return given
    if given:
        raise InvalidRequest(f"{name} and {name}_file are both set; set only one of them", field=f"{name}_file")
    try:
        return Path(path).read_text("utf-8", "replace").strip()
    except OSError as error:
        raise InvalidRequest(
            f"{name}_file={path} cannot be read: {error.strerror or error}", field=f"{name}_file"
        ) from None


def cluster_secret(settings: Settings) -> str:
    """Returns `cluster_secret` or the content of `cluster_secret_file`. Without both, embedded coordination uses
    `{data_dir}/cluster-secret`, which is generated if it does not exist. Raises InvalidRequest if etcd is used without
    a secret, or if a secret is too short or not valid in a header; OSError."""
    if given := secret_of(settings, "cluster_secret"):
        return _checked(given, "cluster_secret")
    if settings.coordination != "embedded":
        raise InvalidRequest(
            "brokers with coordination on etcd need a shared secret: give all brokers the same "
            f"cluster_secret (SEAWEEDQ_CLUSTER_SECRET) of at least {MIN_CHARACTERS} characters",
            field="cluster_secret",
        )
    path = settings.data_dir / SECRET_FILE
    if not path.exists():
        draw_file(path, secrets.token_urlsafe(32))
    return _checked(path.read_text("ascii", "replace").strip(), str(path))


def _checked(given: str, source: str) -> str:
    """Parses one or several comma-separated secrets."""
    found = given.split(",")
    each = f"each secret of {source}" if len(found) > 1 else source
    if min(map(len, found)) < MIN_CHARACTERS:
        raise InvalidRequest(f"{each} must have at least {MIN_CHARACTERS} characters", field="cluster_secret")
    if not (given.isascii() and given.isprintable() and all(secret == secret.strip() for secret in found)):
        raise InvalidRequest(
            f"{each} must be printable ASCII, without blanks at the beginning or end", field="cluster_secret"
        )
    if min(map(len, found)) < GOOD_CHARACTERS:
        logger.warning(
            "%s has fewer than %d characters; create a better secret with `openssl rand -hex 32`", each, GOOD_CHARACTERS
        )
    return given


def draw_file(path: Path, content: str) -> None:
    """Creates a secret file, completely or not at all. If several callers create it concurrently, one wins, and all use
    the same secret."""
    disk = Disk()
    disk.make_folder(path.parent)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        disk.write_all(fd, [content.encode()])
        os.fsync(fd)
        with suppress(FileExistsError):
            os.link(draft, path)
        disk.sync_folder(path.parent)
    finally:
        disk.close(fd)
        disk.remove(draft)


def draw_admin_token(settings: Settings) -> None:
    """Generates the admin token, with file mode 0600, if none is given and no file exists. Logs the file's path. Raises
    OSError."""
    path = settings.admin_token_path
    if path is None or settings.admin_token_file:
        return
    if not path.exists():
        draw_file(path, draw(SystemIds()))
    logger.info("the admin token is in %s; to use it, set SEAWEEDQ_TOKEN_FILE to this path", path)


EVERY_S = 3.0  # two reads are over within the 10 s that the settings promise
Trust = Callable[[], ssl.SSLContext]


class Certificate:
    """A certificate and its key. Raises InvalidRequest at the start if the key does not match the certificate."""

    def __init__(self, cert_file: Path, key_file: Path) -> None:
        self._files = cert_file, key_file
        try:
            self._shown = self._read()
            self._context = _context(cert_file, key_file)
            self._members = _members_context(cert_file)
        except (OSError, ValueError) as error:
            told = self._words(error)
            raise InvalidRequest(told, field=told.partition("=")[0]) from None
        self._seen = self._unfit = b""

    def context(self) -> ssl.SSLContext:
        """Returns the TLS context for a new connection."""
        return self._context

    def trust_of_members(self) -> ssl.SSLContext:
        """Returns the TLS context with which brokers that use the same files verify each other."""
        return self._members

    async def follow(self) -> None:
        """Reads the files periodically, forever."""
        while True:
            await asyncio.sleep(EVERY_S)
            await asyncio.to_thread(self.refresh)

    def refresh(self) -> None:
        """Reads the files. Uses a changed pair if it equals the previous read and the key matches the certificate."""
        try:
            content, failure = self._read(), None
        except OSError as error:
            content, failure = str(error).encode(), error
        if content == self._shown:
            self._seen = self._unfit = b""
        elif content != self._seen:
            self._seen = content
            with suppress(OSError, ValueError):  # the next read tells why
                self._members.load_verify_locations(self._files[0])
        elif content != self._unfit:
            self._show(content, failure)

    def _show(self, content: bytes, failure: Exception | None) -> None:
        try:
            if failure:
                raise failure
            self._context = _context(*self._files)
        except (OSError, ValueError) as error:
            self._unfit = content
            logger.warning("%s; the broker continues to use the previous certificate", self._words(error))
            return
        self._shown = content
        logger.info("tls_cert_file=%s was renewed; new connections use the new certificate", self._files[0])

    def _read(self) -> bytes:
        return b"\0".join(file.read_bytes() for file in self._files)

    def _words(self, error: Exception) -> str:
        """Describes what is wrong, and in which file if only one is wrong; OpenSSL does not report the file."""
        cert_file, key_file = self._files
        if isinstance(error, OSError) and error.filename:
            setting = "tls_cert_file" if Path(error.filename) == cert_file else "tls_key_file"
            return f"{setting}={error.filename} cannot be read: {_reason(error)}"
        if not _holds_certificate(cert_file):
            return f"tls_cert_file={cert_file} contains no PEM certificate"
        if "PEM lib" in str(error):
            return f"tls_key_file={key_file} contains no PEM key"
        return (
            f"tls_cert_file={cert_file} and tls_key_file={key_file} are not a certificate and its key: {_reason(error)}"
        )


def certificate_of(settings: Settings) -> Certificate | None:
    """Returns the certificate that the settings name, or None. Raises InvalidRequest, also if only one of certificate
    and key is set."""
    given = {name: getattr(settings, name) for name in ("tls_cert_file", "tls_key_file")}
    missing = [name for name, path in given.items() if not path]
    if len(missing) == 1:
        raise InvalidRequest(
            f"setting {missing[0]} is missing: TLS needs both a certificate and its key", field=missing[0]
        )
    return None if missing else Certificate(*map(Path, given.values()))


def trust_of(settings: Settings, own: Certificate | None) -> Trust | None:
    """Returns a function that makes the TLS context with which this broker verifies other brokers at https URLs; None
    means the system's CAs. Raises InvalidRequest."""
    if settings.brokers > 1 and own:
        return own.trust_of_members
    if not settings.tls_ca_file:
        return None
    try:
        trusted = ssl.create_default_context(cafile=settings.tls_ca_file)
    except (OSError, ValueError) as error:
        detail = f"tls_ca_file={settings.tls_ca_file} is not a CA certificate: {_reason(error)}"
        raise InvalidRequest(detail, field="tls_ca_file") from None
    return lambda: trusted


def _context(cert_file: Path, key_file: Path) -> ssl.SSLContext:
    """Returns a context for TLS 1.2 or newer. Raises OSError, and ValueError for an encrypted key, because nobody could
    type the password."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.load_cert_chain(cert_file, key_file, password=_no_password)
    return context


def _members_context(cert_file: Path) -> ssl.SSLContext:
    """Returns a context that trusts exactly this certificate, whatever the host name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cert_file)
    return context


def _holds_certificate(cert_file: Path) -> bool:
    try:
        _members_context(cert_file)
    except (OSError, ValueError):
        return False
    return True


def _no_password() -> NoReturn:
    raise ValueError("the TLS key is encrypted; use an unencrypted key file that only the broker can read")


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)

"""A broker's credentials: the cluster's secret, the first token, and the TLS certificate.

Each secret can be given in a file, with the setting whose name ends in `_file`. Then the secret is neither on the
command line nor in the environment, which child processes inherit. With embedded coordination, a missing cluster secret
and a missing admin token are generated once, in the data folder. A secret is never printed: errors describe the problem
without any of its characters.

The certificate file and the key file are read every EVERY_S. If two successive reads find the same new pair, and the
key matches the certificate, new connections use the new pair; existing connections keep the old one. If the new pair is
invalid, the broker logs a warning and keeps the old pair. A single read is not enough, because it may happen between
the writes of the two files. The CA file of client certificates is judged alone: a new one counts, though the pair
beside it is invalid.

Brokers on one machine (`brokers`) share one certificate, which need not name a loopback address, because they trust the
certificate itself. A new certificate is trusted after the first read and used after the second, so every member trusts
it before any member uses it."""

import asyncio
import hashlib
import logging
import os
import secrets
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, NoReturn

from seaweedq.access.tokens import draw
from seaweedq.clock import SystemIds
from seaweedq.errors import InvalidRequest
from seaweedq.journal.disk import Disk
from seaweedq.settings import Settings

if TYPE_CHECKING:
    from seaweedq.api.connections.handshakes import ClientContext

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
Contents = tuple[bytes | str, ...]  # of the files, in the order of the settings, or why one cannot be read


class Certificate:
    """A certificate and its key, and the CAs of client certificates. Raises InvalidRequest at the start if the key does
    not match the certificate."""

    def __init__(self, cert_file: Path, key_file: Path, client_ca_file: Path | None = None) -> None:
        self._files = {"tls_cert_file": cert_file, "tls_key_file": key_file}
        if client_ca_file:
            self._files["client_ca_file"] = client_ca_file
        try:
            self._shown = _all_read(self._read())
            self._context, self._h2_context = self._new_contexts(self._shown)
        except ValueError as error:
            raise InvalidRequest(str(error), field=str(error).partition("=")[0]) from None
        self._members = _members_context(self._shown[0])
        self._seen: Contents = ()
        self._unfit: Contents = ()

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

    def h2_context(self) -> ssl.SSLContext:
        """Returns the TLS context for a new connection of gRPC."""
        return self._h2_context

    def client_ca(self) -> bytes:
        """Returns the SHA-256 of the CA file of client certificates, by which new connections are judged."""
        return self._context.client_ca

    def refresh(self) -> None:
        """Reads the files. Uses a changed pair and a changed CA file if they equal the previous read, and are valid."""
        found = self._read()
        if found == self._shown:
            self._seen = self._unfit = ()
        elif found != self._seen:
            self._seen = found
            with suppress(OSError, ValueError):  # the next read tells why
                self._members.load_verify_locations(cadata=_text(_all_read(found[:1])[0]))
        elif found != self._unfit:
            self._show(found)

    def _show(self, found: Contents) -> None:
        """Uses what is valid: a CA that was removed from its file must not count on because the pair is invalid."""
        for first, name in enumerate(("tls_cert_file", "client_ca_file")):
            pair, ca = (self._shown[:2], found[2:]) if first else (found[:2], self._shown[2:])
            if (*pair, *ca) == self._shown:
                continue
            try:
                wanted = _all_read((*pair, *ca))
                self._context, self._h2_context = self._new_contexts(wanted)
            except ValueError as error:
                self._unfit = found
                logger.warning("%s; the broker continues to use the previous certificate", error)
            else:
                self._shown = wanted
                logger.info("%s=%s was renewed; new connections use the new certificate", name, self._files[name])

    def _read(self) -> Contents:
        found: list[bytes | str] = []
        for name, file in self._files.items():
            try:
                found.append(file.read_bytes())
            except OSError as error:
                found.append(f"{name}={file} cannot be read: {_reason(error)}")
        return tuple(found)

    def _new_contexts(self, contents: tuple[bytes, ...]) -> tuple["ClientContext", "ClientContext"]:
        """Returns the contexts of HTTP and of gRPC with these contents. Raises ValueError as `_new_context`."""
        found = self._new_context(contents), self._new_context(contents)
        found[1].set_alpn_protocols(["h2"])
        return found

    def _new_context(self, contents: tuple[bytes, ...]) -> "ClientContext":
        """Returns a context with these contents. Raises ValueError, which names the file that is wrong, if only one is;
        OpenSSL does not report the file."""
        certificate, key, *ca = contents
        try:
            context = _context(certificate, key)
        except (OSError, ValueError) as error:
            cert_file, key_file, *_ = self._files.values()
            if not _is_certificate(certificate):
                raise ValueError(f"tls_cert_file={cert_file} contains no PEM certificate") from None
            if "PEM lib" in str(error):
                raise ValueError(f"tls_key_file={key_file} contains no PEM key") from None
            raise ValueError(
                f"tls_cert_file={cert_file} and tls_key_file={key_file} are not a certificate and its key: "
                f"{_reason(error)}"
            ) from None
        for content in ca:
            try:
                context.load_verify_locations(cadata=_text(content))
            except (OSError, ValueError) as error:
                raise ValueError(
                    f"client_ca_file={self._files['client_ca_file']} is not a CA certificate: {_reason(error)}"
                ) from None
            context.verify_mode = ssl.CERT_OPTIONAL
            context.num_tickets = 0  # a session that goes on shows no certificate, which may not count any more
            context.options |= ssl.OP_NO_TICKET
            context.client_ca = hashlib.sha256(content).digest()
        return context


def certificate_of(settings: Settings) -> Certificate | None:
    """Returns the certificate that the settings name, or None. Raises InvalidRequest, also if only one of certificate
    and key is set."""
    given = {name: getattr(settings, name) for name in ("tls_cert_file", "tls_key_file")}
    missing = [name for name, path in given.items() if not path]
    if len(missing) == 1:
        raise InvalidRequest(
            f"the setting {missing[0]} is missing: TLS needs both a certificate and its key", field=missing[0]
        )
    ca_file = Path(settings.client_ca_file) if settings.client_ca_file else None
    if missing and ca_file:
        raise InvalidRequest(
            "the setting client_ca_file needs tls_cert_file and tls_key_file, because a client can present a "
            "certificate only over TLS",
            field="client_ca_file",
        )
    return None if missing else Certificate(Path(given["tls_cert_file"]), Path(given["tls_key_file"]), ca_file)


def trust_of(settings: Settings, own: Certificate | None) -> Trust | None:
    """Returns a function that makes the TLS context with which this broker verifies other brokers at https URLs; None
    means the system's CAs. Raises InvalidRequest."""
    if settings.brokers.most > 1 and own:
        return own.trust_of_members
    if not settings.tls_ca_file:
        return None
    try:
        trusted = ssl.create_default_context(cafile=settings.tls_ca_file)
    except (OSError, ValueError) as error:
        detail = f"tls_ca_file={settings.tls_ca_file} is not a CA certificate: {_reason(error)}"
        raise InvalidRequest(detail, field="tls_ca_file") from None
    return lambda: trusted


def _context(certificate: bytes, key: bytes) -> "ClientContext":
    """Returns a context for TLS 1.2 or newer. Raises OSError, and ValueError for an encrypted key, because nobody could
    type the password."""
    from seaweedq.api.connections.handshakes import ClientContext  # with FastAPI: a broker alone needs it

    context = ClientContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    with _as_file(certificate) as cert_file, _as_file(key) as key_file:
        context.load_cert_chain(cert_file, key_file, password=_no_password)
    return context


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Gives the path of an unnamed file of this process alone, because OpenSSL takes no bytes: a file of the disk may
    change between its read and OpenSSL's."""
    if sys.platform == "linux":
        with os.fdopen(os.memfd_create("pem"), "wb") as memory:
            memory.write(content)
            memory.flush()
            yield f"/proc/self/fd/{memory.fileno()}"
    else:
        with NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            yield file.name


def _members_context(certificate: bytes) -> ssl.SSLContext:
    """Returns a context that trusts exactly this certificate, whatever the host name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=_text(certificate))
    return context


def _is_certificate(content: bytes) -> bool:
    try:
        _members_context(content)
    except (OSError, ValueError):
        return False
    return True


def _text(content: bytes) -> str:
    """Returns PEM without comments' other characters, which OpenSSL refuses."""
    return content.decode("ascii", "ignore")


def _all_read(found: Contents) -> tuple[bytes, ...]:
    """Returns the contents of files that could all be read. Raises ValueError."""
    for one in found:
        if isinstance(one, str):
            raise ValueError(one)
    return tuple(one for one in found if isinstance(one, bytes))


def _no_password() -> NoReturn:
    raise ValueError("the TLS key is encrypted; use an unencrypted key file that only the broker can read")


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)

"""The cluster's secret, by which brokers authenticate to each other: a setting, or generated once into the data folder.

Any secret may be given in a file, by the setting of its name and `_file`: then it is neither in the environment, which
child processes inherit, nor on the command line.

It is never printed: errors state the problem with a secret, but none of its characters.
"""

import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path

from seaweedq.errors import InvalidRequest
from seaweedq.journal.disk import Disk
from seaweedq.settings import Settings

SECRET_FILE = "cluster-secret"
MIN_CHARACTERS, GOOD_CHARACTERS = 16, 32
logger = logging.getLogger(__name__)


def secret_of(settings: Settings, name: str) -> str:
    """Returns a secret by the name of its setting: the setting itself, or what its file holds, without the end of its
    line; empty where neither is given. Raises InvalidRequest where both are, or the file cannot be read."""
    given, path = str(getattr(settings, name)), str(getattr(settings, f"{name}_file"))
    if not path:
        return given
    if given:
        raise InvalidRequest(f"{name} and {name}_file are both given; leave one out", field=f"{name}_file")
    try:
        return Path(path).read_text("utf-8", "replace").strip()
    except OSError as error:
        raise InvalidRequest(
            f"{name}_file={path} cannot be read: {error.strerror or error}", field=f"{name}_file"
        ) from None


def cluster_secret(settings: Settings) -> str:
    """Returns the setting `cluster_secret` or the content of `cluster_secret_file`, else for embedded coordination that
    of `{data_dir}/cluster-secret`, which is generated if it does not exist. Raises InvalidRequest for none with etcd,
    and for one that is too short or cannot be sent in a header; OSError."""
    if given := secret_of(settings, "cluster_secret"):
        return _checked(given, "cluster_secret")
    if settings.coordination != "embedded":
        raise InvalidRequest(
            "brokers on etcd need a shared secret: give each the same "
            f"cluster_secret (SEAWEEDQ_CLUSTER_SECRET) of at least {MIN_CHARACTERS} characters",
            field="cluster_secret",
        )
    path = settings.data_dir / SECRET_FILE
    if not path.exists():
        draw_file(path, secrets.token_urlsafe(32))
    return _checked(path.read_text("ascii", "replace").strip(), str(path))


def _checked(given: str, source: str) -> str:
    """Returns one or several secrets, separated by commas."""
    found = given.split(",")
    each = f"each secret of {source}" if len(found) > 1 else source
    if min(map(len, found)) < MIN_CHARACTERS:
        raise InvalidRequest(f"{each} must have at least {MIN_CHARACTERS} characters", field="cluster_secret")
    if not (given.isascii() and given.isprintable() and all(secret == secret.strip() for secret in found)):
        raise InvalidRequest(f"{each} must be printable ASCII, without blanks at its ends", field="cluster_secret")
    if min(map(len, found)) < GOOD_CHARACTERS:
        logger.warning(
            "%s has fewer than %d characters: `openssl rand -hex 32` draws a good one", each, GOOD_CHARACTERS
        )
    return given


def draw_file(path: Path, content: str) -> None:
    """Creates the file of a secret, whole or not at all. Of concurrent callers one wins, and all use its secret."""
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

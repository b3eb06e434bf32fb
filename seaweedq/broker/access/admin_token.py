"""The token of `admin_token_file`: the first one, and the way back in. It may do everything, on this broker alone.

The file is looked at each LOOK_S, so that whoever can write it can change or end the token while the broker runs. One
that cannot be read any more ends it. Its text is any secret of MIN_CHARACTERS or more; only its SHA-256 is kept.
"""

import logging
import os
from pathlib import Path

from seaweedq.access.caller import Caller
from seaweedq.access.grants import EVERYTHING
from seaweedq.access.tokens import digest_of
from seaweedq.errors import InvalidRequest

ADMIN = "admin"  # the principal of this token, for which no other can be created
LOOK_S = 0.5
MIN_CHARACTERS, MAX_BYTES = 32, 4096
logger = logging.getLogger(__name__)


class AdminToken:
    """The token in a file; an empty path is none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._digest: bytes | None = None
        self.caller = Caller(ADMIN, "admin-token-file", (EVERYTHING,))

    def require(self) -> None:
        """Reads the file, at the start. Raises InvalidRequest, which names no part of its content."""
        if self._path is None:
            return
        try:
            self._seen = _stamp(self._path)
            self._digest = _read(self._path)
        except (OSError, ValueError) as error:
            raise InvalidRequest(
                f"admin_token_file={str(self._path)!r} cannot be used: {error}", field="admin_token_file"
            ) from None

    def find(self, digest: bytes) -> Caller | None:
        """Returns the caller, if this is the token's SHA-256."""
        return self.caller if digest == self._digest else None

    @property
    def counts(self) -> bool:
        """Returns whether there is a token."""
        return self._digest is not None

    def look(self) -> bool:
        """Reads the file again if it has changed. Returns whether the token has."""
        if self._path is None:
            return False
        before = self._digest
        try:
            seen = _stamp(self._path)
            if seen == self._seen:
                return False
            self._digest = _read(self._path)
            self._seen = seen
        except (OSError, ValueError) as error:
            if self._digest is not None:
                logger.warning("admin_token_file cannot be used any more, its token has ended: %s", error)
            self._digest = self._seen = None
        return self._digest != before


def _stamp(path: Path) -> tuple[int, int, int]:
    found = os.stat(path)  # of the file behind a link: Kubernetes renews a secret by another one
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1).strip()
    if not MIN_CHARACTERS <= len(content) <= MAX_BYTES:
        raise ValueError(f"it must hold a token of {MIN_CHARACTERS} to {MAX_BYTES} characters")
    if not all(33 <= one <= 126 for one in content):
        raise ValueError("its token must be printable ASCII without blanks")
    return digest_of(content)

"""The token of `admin_token_file`: the first one, and the way back in. It may do everything, on this broker alone.

The file is looked at each LOOK_S, so that whoever can write it can change or end the token while the broker runs. One
that cannot be read any more ends it, and so does one that all users of the machine may write: whoever they are could
make themselves its administrators. Its text is any secret of MIN_CHARACTERS or more; only its SHA-256 and its length
are kept, by which it is found in texts that must not have it.
"""

import logging
import os
import stat
from pathlib import Path

from seaweedq.access.caller import Caller
from seaweedq.access.grants import EVERYTHING
from seaweedq.access.tokens import digest_of
from seaweedq.errors import InvalidRequest

ADMIN = "admin"  # the principal of this token, for which no other can be created
LOOK_S = 0.5
MIN_CHARACTERS, MAX_BYTES = 32, 4096
HIDDEN = "***"
Stamp = tuple[int, int, int]
logger = logging.getLogger(__name__)


class AdminToken:
    """The token in a file; an empty path is none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen: Stamp | None = None
        self._digest: bytes | None = None
        self._characters = 0
        self.caller = Caller(ADMIN, "admin-token-file", (EVERYTHING,))

    def require(self) -> None:
        """Reads the file, at the start. Raises InvalidRequest, which names no part of its content."""
        if self._path is None:
            return
        try:
            self._take(self._path, _stamp(self._path))
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
            self._take(self._path, seen)
        except (OSError, ValueError) as error:
            if self._digest is not None:
                logger.warning("admin_token_file cannot be used any more, its token has ended: %s", error)
            self._digest = self._seen = None
        return self._digest != before

    def masked(self, text: str) -> str:
        """Returns a text that somebody else has chosen, without the token in it: somebody may have sent it in the place
        of a name."""
        kept, size = 0, self._characters
        pieces: list[str] = []
        at = 0
        while self._digest is not None and at + size <= len(text):
            if digest_of(text[at : at + size].encode("utf-8", "replace")) != self._digest:
                at += 1
                continue
            pieces += [text[kept:at], HIDDEN]
            kept = at = at + size
        return "".join([*pieces, text[kept:]])

    def _take(self, path: Path, seen: Stamp) -> None:
        content = _read(path)
        self._digest, self._characters, self._seen = digest_of(content), len(content), seen


def _stamp(path: Path) -> Stamp:
    found = os.stat(path)  # of the file behind a link: Kubernetes renews a secret by another one
    if found.st_mode & stat.S_IWOTH:
        raise ValueError(f"all users of this machine may write it (mode {stat.S_IMODE(found.st_mode):04o}): chmod o-w")
    return found.st_ino, found.st_ctime_ns, found.st_size


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1).strip()
    if not MIN_CHARACTERS <= len(content) <= MAX_BYTES:
        raise ValueError(f"it must hold a token of {MIN_CHARACTERS} to {MAX_BYTES} characters")
    if not all(33 <= one <= 126 for one in content):
        raise ValueError("its token must be printable ASCII without blanks")
    return content

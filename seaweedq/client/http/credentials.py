"""The token of a client, and the certificates that it trusts.

A token is given as it is or as a file, which is read again when it changes; without either in SEAWEEDQ_TOKEN or
SEAWEEDQ_TOKEN_FILE. It goes to the brokers that the user named, and to learned ones only over https, whose certificates
the same authority has signed, or on loopback (client/core/protocol/broker_choice); never to stores.
"""

import os
import re
import ssl
from collections.abc import Mapping
from pathlib import Path

from seaweedq.errors import ClientError

TOKEN, TOKEN_FILE = "SEAWEEDQ_TOKEN", "SEAWEEDQ_TOKEN_FILE"
_TOKEN = re.compile(r"[\x21-\x7e]+")


class InvalidToken(ValueError):
    """Raised for a token that HTTP cannot carry."""


class Credentials:
    """Holds the token that one client shows, and the CA that it trusts. Raises ValueError for a token and a file both,
    or one that HTTP cannot carry."""

    def __init__(
        self,
        token: str | None = None,
        token_file: str | Path | None = None,
        ca_file: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if token is not None and token_file is not None:
            raise ValueError("give token or token_file, not both")
        environment = os.environ if environment is None else environment
        named = "the token"
        if token is None and token_file is None:
            named = TOKEN
            token, token_file = environment.get(TOKEN) or None, environment.get(TOKEN_FILE) or None
        if token is not None and not _TOKEN.fullmatch(token):
            raise InvalidToken(f"{named} has a blank or a character that no token has")
        self._token = token
        self._file = Path(token_file) if token is None and token_file is not None else None
        self._seen: tuple[int, int, int] | None = None
        self._ca_file = ca_file

    def __repr__(self) -> str:
        return "Credentials()"

    @property
    def has_token(self) -> bool:
        """Tells whether a token is shown."""
        return self._token is not None or self._file is not None

    def verify(self, secure: bool) -> bool | ssl.SSLContext:
        """Returns how certificates are verified; loading them takes longer than a request, so only where `secure`."""
        if not secure or self._ca_file is None:
            return secure
        return ssl.create_default_context(cafile=self._ca_file)

    def headers(self) -> dict[str, str]:
        """Returns the headers that show the token. Raises ClientError where its file cannot be read."""
        if self._file is not None:
            self._read(self._file)
        return {} if self._token is None else {"Authorization": f"Bearer {self._token}"}

    def _read(self, file: Path) -> None:
        try:
            found = os.stat(file)
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
            if seen == self._seen:
                return
            text = file.read_text("ascii").strip()
        except (OSError, ValueError) as error:
            raise ClientError(f"the token file {str(file)!r} cannot be read: {type(error).__name__}") from None
        if not _TOKEN.fullmatch(text):
            raise ClientError(f"the token file {str(file)!r} holds no token")
        self._token, self._seen = text, seen

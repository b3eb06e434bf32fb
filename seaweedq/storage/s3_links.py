"""Presigned GETs by the thousand: botocore needs 0.3 ms or more for each, so it signs one, and the others are derived.

No part of a URL is invented here. Two URLs of the same moment differ in the key and in the signature over it (Signature
Version 4, query parameters); everything else is copied from the example. An example is used only if this code
reproduces it letter by letter as botocore signed it.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from urllib.parse import parse_qs, quote, urlsplit

_DEFAULT_PORTS = {"http": ":80", "https": ":443"}  # which clients leave out of the Host header
_ALGORITHM, _SIGNATURE = "AWS4-HMAC-SHA256", "&X-Amz-Signature="


@dataclass(frozen=True, slots=True)
class Example:
    """The parts that presigned URLs of the same moment share."""

    origin: str
    host: str
    folder: str  # the path up to the object's key
    query: str  # without the signature, as it is sent
    sorted_query: str
    moment: str
    scope: str
    secret: bytes = field(repr=False)

    @staticmethod
    def of(url: str, key: str, secret: str) -> "Example | None":
        """Parses a presigned GET of `key` into an example; None if its kind is not supported here.

        `secret` is the secret access key that signed it.
        """
        parts = urlsplit(url)
        query, _, _ = parts.query.partition(_SIGNATURE)
        said = {name: values[0] for name, values in parse_qs(query).items()}
        path = quote(key, safe="/~")
        if said.get("X-Amz-Algorithm") != _ALGORITHM or not parts.path.endswith(path):
            return None
        _, _, scope = said.get("X-Amz-Credential", "").partition("/")
        example = Example(
            f"{parts.scheme}://{parts.netloc}",
            parts.netloc.removesuffix(_DEFAULT_PORTS.get(parts.scheme, "")),
            parts.path.removesuffix(path),
            query,
            "&".join(sorted(query.split("&"))),
            said.get("X-Amz-Date", ""),
            scope,
            _signing_key(secret, scope.split("/")),
        )
        return example if example.url(key) == url else None

    def url(self, key: str) -> str:
        """Returns the presigned GET of another key."""
        path = self.folder + quote(key, safe="/~")
        request = f"GET\n{path}\n{self.sorted_query}\nhost:{self.host}\n\nhost\nUNSIGNED-PAYLOAD"
        said = f"{_ALGORITHM}\n{self.moment}\n{self.scope}\n{sha256(request.encode()).hexdigest()}"
        signature = hmac.new(self.secret, said.encode(), "sha256").hexdigest()
        return f"{self.origin}{path}?{self.query}{_SIGNATURE}{signature}"


def _signing_key(secret: str, scope: Sequence[str]) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in scope:
        key = hmac.new(key, part.encode(), "sha256").digest()
    return key

"""Reads the Accept header (RFC 9110, 12.5.1): whether a client takes a media type."""

import re

from seaweedq.api.asgi.http import Scope, header

_WEIGHT = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")


def accepts(scope: Scope, media: str) -> bool:
    """Returns whether a client takes a media type. One that states nothing takes any."""
    stated = header(scope, b"accept")
    if stated is None or not stated.strip():
        return True
    return _weight(stated, (media, f"{media.partition('/')[0]}/*", "*/*")) > 0


def names(scope: Scope, media: str) -> bool:
    """Returns whether a client asks for a media type by its name."""
    return _weight(header(scope, b"accept") or "", (media,)) > 0


def _weight(stated: str, ranges: tuple[str, ...]) -> float:
    """Returns the weight of the first of the ranges that is stated; 0 where none is. A weight that cannot be read is
    1, as if there were none."""
    weights: dict[str, float] = {}
    for one in stated.split(","):
        named, *parameters = (part.strip().lower() for part in one.split(";"))
        weight = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        weights[named] = max(weights.get(named, 0.0), float(weight) if _WEIGHT.fullmatch(weight) else 1.0)
    return next((weights[one] for one in ranges if one in weights), 0.0)

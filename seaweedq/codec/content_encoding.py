"""Decodes the content encoding of request bodies, one of identity, gzip and zstd, within a bound.

Arrow's codecs decode, which release the GIL. They stop at the bound, so that a decompression bomb costs no more than a
body of the largest allowed size.
"""

import pyarrow as pa

from seaweedq.errors import RequestTooLarge, UnreadableBody, UnsupportedEncoding

SUPPORTED = ("gzip", "zstd")

_CODECS = {"gzip": "gzip", "x-gzip": "gzip", "zstd": "zstd"}


def decode_body(body: bytes, encoding: str | None, limit_bytes: int) -> bytes:
    """Returns the body without its `Content-Encoding`, at most `limit_bytes` long.

    Raises RequestTooLarge, UnsupportedEncoding (unknown, or more than one), UnreadableBody (damaged, cut short).
    """
    codec = (encoding or "identity").strip().lower()
    if codec == "identity":
        decoded = body
    elif codec in _CODECS:
        decoded = _decompress(body, _CODECS[codec], limit_bytes)
    else:
        detail = f"the content encoding {encoding!r} is not supported; use {' or '.join(SUPPORTED)}, or none"
        raise UnsupportedEncoding(detail, supported=list(SUPPORTED))
    if len(decoded) > limit_bytes:
        detail = f"the decoded body is over {limit_bytes} bytes; split it, or upload large payloads"
        raise RequestTooLarge(detail, limit_bytes=limit_bytes)
    return decoded


def _decompress(body: bytes, codec: str, limit_bytes: int) -> bytes:
    """Decodes at most one byte more than the limit. An empty body is not a valid frame of either codec."""
    if not body:
        raise UnreadableBody(f"the body is empty, which is not valid {codec}")
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            return bytes(stream.read(limit_bytes + 1))
    except (OSError, pa.ArrowException) as error:
        raise UnreadableBody(f"the body is not valid {codec}: {error}") from None

"""The hash of a key, which says what segment a message belongs to.

It is Iceberg's bucket hash with 2^31-1 buckets: murmur3_x86_32 with seed 0 over the key's UTF-8 bytes, without the sign
bit, modulo 2^31-1 (https://iceberg.apache.org/spec/#bucket-transform-details). Every language has a library for it.
`row_hashes` hashes whole columns; this module needs neither numpy nor Arrow, since clients route by it without them.
"""

import mmh3

from seaweedq.segments.keyrange import KEY_SPACE


def hash_key(key: str | bytes) -> int:
    """Returns the hash of one key, in [0, KEY_SPACE). Raises UnicodeEncodeError for lone surrogates."""
    if isinstance(key, str) and not key.isascii():
        key = key.encode()  # mmh3 itself dies of a lone surrogate
    return (mmh3.hash(key) & 0x7FFFFFFF) % KEY_SPACE

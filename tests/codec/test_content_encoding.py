import gzip

import pyarrow as pa
import pytest

from seaweedq.codec.content_encoding import decode_body
from seaweedq.errors import RequestTooLarge, UnreadableBody, UnsupportedEncoding

BODY = b"".join(b'{"value":%d}\n' % n for n in range(5000))


def packed(body: bytes, encoding: str) -> bytes:
    return gzip.compress(body) if "gzip" in encoding else pa.compress(body, codec="zstd", asbytes=True)


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "zstd", " GZIP "])
def test_decodes(encoding: str) -> None:
    assert decode_body(packed(BODY, encoding.lower()), encoding, len(BODY)) == BODY


@pytest.mark.parametrize("encoding", [None, "", "identity", "Identity"])
def test_identity_is_the_body_itself(encoding: str | None) -> None:
    assert decode_body(BODY, encoding, len(BODY)) is BODY


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_several_members_follow_each_other(encoding: str) -> None:
    assert decode_body(packed(BODY, encoding) + packed(b"end", encoding), encoding, 1 << 20) == BODY + b"end"


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_every_truncation_is_noticed(encoding: str) -> None:
    whole = packed(b"a body of some length " * 3, encoding)
    for body in (whole, whole + whole):
        for end in range(len(body)):
            if end in (0, len(whole)):
                continue
            with pytest.raises(UnreadableBody):
                decode_body(body[:end], encoding, 1 << 20)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("damage", [b"", b"plain text", b"\x1f\x8b", b"\x28\xb5\x2f\xfd"])
def test_what_is_not_in_the_encoding_is_unreadable(encoding: str, damage: bytes) -> None:
    with pytest.raises(UnreadableBody, match=encoding):
        decode_body(damage, encoding, 1 << 20)


def test_a_wrong_checksum_is_unreadable() -> None:
    body = bytearray(gzip.compress(BODY))
    body[-8] ^= 1
    with pytest.raises(UnreadableBody):
        decode_body(bytes(body), "gzip", 1 << 20)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_bomb_costs_no_more_than_the_limit(encoding: str) -> None:
    bomb = packed(bytes(256 << 20), encoding)
    before = pa.total_allocated_bytes()
    with pytest.raises(RequestTooLarge, match="upload") as caught:
        decode_body(bomb, encoding, 1 << 20)
    assert caught.value.fields == {"limit_bytes": 1 << 20}
    assert pa.total_allocated_bytes() - before < 8 << 20


def test_the_limit_itself_is_allowed_and_one_more_is_not() -> None:
    assert len(decode_body(gzip.compress(bytes(1000)), "gzip", 1000)) == 1000
    for body, encoding in ((gzip.compress(bytes(1001)), "gzip"), (bytes(1001), None)):
        with pytest.raises(RequestTooLarge):
            decode_body(body, encoding, 1000)


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "gzip,zstd", "\x00"])
def test_other_encodings_are_named_with_those_that_are_taken(encoding: str) -> None:
    with pytest.raises(UnsupportedEncoding) as caught:
        decode_body(BODY, encoding, 1 << 20)
    assert caught.value.fields == {"supported": ["gzip", "zstd"]}

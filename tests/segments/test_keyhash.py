"""The hash of a key is Iceberg's."""

import subprocess
import sys

import mmh3
import pytest

from seaweedq.segments.keyrange import hash_key


@pytest.mark.parametrize(("key", "hashed"), [("iceberg", 1210000089), (b"\x00\x01\x02\x03", 1958800441)])
def test_hashes_are_those_of_the_iceberg_specification(key: str | bytes, hashed: int) -> None:
    """Appendix B of the specification gives these two."""
    assert hash_key(key) == hashed


def test_a_hash_at_the_end_of_the_space_wraps_to_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmh3, "hash", lambda key: -1)
    assert hash_key("any") == 0


def test_a_lone_surrogate_is_an_error_and_no_crash() -> None:
    with pytest.raises(UnicodeEncodeError):
        hash_key("\ud800")


@pytest.mark.process
def test_it_needs_neither_numpy_nor_arrow() -> None:
    code = "import sys, seaweedq.segments.keyrange; assert not {'numpy', 'pyarrow'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)

"""The form of tokens."""

import re

from hypothesis import given
from hypothesis import strategies as st

from seaweedq.access.tokens import digest_of, draw, id_of
from seaweedq.clock import SystemIds


def test_a_drawn_token() -> None:
    text = draw(SystemIds())
    assert re.fullmatch(r"sq1_[0-9a-f]{16}_[0-9a-f]{64}_[0-9a-f]{8}", text)
    assert id_of(text) == text.split("_")[1]
    assert draw(SystemIds()) != text
    assert len(digest_of(text.encode())) == 32


@given(st.integers(0, 93), st.sampled_from("0123456789abcdefABCDEF_x \n\0é"))
def test_a_changed_token_is_none(at: int, other: str) -> None:
    text = draw(SystemIds())
    changed = text[:at] + other + text[at + 1 :]
    assert changed == text or id_of(changed) is None


@given(st.text(max_size=100))
def test_other_texts_are_none(text: str) -> None:
    assert id_of(text) is None
    assert id_of(f"{draw(SystemIds())}{text or 'x'}") is None
    assert id_of(f"{text or 'x'}{draw(SystemIds())}") is None

"""The split of a limit: it gives the limit, and nobody nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seaweedq.access.limits import FLOOR, IDLE, Use, split
from tests.support.tiers import examples


@settings(max_examples=examples(100))
@given(st.lists(st.builds(Use, st.floats(0, 3), st.booleans()), min_size=1, max_size=8), st.integers(0, 3))
def test_a_split_gives_the_limit_and_each_broker_a_tenth_of_an_even_share(uses: list[Use], silent: int) -> None:
    named = {str(number): use for number, use in enumerate(uses)}
    shares = split(named, silent)
    whole, floor = len(uses) / (len(uses) + silent), FLOOR / (len(uses) + silent)
    assert shares.keys() == named.keys()
    assert all(share >= floor * 0.999 for share in shares.values())
    assert whole * 0.999 <= sum(shares.values()) <= whole * (1 + FLOOR) * 1.001
    hungry = [shares[name] for name, use in named.items() if use.refused]
    sated = [shares[name] for name, use in named.items() if not use.refused]
    if hungry:
        assert max(hungry) - min(hungry) < 1e-6
        assert max(sated, default=0) <= max(hungry) * 1.001 + floor


def test_who_wants_more_gets_what_the_others_leave() -> None:
    assert split({}) == {}
    shares = split({"a": Use(0.33, True), "b": Use(0.1), "c": IDLE})
    assert shares == {"a": pytest.approx(0.9), "b": pytest.approx(0.1), "c": pytest.approx(FLOOR / 3)}
    assert split({"a": Use(0.3, True), "b": IDLE}, silent=1)["a"] == pytest.approx(2 / 3), "the third may use its own"
    assert split({"a": Use(5.0), "b": Use(5.0)}) == {"a": 0.5, "b": 0.5}

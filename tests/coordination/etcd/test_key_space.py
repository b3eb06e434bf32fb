"""Where keys lie in etcd: the interval of a prefix holds exactly the keys that begin with it."""

from hypothesis import given
from hypothesis import strategies as st

from seaweedq.coordination.etcd import BEHIND_ALL, KeySpace

SPACES = st.sampled_from(["", "seaweedq/", "ü", "\U0010ffff"]).map(KeySpace)
TEXTS = st.text(st.sampled_from("a/0ä\U0001f600\U0010ffff") | st.characters(codec="utf-8"), max_size=4)


@given(space=SPACES, prefix=TEXTS, after=TEXTS, key=TEXTS.filter(bool))
def test_an_interval_holds_what_begins_with_the_prefix_and_sorts_behind(
    space: KeySpace, prefix: str, after: str, key: str
) -> None:
    start, end = space.interval(prefix, after)
    inside = start <= space.full(key) and (end == BEHIND_ALL or space.full(key) < end)
    assert inside == (key.startswith(prefix) and key > after)


@given(space=SPACES, other=TEXTS.filter(bool))
def test_keys_of_another_space_are_outside(space: KeySpace, other: str) -> None:
    start, end = space.interval("")
    if not other.startswith(space.prefix):
        assert not (start <= other.encode() < end)


@given(space=SPACES, key=TEXTS)
def test_the_prefix_is_put_on_and_taken_off(space: KeySpace, key: str) -> None:
    assert space.full(key).startswith(space.prefix.encode())
    assert space.short(space.full(key)) == key

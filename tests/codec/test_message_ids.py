"""Ids that are read by columns are those that are read one by one."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.codec.message_ids import read_ids

GOOD = re.compile(r"(0|[1-9][0-9]{0,17})-(0|[1-9][0-9]{0,17})")
MANY = [f"{segment}-{offset}" for segment in (3, 0) for offset in (12, 5, 100_000, 0)]
numbers = st.one_of(st.integers(0, 20), st.integers(0, 10**18 - 1))
ids = st.builds("{}-{}".format, numbers, numbers)
strange = st.one_of(st.text("0123456789-,٣é \n", max_size=12), ids.map(lambda one: f"0{one}"), ids.map("{},1-1".format))


def expected(texts: list[str]) -> tuple[dict[int, list[int]], list[str]]:
    offsets: dict[int, list[int]] = {}
    for text in texts:
        if parts := GOOD.fullmatch(text):
            offsets.setdefault(int(parts[1]), []).append(int(parts[2]))
    return {n: sorted(some) for n, some in offsets.items()}, [text for text in texts if not GOOD.fullmatch(text)]


def found(texts: list[str]) -> tuple[dict[int, list[int]], list[str]]:
    offsets, others = read_ids(texts)
    return {number: some.tolist() for number, some in offsets.items()}, others


@given(st.lists(ids, max_size=40))
def test_ids(texts: list[str]) -> None:
    assert found(texts) == expected(texts)


@given(st.lists(st.one_of(ids, strange), min_size=9, max_size=40))
def test_ids_among_others(texts: list[str]) -> None:
    assert found(texts) == expected(texts)


@pytest.mark.parametrize(
    "text",
    ["", "-", "1-", "-1", "1", "1-2-3", "1,2", "1-2,3-4", "01-2", "1-02", "1-2\n", "1 -2", "٣-1", "1-" + "9" * 19],
)
@pytest.mark.parametrize("at", [0, 4, 8])
def test_a_text_that_is_no_id_is_told_wherever_it_stands(text: str, at: int) -> None:
    texts = [*MANY[:at], text, *MANY[at:]]
    assert found(texts) == expected(texts)
    assert found(texts)[1] == [text]


def test_the_largest_numbers() -> None:
    largest = 10**18 - 1
    assert found([f"{largest}-{largest}"] * 10) == ({largest: [largest] * 10}, [])

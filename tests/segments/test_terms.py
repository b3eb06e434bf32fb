"""Terms rise with owners, also from one generation to the next; and what a recovery does with rows, case by case."""

import pytest

from seaweedq.segments.terms import FIRST_TERM, NO_TERM, Tenure, first_term, judge, next_term


def test_a_segment_begins_with_the_first_number_of_its_generation() -> None:
    assert first_term(1) == FIRST_TERM
    assert first_term(3) == (3, 1)


def test_each_owner_has_a_higher_term() -> None:
    terms = [NO_TERM, FIRST_TERM]
    for generation in (1, 1, 2, 2, 5):
        terms.append(next_term(terms[-1], generation))
    assert terms == [(0, 0), (1, 1), (1, 2), (1, 3), (2, 4), (2, 5), (5, 6)]
    assert sorted(terms) == terms


X, X_AGAIN, Y = Tenure((1, 3), "x"), Tenure((1, 5), "x"), Tenure((1, 4), "y")
OTHER = Tenure((1, 3), "z")  # of a history that coordination has forgotten
EARLIER, NEXT_GENERATION, NOBODY = Tenure((1, 2), "w"), Tenure((2, 4), "y"), None

HELD = [  # who wrote the entry that has the rows of x's term 1-3; the record; the chain's last entry
    (X, X, X, "skip"),
    (X, Y, Y, "skip"),  # it has moved since
    (X, X_AGAIN, X_AGAIN, "skip"),
    (X, NEXT_GENERATION, NEXT_GENERATION, "skip"),
    (X, X, Y, "skip"),  # the record is older than the chain, and the rows are there all the same
    (Y, Y, Y, "skip"),  # a commit that failed before the move
    (Y, X_AGAIN, X_AGAIN, "skip"),
    (Y, NEXT_GENERATION, NEXT_GENERATION, "skip"),  # in the history of x it had moved
    (Y, X, Y, "damage"),  # coordination has forgotten y
    (OTHER, OTHER, OTHER, "damage"),  # one term, two owners
    (OTHER, X, OTHER, "damage"),
    (EARLIER, X, EARLIER, "damage"),
    (NEXT_GENERATION, NEXT_GENERATION, NEXT_GENERATION, "damage"),
]


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize(("holder", "record", "last", "verdict"), HELD)
def test_what_becomes_of_rows_whose_offsets_the_chain_has(
    holder: Tenure, record: Tenure, last: Tenure, is_sealed: bool, verdict: str
) -> None:
    assert judge(X, holder, record, last, is_sealed) == verdict


BEYOND = [  # the record; the chain's last entry, and whether that is a seal
    (X, X, False, "append"),
    (X, EARLIER, False, "append"),  # x had put nothing yet
    (X, NOBODY, False, "append"),
    (X, Y, False, "damage"),  # coordination has forgotten y
    (X, OTHER, False, "damage"),
    (Y, X, False, "skip"),  # a commit that failed before the move
    (Y, Y, False, "skip"),
    (Y, NOBODY, False, "skip"),
    (Y, X_AGAIN, False, "damage"),
    (X_AGAIN, EARLIER, False, "skip"),
    (NEXT_GENERATION, X, False, "damage"),
    (EARLIER, EARLIER, False, "damage"),  # coordination has forgotten x
    (OTHER, X, False, "damage"),
    (X, X, True, "skip"),  # a commit that failed before the seal
    (Y, X, True, "skip"),
    (Tenure((1, 3), ""), X, True, "skip"),  # the record is sealed, too
    (Y, Y, True, "skip"),
    (X, EARLIER, True, "damage"),  # taken behind a seal that came late
    (X, OTHER, True, "damage"),
    (X, Y, True, "damage"),
    (NEXT_GENERATION, NEXT_GENERATION, True, "damage"),
]


@pytest.mark.parametrize(("record", "last", "is_sealed", "verdict"), BEYOND)
def test_what_becomes_of_rows_behind_the_end_of_the_chain(
    record: Tenure, last: Tenure | None, is_sealed: bool, verdict: str
) -> None:
    assert judge(X, None, record, last, is_sealed) == verdict

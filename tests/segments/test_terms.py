"""Terms rise with owners, also from one generation to the next."""

from seaweedq.segments.terms import FIRST_TERM, NO_TERM, first_term, next_term


def test_a_segment_begins_with_the_first_number_of_its_generation() -> None:
    assert first_term(1) == FIRST_TERM
    assert first_term(3) == (3, 1)


def test_each_owner_has_a_higher_term() -> None:
    terms = [NO_TERM, FIRST_TERM]
    for generation in (1, 1, 2, 2, 5):
        terms.append(next_term(terms[-1], generation))
    assert terms == [(0, 0), (1, 1), (1, 2), (1, 3), (2, 4), (2, 5), (5, 6)]
    assert sorted(terms) == terms

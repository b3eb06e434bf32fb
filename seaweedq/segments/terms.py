"""Terms of segments: which owner has written what. Pure.

A *generation* is an uninterrupted history of coordination, counted from 1. A *term* is a generation and a number. A
segment that is made in the generation g has the term (g, 1). Each later owner gets the next number, in the generation
of that moment; so the terms of a segment rise with its owners, and a term has one owner. The segment's record, the
frames of its owner and the entries of its chain state the term. The entries of a chain have rising terms: an owner
begins where the chain of the one before has ended. A *tenure* is a term with its owner.
"""

from typing import NamedTuple, TypeAlias

Term: TypeAlias = tuple[int, int]
"""Generation and number."""

FIRST_GENERATION = 1
FIRST_TERM: Term = (FIRST_GENERATION, 1)
NO_TERM: Term = (0, 0)


class Tenure(NamedTuple):
    """A term, and the id of the broker that owns the segment in it; empty if no broker does."""

    term: Term
    owner: str


def first_term(generation: int) -> Term:
    """Returns the term of the first owner of a segment that is made in a generation."""
    return generation, 1


def next_term(term: Term, generation: int) -> Term:
    """Returns the term of the next owner, which gets the segment in a generation."""
    return generation, term[1] + 1

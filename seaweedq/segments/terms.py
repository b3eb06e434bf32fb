"""Terms of segments: which owner has written what. Pure.

A *generation* is an uninterrupted history of coordination, counted from 1. A *term* is a generation and a number. A
segment that is made in the generation g has the term (g, 1). Each later owner gets the next number, in the generation
of that moment; so the terms of a segment rise with its owners, and a term has one owner. The segment's record, the
frames of its owner and the entries of its chain state the term. The entries of a chain have rising terms: an owner
begins where the chain of the one before has ended. A *tenure* is a term with its owner.

A recovery finds rows of a dead owner in its journal. Some are in the chain, some have to be appended; and some were
never acknowledged, since their commit failed, and must neither be appended nor hold up anything. All others are
acknowledged rows that would be lost: coordination has gone back, and nobody has noticed it. `judge` tells these cases
apart; docs/internals/lost-coordination.md has them in a table.
"""

from typing import Literal, NamedTuple, TypeAlias

Term: TypeAlias = tuple[int, int]
"""Generation and number."""

FIRST_GENERATION = 1
FIRST_TERM: Term = (FIRST_GENERATION, 1)
NO_TERM: Term = (0, 0)
Verdict: TypeAlias = Literal["skip", "append", "damage"]


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


def owes_entry(term: Term, last: Term | None, entry_from: int = 0, is_recovered: bool = False) -> bool:
    """Tells whether the owner in a term has to put an entry before it takes anything: an earlier owner's put of a seal
    may still land, and coordination may have forgotten it. So it is for the first owner of a generation; and from the
    number `entry_from` on, for the first one behind an owner that was given up for dead.

    `last` is the term of the chain's last entry, which `is_recovered` if a recovery has put it: then the name that its
    owner would want next is taken. None: there is no entry, and only the first owner knows that none has written.
    """
    if last is None:
        return entry_from > 0 or (term[0] > FIRST_GENERATION and term[1] > 1)
    if term[0] > last[0]:
        return True
    return last[1] < entry_from and not (is_recovered and last[1] == entry_from - 1)


def judge(rows: Tenure, holder: Tenure | None, record: Tenure, last: Tenure | None, is_sealed: bool) -> Verdict:
    """Returns what a recovery does with rows of a dead broker's journal.

    `holder` is the tenure of the entry that has their offsets; None: they are behind the chain's end. `last` is that of
    the chain's last entry, None if there is no entry; with `is_sealed` that entry is the last one for ever. `record` is
    that of the segment's record, as it was read behind the chain.
    """
    witness = holder or (last if is_sealed else None)  # the chain's word on them, or else the record's
    if witness == rows:
        return "skip"  # a seal waits for all commits: what is behind the seal of their own tenure failed before it
    if witness is None and record == rows and (last is None or last == rows or last.term < rows.term):
        return "append"
    has_left = _follows((witness or record).term, rows.term)
    return "skip" if has_left and (last is None or last.term <= record.term) else "damage"


def _follows(later: Term, term: Term) -> bool:
    """Tells whether a segment has left the owner of a term in order: within a generation that is a move, which waits
    for all commits, or a recovery, which brings all rows into the chain. So rows that no entry of the term has were
    never acknowledged."""
    return later[0] == term[0] and later > term

"""The rows of a read that come from files, as a condition in Spark's SQL. Pure."""

from collections.abc import Sequence

from seaweedq.client.core.tables.table_plan import Rows


def condition(files: Sequence[Rows]) -> str:
    """Returns the rows that come from files as a condition; there is at most one range a segment.

    Two arrays by segment number instead of a term for each segment: of a hundred of those, Spark's planner alone takes
    seconds.
    """
    if not files:
        return "false"
    known = {rows.segment: rows for rows in files}
    lowest, highest = min(known), max(known)
    numbers = range(lowest, highest + 1)
    ends = [known[n].end if n in known else 0 for n in numbers]
    starts = [known[n].start if n in known else 0 for n in numbers]
    terms = [f"segment BETWEEN {lowest} AND {highest}", f"_offset < {_array(ends)}[segment - {lowest}]"]
    if any(starts):
        terms.append(f"_offset >= {_array(starts)}[segment - {lowest}]")
    return " AND ".join(terms)


def _array(numbers: Sequence[int]) -> str:
    return f"array({', '.join(f'{number}L' for number in numbers)})"

"""The rows of a read that come from files, the files that have them, and the rows that have not expired, as conditions
in Spark's SQL. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from seaweedq.client.core.table_plan import Rows

_FOLDER = "substring_index(substring_index(_metadata.file_path, '=', -1), '/', 1)"  # the segment's number


def condition(files: Sequence[Rows]) -> str:
    """Returns the rows that come from files as a condition; there is at most one range a segment.

    Two arrays by segment number instead of a term for each segment: of a hundred of those, Spark's planner alone takes
    seconds. Segments without rows are left out by their numbers alone, so that Spark opens none of their files.
    """
    if not files:
        return "false"
    known = {rows.segment: rows for rows in files}
    numbers = _numbers(files)
    lowest, highest = numbers[0], numbers[-1]
    ends = [known[n].end if n in known else 0 for n in numbers]
    starts = [known[n].start if n in known else 0 for n in numbers]
    terms = [f"segment BETWEEN {lowest} AND {highest}"]
    if gaps := [n for n in numbers if n not in known]:
        terms.append(f"segment NOT IN ({', '.join(map(str, gaps))})")
    terms.append(f"_offset < {_array(ends)}[segment - {lowest}]")
    if any(starts):
        terms.append(f"_offset >= {_array(starts)}[segment - {lowest}]")
    return " AND ".join(terms)


def file_condition(files: Sequence[Rows], first: Mapping[int, str]) -> str:
    """Returns the files that have these rows as a condition, given the name of each segment's first file that counts,
    where some before it do not. Empty where all count.

    Spark leaves out files by a condition on its `_metadata` alone when it plans a query, and evaluates it for each row
    again. So most rows are settled by one comparison of names, with that of the segment whose files begin last.
    """
    numbers = _numbers(files)
    names = [first.get(n, "") for n in numbers]
    last = max(names, default="")
    if not last:
        return ""
    settled = f"_metadata.file_name >= '{last}'"
    if len({*names}) == 1:
        return settled
    array = ", ".join(f"'{name}'" for name in names)
    return f"({settled} OR _metadata.file_name >= get(array({array}), CAST({_FOLDER} AS INT) - {numbers[0]}))"


def unexpired(as_of: datetime) -> str:
    """Returns the rows that have not expired at a time as a condition.

    Each plan has another time. One that stands alone is a part of the code that Spark generates, and has it compiled
    for each query anew, which costs half a second of CPU; what is in an array is handed to the same code. The index is
    0, and Spark does not know it.
    """
    return f"_expires IS NULL OR _expires > array(TIMESTAMP '{as_of.isoformat()}')[least(segment, 0)]"


def _numbers(files: Sequence[Rows]) -> Sequence[int]:
    segments = [rows.segment for rows in files]
    return range(min(segments), max(segments) + 1) if segments else ()


def _array(numbers: Sequence[int]) -> str:
    return f"array({', '.join(f'{number}L' for number in numbers)})"

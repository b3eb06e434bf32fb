"""Reads the ids of messages in requests, `{segment}-{offset}`, by columns: all of a request as one text. Pure."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

DIGITS = 18  # of a number at most: it fits into 63 bits
_ID = re.compile(rf"(0|[1-9][0-9]{{0,{DIGITS - 1}}})-(0|[1-9][0-9]{{0,{DIGITS - 1}}})")
_COMMA, _DASH, _ZERO = b",-0"
_FEW = 8  # are read one by one
Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


def read_ids(ids: Sequence[str]) -> tuple[dict[int, Numbers], list[str]]:
    """Returns the offsets by segment, sorted, and the texts that are no ids."""
    strange: list[str] = []
    numbers = _numbers(ids) if len(ids) > _FEW else None
    if numbers is None:
        numbers, strange = _one_by_one(ids)
    segments, offsets = numbers[0::2], numbers[1::2]
    order = np.lexsort((offsets, segments))
    segments, offsets = segments[order], offsets[order]
    cuts = [0, *(np.flatnonzero(segments[1:] != segments[:-1]) + 1).tolist(), len(segments)]
    return {int(segments[low]): offsets[low:high] for low, high in pairwise(cuts) if low < high}, strange


def _numbers(ids: Sequence[str]) -> Numbers | None:
    """Returns segment and offset of each id in turn; None where one of the texts is no id."""
    joined = ",".join(ids)
    if not joined.isascii():
        return None
    octets = np.frombuffer(joined.encode(), np.uint8)
    cuts = np.flatnonzero((octets < _ZERO) | (octets > _ZERO + 9))
    if len(cuts) != 2 * len(ids) - 1 or (octets[cuts[0::2]] != _DASH).any() or (octets[cuts[1::2]] != _COMMA).any():
        return None
    begins = np.concatenate([[0], cuts + 1])
    lengths = np.append(cuts, len(octets)) - begins
    if lengths.min() < 1 or lengths.max() > DIGITS or ((octets[begins] == _ZERO) & (lengths > 1)).any():
        return None
    return np.fromstring(joined.replace("-", ","), np.int64, sep=",")


def _one_by_one(ids: Sequence[str]) -> tuple[Numbers, list[str]]:
    numbers: list[int] = []
    strange: list[str] = []
    for text in ids:
        if parts := _ID.fullmatch(text):
            numbers += (int(parts[1]), int(parts[2]))
        else:
            strange.append(text)
    return np.array(numbers, np.int64), strange

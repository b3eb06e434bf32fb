"""A record as it was read: what a writer that replaces it compares, and what it builds upon."""

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T", covariant=True)


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A record of coordination, and the revision of its last change. Functions that replace a record take it whole."""

    record: T
    revision: int

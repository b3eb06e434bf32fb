"""The record in a value of coordination, for tests that know that it can be read."""

from typing import TypeVar

import msgspec

from seaweedq.coordination.interface import Entry
from seaweedq.coordination.keys import KeyKind

T = TypeVar("T", bound=msgspec.Struct)


def record_of(kind: KeyKind[T], value: bytes) -> T:
    """The record. Raises NeedsNewerBroker."""
    return kind.require(Entry("", value, 0)).record

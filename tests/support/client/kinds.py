"""Both kinds of a producer's batches: messages as lines, and as rows of Arrow."""

import pytest

from seaweedq.client.core import streams
from seaweedq.client.core.segment_map import KeyRule
from tests.support import privates


def use(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has producers send `lines` alone, or `rows` from their first message on, however few they are."""
    monkeypatch.setattr(streams, "FEWEST", 1 if kind == "rows" else 1 << 60)
    made = streams.Partitioner.__init__

    def knows(partition, *arguments):
        made(partition, *arguments)
        privates.use_rule(partition, KeyRule())

    if kind == "rows":
        monkeypatch.setattr(streams.Partitioner, "__init__", knows)

"""Records the steps that offsets of a subscription take, by the names of docs/internals/states.md."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from seaweedq.broker.log.intervals import Offsets
from seaweedq.broker.subscriptions.window import ACKED, ACKING, DELAYED, DYING, FREE, HELD, Window
from tests.support.brokers.drawn_states import Step

NAMES = {FREE: "available", HELD: "leased", DELAYED: "delayed", DYING: "dying", ACKING: "acking", ACKED: "acked"}


@contextmanager
def recorded_steps() -> Iterator[set[Step]]:
    """Records the steps of all windows in the block; an offset that stays in its state takes none."""
    made: set[Step] = set()
    move = Window._move

    def recording(window: Window, offsets: Offsets, state: int) -> None:
        for before in set(window.values("state", offsets).tolist()) - {state}:
            made.add((NAMES[before], NAMES[state]))
        move(window, offsets, state)

    with patch.object(Window, "_move", recording):
        yield made

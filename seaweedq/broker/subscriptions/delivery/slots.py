"""Slots of keys: the hash of a message's key, by which `keyed` keeps order. A slot is *busy* while a message of it is
with somebody: leased, delayed, or acked and not durable yet. Pure."""

from typing import Any

import numpy as np

SLOTS = 65_536
NO_KEY = -1  # the slot of a message without a key
Slots = np.ndarray[Any, np.dtype[np.int32]]


class BusySlots:
    """How many messages of each slot are with somebody, those below `known_to` alone: the keys of others are not known.
    To search the window for them at each pull would cost more than all else. There is no table while none is."""

    def __init__(self, known_to: int) -> None:
        self.known_to = known_to
        self._counts: np.ndarray[Any, np.dtype[np.uint32]] | None = None

    def add(self, slots: Slots) -> None:
        """Counts messages that somebody has now."""
        if len(slots):
            self._counts = np.zeros(SLOTS + 1, np.uint32) if self._counts is None else self._counts
            np.add.at(self._counts, slots, 1)
            self._counts[NO_KEY] = 0  # the last place: those without a key wait for nobody

    def remove(self, slots: Slots) -> None:
        """Counts messages that nobody has any more."""
        if self._counts is not None and len(slots):
            np.subtract.at(self._counts, slots, 1)
            self._counts[NO_KEY] = 0

    def clear(self) -> None:
        """Nobody has anything."""
        self._counts = None

    def free(self, slots: Slots) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Tells which of these slots are not busy."""
        return np.ones(len(slots), bool) if self._counts is None else self._counts[slots] == 0

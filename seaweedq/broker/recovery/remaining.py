"""The part of a dead broker's journal that a replay has still to bring where it belongs, as the leader asks for it.

It is *unknown* until the journal was read to its end, then *known*: the segments of which rows or marks are left. They
become fewer, each once its chain holds all of its rows and has the entry that its mark names. A segment that is not
among them may change hands, though the journal is not recovered yet. For its journal is fenced, so nothing is added to
it; and whoever replays the journal again finds each of its rows in the chain, whoever owns the segment by then.

Nothing of it is stored: if this process ends, the next replay begins at the ends of the chains, and leaves alone what
was given away.
"""

from collections.abc import Callable, Iterable

Place = tuple[str, int]  # topic and segment
LEAST, PARTS = 40, 8  # segments, parts of all of them: the leader is told after no fewer


class Remaining:
    """The segments of one journal that are left. `changed` is called now and then as they become fewer."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._places: set[Place] | None = None
        self._step = self._told = 0

    def __contains__(self, place: Place) -> bool:
        """Tells whether something of a segment is left, or may be."""
        return self._places is None or place in self._places

    def know(self, places: Iterable[Place]) -> None:
        """Notes that the journal was read to its end, and what is left of it."""
        self._places = set(places)
        self._told = len(self._places)
        self._step = max(LEAST, self._told // PARTS)
        self._changed()

    def done(self, place: Place) -> None:
        """Notes that nothing of a segment is left."""
        if self._places is not None:
            self._places.discard(place)
            if self._told - len(self._places) >= self._step:
                self._told = len(self._places)
                self._changed()

"""When a producer looks at the segment map: at first, every 30 s, and soon where it may be old. Pure."""

from math import inf

EVERY_S, DOUBTED_S = 30.0, 1.0


class Lookout:
    """Only who sends looks; one look at a time."""

    def __init__(self) -> None:
        self._looked_s = -inf
        self._looking = False
        self._doubted = False

    def due(self, now_s: float) -> bool:
        """Whether it is time."""
        return not self._looking and now_s >= self._looked_s + (DOUBTED_S if self._doubted else EVERY_S)

    def begin(self) -> None:
        """A look begins."""
        self._looking, self._doubted = True, False

    def end(self, now_s: float, seen: bool) -> None:
        """It is over; `seen`: whether there was a map."""
        self._looking, self._looked_s = False, now_s
        self._doubted = self._doubted or not seen

    def doubt(self) -> None:
        """What is believed may be old."""
        self._doubted = True

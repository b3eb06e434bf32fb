"""The last hour of a topic in the answer of `GET .../history`, as facts over time: what each segment took. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from seaweedq.cli.topic.lineage import KEY_SPACE, Segment


@dataclass(frozen=True, slots=True)
class Cell:
    """The messages a second that came into a range of keys from `begin` to `end`. `segment` is None for several."""

    begin: datetime
    end: datetime
    low: int
    high: int
    segment: int | None
    rate: float
    hot_key: tuple[int, float] | None = None

    @property
    def messages(self) -> float:
        """Returns about how many messages came."""
        return self.rate * (self.end - self.begin).total_seconds()


@dataclass(frozen=True, slots=True)
class Took:
    """The mean and the highest rate of a segment, and the key that was too hot to split it."""

    mean: float
    highest: float
    hot_key: tuple[int, float] | None


@dataclass(frozen=True, slots=True)
class LastHour:
    """The cells, and since when the leader has recorded them all."""

    begin: datetime
    cells: tuple[Cell, ...]

    @staticmethod
    def of(answer: Mapping[str, Any]) -> "LastHour":
        """Parses an answer."""
        return LastHour(datetime.fromisoformat(answer["from"]), tuple(map(_cell, answer["cells"])))

    def took(self, segment: Segment, now: datetime) -> Took | None:
        """Returns what a segment took since the leader records; None for one that was sealed before."""
        lived = (segment.sealed_at or now) - max(segment.created_at, self.begin)
        if lived <= timedelta(0):
            return None
        cells = [cell for cell in self.cells if cell.segment == segment.id]
        hot = [cell.hot_key for cell in cells if cell.hot_key]
        highest = max((cell.rate for cell in cells), default=0.0)
        return Took(sum(c.messages for c in cells) / lived.total_seconds(), highest, hot[-1] if hot else None)

    def rates(self, since: datetime, until: datetime, lines: int, columns: int) -> list[list[float]]:
        """Returns a picture of so many lines, the oldest first, and columns of the key space: the highest rate at each
        place."""
        found = [[0.0] * columns for _ in range(lines)]
        for cell in self.cells:
            first, last = ((at - since) / (until - since) * lines for at in (cell.begin, cell.end))
            left, right = (key * columns // KEY_SPACE for key in (cell.low, cell.high - 1))
            for line in range(max(0, int(first)), min(lines, max(int(first) + 1, round(last)))):
                for column in range(left, right + 1):
                    found[line][column] = max(found[line][column], cell.rate)
        return found


def _cell(answer: Mapping[str, Any]) -> Cell:
    begin, hot = datetime.fromisoformat(answer["time"]), answer.get("hot_key")
    return Cell(
        begin,
        begin + timedelta(seconds=answer["seconds"]),
        answer["low"],
        answer["high"],
        answer["segment"],
        answer["messages_per_s"],
        (hot["hash"], hot["share"]) if hot else None,
    )

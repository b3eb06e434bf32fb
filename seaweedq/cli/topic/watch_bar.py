"""The key space as a bar: the cells of each segment, and the display of rates. Pure, and without a terminal."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seaweedq.cli.topic.lineage import KEY_SPACE, Segment

# Colours of 0 (and below 1), 1, 10, 100, ... messages/s; between them they are mixed.
_COLOURS = ("#4a4f63", "#3b6fb6", "#2fa4c7", "#4cc38a", "#c9d64f", "#f2a83b", "#e2543a", "#c22f7d")
_SHADES = ((1, "·"), (100, "░"), (10_000, "▒"), (100_000, "▓"), (math.inf, "█"))  # below each rate
DIGITS = 2  # of the number in a broker's id are shown at least
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
COLOUR_LEGEND = ("0", "1", "10", "100", "1k", "10k", "100k", "1M")
SHADE_LEGEND = ("0", "1+", "100+", "10k+", "100k+")


@dataclass(frozen=True, slots=True)
class Block:
    """Adjacent cells of the bar, and the segments that they stand for: one, or several that are too small to be
    seen."""

    first: int
    cells: int
    segments: tuple[Segment, ...]

    @property
    def label(self) -> str:
        """Returns the id, or the first and last ids."""
        ids = [segment.id for segment in self.segments]
        return str(ids[0]) if len(ids) == 1 else f"{ids[0]}..{ids[-1]}"

    @property
    def owner(self) -> str | None:
        """Returns the owner of the segments; None if there is none, or several."""
        owners = {segment.owner for segment in self.segments}
        return owners.pop() if len(owners) == 1 else None

    def rate(self, rates: Mapping[int, float | None]) -> float:
        """Returns messages per second of its hottest segment."""
        return max((rates.get(segment.id) or 0.0 for segment in self.segments), default=0.0)


def blocks(segments: Sequence[Segment], width: int) -> list[Block]:
    """Returns the bar of `width` cells for segments in the order of their ranges: each as wide as its range, to the
    nearest cell. A segment too small for a cell shares those of the next one that has some, or of the last."""
    found: list[Block] = []
    waiting: list[Segment] = []
    for segment in segments:
        waiting.append(segment)
        begin, end = _cell(waiting[0].low, width), _cell(segment.high, width)
        if end > begin:
            found.append(Block(begin, end - begin, tuple(waiting)))
            waiting = []
    if waiting and found:
        last = found.pop()
        found.append(Block(last.first, last.cells, (*last.segments, *waiting)))
    return found


def _cell(key_hash: int, width: int) -> int:
    return (2 * key_hash * width + KEY_SPACE) // (2 * KEY_SPACE)


def colour(rate: float) -> str:
    """Returns the colour of a rate in messages/s, as #rrggbb: by its logarithm."""
    at = 0.0 if rate < 1 else min(1 + math.log10(rate), len(_COLOURS) - 1.0)
    low = min(int(at), len(_COLOURS) - 2)
    pairs = zip(_parts(_COLOURS[low]), _parts(_COLOURS[low + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (at - low)):02x}" for a, b in pairs)


def shade(rate: float) -> str:
    """Returns a character for a rate in messages/s, for output without colours."""
    return next(character for below, character in _SHADES if rate < below)


def legend(colours: bool) -> list[tuple[str, str, str]]:
    """Returns the meaning of the bar's colours or characters: character, colour, rate."""
    if colours:
        return [("█", colour, rate) for colour, rate in zip(_COLOURS, COLOUR_LEGEND, strict=True)]
    return [(character, "", rate) for (_, character), rate in zip(_SHADES, SHADE_LEGEND, strict=True)]


def short(value: float) -> str:
    """Returns a figure in at most five characters: 950, 1.2k, 34.5M."""
    for unit, letter in _UNITS:
        if value >= unit * 0.9995:
            return f"{value / unit:.0f}{letter}" if value >= 99.95 * unit else f"{value / unit:.1f}{letter}"
    return f"{value:.0f}" if value >= 9.95 or value == 0 else f"{value:.1f}"


def short_names(brokers: Sequence[str]) -> dict[str, str]:
    """Returns the given name of each broker, with as many digits of its random number as distinguish it from the
    others."""
    named: dict[str, list[str]] = {}
    for broker in brokers:
        named.setdefault(broker.rpartition(".")[0], []).append(broker)
    return {
        broker: name or broker if len(same) == 1 else _told(broker, same)
        for name, same in named.items()
        for broker in same
    }


def _told(broker: str, same: Sequence[str]) -> str:
    for length in range(broker.rfind(".") + 1 + DIGITS, len(broker)):
        if sum(other.startswith(broker[:length]) for other in same) == 1:
            return broker[:length]
    return broker


def _parts(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]

"""The topics and segments of `seaweedq top`, ranked, and which topics to look at next. Pure.

A look at a topic is a request. Where there are more topics than a look may ask for, half of the requests go to the
busiest ones, and the others to the next ones in turn, so that every topic is looked at sooner or later.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seaweedq.cli.topic.lineage import Segment

LOOKS = 100  # topics in a round


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """A topic with its open segments; rates are those of the last 10 s, as brokers report them."""

    name: str
    messages: int
    open: Sequence[Segment]

    @staticmethod
    def of(name: str, answer: Iterable[Mapping[str, Any]]) -> "TopicLoad":
        """Returns the load of a topic, given its segments as a broker lists them."""
        listed = list(answer)
        found = [one for one in map(Segment.of, listed) if one.is_open]
        return TopicLoad(name, sum(one["end_offset"] - one["start_offset"] for one in listed), found)

    def rate(self, minutes: bool = False) -> float:
        """Returns messages per second, over the last 10 s or the last minute."""
        return sum(one.messages_per_s[minutes] for one in self.open if len(one.messages_per_s) > minutes)

    @property
    def bytes_per_s(self) -> float:
        """Returns bytes per second over the last 10 s."""
        return sum(one.bytes_per_s[0] for one in self.open if one.bytes_per_s)

    @property
    def owners(self) -> set[str]:
        """Returns the brokers that own its open segments."""
        return {one.owner for one in self.open if one.owner}


@dataclass
class Loads:
    """The known load of each topic; `turn` is the place in the list of those that are looked at in turn."""

    known: dict[str, TopicLoad] = field(default_factory=dict)
    turn: int = 0

    def due(self, names: Sequence[str], most: int = LOOKS) -> list[str]:
        """Returns the topics of the next round, and forgets those that are no more."""
        self.known = {name: load for name, load in self.known.items() if name in set(names)}
        if len(names) <= most:
            return list(names)
        busy = [load.name for load in self.busiest()[: most // 2] if load.rate()]
        rest = [name for name in [*names[self.turn :], *names[: self.turn]] if name not in busy][: most - len(busy)]
        self.turn = (names.index(rest[-1]) + 1) % len(names)
        return [*busy, *rest]

    def busiest(self) -> list[TopicLoad]:
        """Returns the topics by their rates, then by their messages."""
        return sorted(self.known.values(), key=lambda load: (-load.rate(), -load.messages, load.name))

    def segments(self) -> list[tuple[str, Segment]]:
        """Returns the open segments that have messages, by their rates."""
        every = [(load.name, one) for load in self.known.values() for one in load.open]
        some = [pair for pair in every if pair[1].messages_per_s and pair[1].messages_per_s[0] > 0]
        return sorted(some, key=lambda pair: (-pair[1].messages_per_s[0], pair[0], pair[1].id))

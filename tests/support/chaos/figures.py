"""What a history says about speed: how long a killed owner's key range waits, and how many calls there were. Pure."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence

from tests.support.history.history import Event


def failovers(events: Sequence[Event]) -> dict[str, list[float]]:
    """Seconds from a SIGKILL to the first acknowledgement of a publish that began later, by the fault's name.

    One for each segment that lost its owner; none where nobody published to it any more.
    """
    began = {e.call: e.t for e in events if e.type == "invoke"}
    answered: dict[int | None, list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event.op == "publish" and event.type == "ok":
            answered[event.segment].append((began[event.call], event.t))
    for found in answered.values():
        found.sort()
    waits: dict[str, list[float]] = defaultdict(list)
    for kill in events:
        if kill.op == "fault" and kill.type == "info":
            later = answered[kill.segment][bisect_left(answered[kill.segment], (kill.t, kill.t)) :]
            if later:
                waits[(kill.note or "").split(":")[0]].append(min(t for _, t in later) - kill.t)
    return dict(waits)


def calls(events: Sequence[Event]) -> Counter[tuple[str, str]]:
    """How many lines of each op and outcome: a line a message."""
    return Counter((e.op, e.type) for e in events if e.type != "invoke" and e.op not in ("fault", "heal"))


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which this part lies; nan for none."""
    return sorted(values)[min(int(part * len(values)), len(values) - 1)] if values else float("nan")

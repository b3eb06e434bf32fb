"""The rule of `checker` for what a fault must cost nobody else: strangers, and services that are only slow. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from tests.support.history.history import LEAVES
from tests.support.history.judged import Run

BOUND_S = 15.0  # a publish beside it takes no longer
AFTER_S = 20.0  # another fault may be felt for so long
FOREVER = float("inf")


class Span(NamedTuple):
    """When a fault began, had begun, and was over, and whether it must cost nothing."""

    name: str
    begun: float
    ended: float
    harmless: bool


def undisturbed(run: Run) -> Iterator[str]:
    """While nothing but harmless faults happens, each publish is answered well, in a bounded time."""
    calls = {e.call: e for e in run.lines("publish", "ok", "info", "fail") if e.note != LEAVES}
    spans = _spans(run)
    others = sorted((one for one in spans if not one.harmless), key=lambda one: one.begun)
    for span in (one for one in spans if one.harmless):
        low, high = _alone(span, others)
        for event in calls.values():
            took_s = event.t - run.begun[event.call]
            if low <= run.begun[event.call] and event.t <= high and (event.type != "ok" or took_s > BOUND_S):
                yield f"{span.name}: {event.producer} at {event.broker} was told {event.type} after {took_s:.1f} s"


RULES: Sequence[Callable[[Run], Iterable[str]]] = (undisturbed,)


def _spans(run: Run) -> list[Span]:
    ended = {e.call: e.t for e in run.lines("fault", "ok", "fail")}
    return [
        Span(e.note or "", e.t, ended.get(e.call, FOREVER), (e.note or "") in run.harmless)
        for e in run.lines("fault", "invoke")
    ]


def _alone(span: Span, others: Sequence[Span]) -> tuple[float, float]:
    """From when to when nothing else happens."""
    low = span.begun
    for other in others:
        if other.begun <= low:
            low = max(low, other.ended + AFTER_S)
    return low, min([span.ended, *(other.begun for other in others if other.begun > low)])

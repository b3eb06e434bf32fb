"""Every state that a model can come to: the first fault, and whether whatever was begun comes to its end."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

State = TypeVar("State", bound=Hashable)
Steps = Iterable[tuple[str, bool, State]]  # what, whether it is bound to happen, the state after it


@dataclass(frozen=True)
class Explored:
    """The first fault, if there is one, the steps that led to it, and how many states were seen."""

    fault: str | None
    path: Sequence[str]
    states: int


def explore(
    start: State,
    steps: Callable[[State], Steps[State]],
    fault: Callable[[State], str | None],
    is_complete: Callable[[State], bool] | None = None,
    limit: int = 3_000_000,
) -> Explored:
    """Breadth first. Raises MemoryError for more than `limit` states.

    With `is_complete`: from each state every run of steps that are bound to happen must come to a complete one, in
    whatever order they happen; a state where one may stop short of that, or go round for ever, is a fault too.
    """
    states, index = [start], {start: 0}
    came: list[tuple[int, str]] = [(-1, "")]
    before: list[list[int]] = [[]]  # the states that a bound step leads from
    at = 0
    while at < len(states):
        for what, bound, after in steps(states[at]):
            number = index.setdefault(after, len(states))
            if number == len(states):
                states.append(after)
                came.append((at, what))
                before.append([])
                if found := fault(after):
                    return Explored(found, _path_to(number, came), len(states))
            if bound:
                before[number].append(at)
        if len(states) > limit:
            raise MemoryError(f"more than {limit} states")
        at += 1
    found = _never_ending(before, map(is_complete, states)) if is_complete else None
    if found is None:
        return Explored(None, [], len(states))
    what, number = found
    return Explored(f"{what}: {states[number]}", _path_to(number, came), len(states))


def _never_ending(before: Sequence[Sequence[int]], complete: Iterable[bool]) -> tuple[str, int] | None:
    """A state from which no bound step leads on, or the last one found from which they need not come to an end."""
    bound = [0] * len(before)
    for origins in before:
        for origin in origins:
            bound[origin] += 1
    ahead, ends = bound[:], list(complete)
    todo = deque(number for number, end in enumerate(ends) if end)
    while todo:
        for origin in before[todo.popleft()]:
            ahead[origin] -= 1
            if ahead[origin] == 0 and not ends[origin]:
                ends[origin] = True
                todo.append(origin)
    left = [number for number, end in enumerate(ends) if not end]
    wedged = [number for number in left if bound[number] == 0]
    return ("wedged", wedged[0]) if wedged else ("goes on for ever", left[-1]) if left else None


def _path_to(number: int, came: Sequence[tuple[int, str]]) -> list[str]:
    path = []
    while number > 0:
        number, what = came[number]
        path.append(what)
    return path[::-1]

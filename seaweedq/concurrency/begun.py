"""Beginning a coroutine within the task that runs: where it need not wait it is over at once, and needs neither a timer
nor a task."""

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Begun(Generic[T]):
    """A coroutine that has run to its first wait, or to its end; its error is raised here.

    One that `is_over` has a `result`. Any other must be awaited at once, by the same task, which gives its result.
    """

    __slots__ = ("_waits_for", "_work", "is_over", "result")
    result: T

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self.is_over = False
        self._step(None)

    def __await__(self) -> Generator[Any, Any, T]:
        while not self.is_over:
            try:
                sent = yield self._waits_for
            except BaseException as error:
                self._step(error)
            else:
                assert sent is None  # futures give their results to the coroutine themselves
                self._step(None)
        return self.result

    def _step(self, error: BaseException | None) -> None:
        try:
            self._waits_for = self._work.send(None) if error is None else self._work.throw(error)
        except StopIteration as end:
            self.is_over, self.result = True, end.value
        except BaseException:
            self._waits_for = error = None  # which refer to an error that refers to this frame
            raise

"""One event loop on simulated time for all lives of a world: a life pauses, goes on, or dies without another step.

A life is known by the context of a callback. The loop keeps the callbacks of a life that is paused until it goes on
(timers, too: they come late, as behind SIGSTOP), and drops those of a life that has died. None of its `finally` clauses
runs (`burial`): a process that was killed cleans nothing up. Garbage is collected behind each tenth burial alone, so
that this, too, follows from the seed.

Nothing waits: the loop moves its time on to the next timer. Each turn takes some microseconds, and ties between timers
are drawn. The steps of `outside`, which is no life of a process, take no time and draw nothing: a fault that is left
out moves nothing that comes before it.
"""

import asyncio
import gc
import heapq
import random
import warnings
import weakref
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

from tests.simulation.burial import STATE_AT, bury
from tests.support.brokers.simulated_loop import SimulatedLoop, settle

T = TypeVar("T")
TIE_S = 1e-7
TURN_S = 5e-6  # on the average
RESOLUTION_S = 1e-9
COLLECTED = 10  # garbage, behind so many burials


class Life:
    """One life of a process, or a part of it that can stand still alone: a `parent` dies with its parts."""

    def __init__(self, name: str, parent: "Life | None" = None) -> None:
        self.name = name
        self.parent = parent
        self.parts: list[Life] = []
        self.is_dead = self.is_paused = False
        self.pauses = 0
        self.stands = False  # paused or dead: what the loop looks at
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.kept: list[asyncio.Handle] = []
        self.at_death: list[Callable[[], None]] = []  # what the operating system does then
        self.context: Context = parent.context.copy() if parent else copy_context()
        self.context.run(_life.set, self)
        if parent:
            parent.parts.append(self)

    def start(self, work: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Begins work of this life."""
        return asyncio.get_running_loop().create_task(work, name=name, context=self.context.copy())

    def part(self, name: str) -> "Life":
        """A part of it that can stand still alone."""
        return Life(name, self)

    def pause(self) -> None:
        """Takes no step until it goes on."""
        self.is_paused = True
        self.pauses += 1
        self.stands = True

    def go_on(self) -> None:
        """Takes the steps that it could not take."""
        if self.is_paused and not self.is_dead:
            self.is_paused = self.stands = False
            kept, self.kept = self.kept, []
            loop = asyncio.get_running_loop()
            assert isinstance(loop, LivesLoop)
            loop.put(kept)

    def die(self) -> None:
        """Takes no further step."""
        if not self.is_dead:
            self.is_dead = self.stands = True
            loop = asyncio.get_running_loop()
            assert isinstance(loop, LivesLoop)
            loop.bury(self.tasks)
            self.kept.clear()  # by which a task may be held alone
            for part in self.parts:
                part.die()
            acts, self.at_death = self.at_death, []
            for act in acts:
                act()


_life: ContextVar[Life | None] = ContextVar("life", default=None)


def life_here() -> Life | None:
    """The life whose step this is."""
    return _life.get()


async def reach_outside() -> None:
    """Comes before whatever others see of a step: the step in which a life died, or was paused, shows nothing more."""
    life = _life.get()
    if life and life.stands:
        await asyncio.sleep(0)


class LivesLoop(SimulatedLoop):
    """The loop of a world; its small decisions follow from a seed. `errors` are those that nobody handled."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(f"loop {seed}")
        self.errors: list[str] = []
        self.graves: list[asyncio.Task[Any]] = []
        self.lives: weakref.WeakSet[Life] = weakref.WeakSet()  # that have begun a task
        self._failed: list[asyncio.Task[Any]] = []  # that a collection might free
        self.burials = 0
        self._collects = False
        self._timers: list[tuple[float, asyncio.TimerHandle]] = []
        super().__init__()
        self.outside = Life("outside")
        self.set_task_factory(_task)
        self.set_exception_handler(self._note)

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        """Of a part of a life that runs beside its loop: the callback is the loop's, so the whole life's."""
        life = _life.get()
        if context is None and life and life.parent:
            context = life.parent.context
        return self.call_soon(callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        is_outside = (context.get(_life) if context is not None else _life.get()) is self.outside
        tie_s = 0.0 if is_outside else self._draw.random() * TIE_S
        timer = asyncio.TimerHandle(when + tie_s, callback, args, self, context)
        heapq.heappush(self._timers, (timer.when(), timer))
        return timer

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """As SimulatedLoop; a worker that has a `delay_s` is heard of so much later, and does one thing at a time."""
        if not (delay_s := getattr(executor, "delay_s", None)):
            return super().run_in_executor(executor, func, *args)
        done = self.create_future()
        executor.free_s = max(self.time(), getattr(executor, "free_s", 0.0)) + 10 * TIE_S + delay_s()
        try:
            self.call_at(executor.free_s, settle, done, func(*args), None)
        except Exception as error:
            self.call_at(executor.free_s, settle, done, None, error)
        return done

    def put(self, handles: list[asyncio.Handle]) -> None:
        """Has callbacks that were kept run, in their order."""
        self._ready.extend(handles)  # type: ignore[attr-defined]

    def bury(self, tasks: "weakref.WeakSet[asyncio.Task[Any]]") -> None:
        """Ends the tasks of a dead life, as soon as none of them is in a step."""
        self.graves += tasks
        if STATE_AT is not None:
            self.call_soon(self._bury, context=self.outside.context)

    def _bury(self) -> None:
        bury(self.graves)
        self.graves.clear()
        self.burials += 1
        if self.burials % COLLECTED == 0:
            self._failed = self._unseen()
            self._collects = True
            with warnings.catch_warnings():  # some coroutines of dead lives never began
                warnings.simplefilter("ignore", RuntimeWarning)
                gc.collect()
            self._collects = False

    def unseen(self) -> list[str]:
        """The errors that nobody has looked at of tasks of the living: asyncio tells of those that are freed alone."""
        return sorted({f"nobody saw {task.exception()!r} of {task.get_coro()!r}" for task in self._unseen()})

    def _unseen(self) -> "list[asyncio.Task[Any]]":
        done = [task for life in self.lives if not life.is_dead for task in life.tasks if task.done()]
        return [task for task in {*done, *self._failed} if task._log_traceback]  # type: ignore[attr-defined]

    def _run_once(self) -> None:
        """A turn, in place of asyncio's, which polls: nothing comes from outside."""
        ready, timers, hands = self._ready, self._timers, self._hands  # type: ignore[attr-defined]
        while timers and timers[0][1].cancelled():
            heapq.heappop(timers)
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            assert timers, "everybody waits, and nothing is due"
            hands.now_s = max(hands.now_s, timers[0][0])
        for handle in ready or [timer for _, timer in timers[:1]]:
            if handle._context.get(_life) is not self.outside:
                hands.now_s += 2 * TURN_S * self._draw.random()
                break
        while timers and timers[0][0] < hands.now_s + RESOLUTION_S:
            ready.append(heapq.heappop(timers)[1])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle.cancelled():
                continue
            life = handle._context.get(_life)
            if life is None or not life.stands:
                handle._run()
            elif not life.is_dead:
                life.kept.append(handle)

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if self._collects:  # nobody was left to see it
            return
        error = context.get("exception")
        self.errors.append(f"{context['message']}: {error or context.get('task')!r}")


def _task(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    task = asyncio.Task(coro, loop=loop, **options)
    context = options.get("context")
    life = context.get(_life) if context is not None else _life.get()
    if life:
        life.tasks.add(task)
        assert isinstance(loop, LivesLoop)
        loop.lives.add(life)
    return task

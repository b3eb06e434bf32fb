"""Reads of other brokers' segments during a look, which no owner that has just fallen silent may hold up.

A look has `delivering`, for which all consumers of its subscription wait. So it waits READ_S for an owner; then the
segment is left out, and the read goes on by itself. Rows at an offset never change, so that a later look takes the
answer, if it wants those rows yet. One that nobody has taken is forgotten after KEPT_S.
"""

import asyncio
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from seaweedq.broker.log.reader import Pieces
from seaweedq.broker.read.segment_reader import Readable
from seaweedq.broker.subscriptions.cursors.subscription import Subscription
from seaweedq.errors import Unavailable

READ_S = 0.5
KEPT_S = 10.0


@dataclass(eq=False, slots=True)
class _Late:
    """A read from an offset on that a look has left behind."""

    offset: int
    task: "asyncio.Task[Pieces]"


class LateReads:
    """Reads for looks, one at a time of each subscription and segment."""

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[Subscription, dict[int, _Late]] = WeakKeyDictionary()

    async def read(
        self, subscription: Subscription, segment: Readable, what: tuple[int, int, int], waits_s: float
    ) -> Pieces:
        """Returns rows as `segment.read` does: `what` are an offset, a limit, and bytes. Raises Unavailable where they
        are at another broker, and do not come within `waits_s`."""
        if segment.certain:
            return await segment.read(*what)
        offset = what[0]
        late = self._of.setdefault(subscription, {})
        before = late.pop(segment.id, None)
        if before and before.offset == offset:
            task, waits_s = before.task, 0.0
        else:
            if before:
                before.task.cancel()
            task = asyncio.create_task(segment.read(*what))
            task.add_done_callback(_heard)
        try:
            await asyncio.wait([task], timeout=waits_s)
        finally:
            if not task.done():
                late[segment.id] = one = _Late(offset, task)
                asyncio.get_running_loop().call_later(KEPT_S, _forget, late, segment.id, one)
        if not task.done():
            raise Unavailable(f"the owner of segment {segment.id} has not answered a read yet")
        return task.result()


def _heard(task: "asyncio.Task[Pieces]") -> None:
    if not task.cancelled():
        task.exception()  # whoever takes the answer gets it


def _forget(late: dict[int, _Late], segment: int, one: _Late) -> None:
    if late.get(segment) is one:
        del late[segment]
        one.task.cancel()

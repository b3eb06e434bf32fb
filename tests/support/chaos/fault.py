"""What a fault is: how it begins, how long it lasts, and how it ends."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from tests.support.chaos.cluster import Cluster


@dataclass(frozen=True)
class Begun:
    """A fault that has begun: how it ends, whom it hit, which segments lost their owner by SIGKILL."""

    undo: Callable[[], object]
    hit: str
    orphans: Sequence[int] = ()


@dataclass(frozen=True)
class Fault:
    """A kind of fault. `lasts` in leases: the least and the most. One `beside` others lasts while they come and go.
    One that is `harmless` must cost clients nothing, as long as no other one happens."""

    name: str
    begin: Callable[[Cluster, Random], Begun | None]
    lasts: tuple[float, float]
    beside: bool = False
    harmless: bool = False

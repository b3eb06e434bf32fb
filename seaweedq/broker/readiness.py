"""Whether a broker may answer: how far its life is, and whether its lease is valid."""

from collections.abc import Callable

from seaweedq.errors import NotReady


class Readiness:
    """The state of one broker's life, for requests to ask. `has_lease` says whether its lease is valid now."""

    def __init__(self, has_lease: Callable[[], bool]) -> None:
        self.ready = False
        self.leaving = False  # new clients go elsewhere, and an answer ends its connection
        self.draining = False
        self.stopping = False
        self._has_lease = has_lease

    def is_stopping(self) -> bool:
        """Returns whether the broker stops, so that no request may wait any longer."""
        return self.stopping

    @property
    def can_take_work(self) -> bool:
        """Whether new clients may come."""
        return self.ready and not (self.leaving or self.draining or self.stopping) and self._has_lease()

    def check_takes_work(self) -> None:
        """Raises NotReady unless new clients may come."""
        self.check_ready()
        if self.draining or self.leaving:
            raise NotReady("the broker is draining" if self.draining else "the broker stops soon")

    def check_joined(self) -> None:
        """Raises NotReady unless other brokers can talk to this one."""
        if not self.ready or (self.stopping and not self.draining):
            raise NotReady("the broker is stopping" if self.stopping else "the broker is starting")

    def check_ready(self) -> None:
        """Raises NotReady while the broker starts, stops or has no lease. One that drains serves to the end."""
        self.check_joined()
        if not self._has_lease():
            raise NotReady("this broker's lease has expired")

"""The journal: where a broker makes everything durable before it is in a chain. One for each broker start.

Owns the promise, not a way to keep it. Nothing is read back here: recovery of a dead broker's journal is a function of
each kind of journal.
"""

from collections.abc import Sequence
from typing import Protocol

from seaweedq.segments.frames import Frame


class Journal(Protocol):
    """A journal in use by its one broker. Commits' numbers rise from 0; an object journal leaves holes."""

    window: int
    """Appends that may be under way at a time. Over 1 a failed one ends the journal (Fenced); no hole stays."""

    async def append(self, frames: Sequence[Frame]) -> int:
        """Make the frames durable as one commit, all or none: its number. Appends end in the order of their calls.

        Raises JournalUnavailable (only where `window` is 1): the frames must not be acknowledged, though a recovery
        after a crash may still find them; the journal can be tried again. Raises Fenced: another broker recovers this
        journal, nothing more may be acknowledged. A cancelled append may still become durable.
        """

    async def pace(self) -> None:
        """Wait until the next append may begin, so that more frames share it."""

    def release(self, below: int) -> None:
        """No commit numbered below `below` is needed any more; its space comes back some time later."""

    @property
    def unreleased_bytes(self) -> int:
        """Bytes of the commits that are still needed."""

    async def close(self) -> None:
        """Let go of what is open. The journal's content stays."""

    async def remove(self) -> None:
        """After `close`, where nothing of it is needed any more: let its content go. Repeatable."""

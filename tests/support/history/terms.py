"""What a subscription of a run promises: its mode, and how long a message may be with a consumer or wait for the next
try."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Terms:
    """`ack_deadline_s` as it was set; the longest delay that its consumers or its `backoff_s` ask for; where what fails
    so often goes."""

    mode: str = "ordered"
    ack_deadline_s: int = 1
    delay_s: float = 0.0
    max_attempts: int = 0
    dead_letter_topic: str | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What its creation asks for."""
        found: dict[str, Any] = {"start": "earliest", "ack_deadline_s": self.ack_deadline_s, "mode": self.mode}
        if self.dead_letter_topic:
            found |= {"max_attempts": self.max_attempts, "dead_letter_topic": self.dead_letter_topic}
        return found


USUAL = Terms()

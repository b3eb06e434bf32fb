"""A topic with its figures: messages, sizes, rates, segments, and the subscription that is furthest behind. Pure, but
for `measure`, which asks the brokers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seaweedq.cli.shared.output import columns

if TYPE_CHECKING:
    from seaweedq.client import Client

Facts = Mapping[str, Any]
HEAD = columns(
    "name, messages, size, unflushed, messages/s, segments, behind, subscription, format, state, created",
    numbers="messages, size, unflushed, messages/s, segments, behind",
    wide="subscription, format, state, created",
)


@dataclass(frozen=True, slots=True)
class Measured:
    """The answers of brokers about one topic."""

    topic: Facts
    segments: Sequence[Facts]
    subscriptions: Sequence[Facts]

    def rate(self, name: str = "messages_per_s") -> float:
        """Returns the messages or bytes a second of the last 10 s, over all segments."""
        return float(sum(one["rates"][name][0] for one in self.segments if one["rates"]))

    @property
    def behind(self) -> Facts | None:
        """Returns the subscription that has most messages to ack; None without any."""
        lag = ((one["lag_total"]["messages"], one["lag_total"]["seconds"], one) for one in self.subscriptions)
        return max(lag, key=lambda found: found[:2], default=(0, 0, None))[2]

    @property
    def open(self) -> list[Facts]:
        """Returns the segments that receive messages."""
        return [one for one in self.segments if one["state"] == "open"]

    def row(self) -> tuple[str, ...]:
        """Returns the topic's row in a list."""
        facts, behind = self.topic, self.behind
        return (
            facts["name"],
            f"{facts['messages']:,}",
            size(facts["bytes"]),
            size(facts["tail_bytes"]),
            f"{self.rate():,.1f}",
            f"{facts['segments']:,}",
            f"{behind['lag_total']['messages']:,}" if behind else "-",
            behind["name"] if behind else "-",
            facts["format"],
            facts["state"],
            moment(facts["created_at"]),
        )

    def summary(self) -> dict[str, Any]:
        """Returns the topic in a list as JSON has it."""
        named = ("name", "format", "state", "created_at", "messages", "bytes", "tail_bytes", "segments")
        behind = self.behind
        furthest = {"subscription": behind["name"], **behind["lag_total"]} if behind else None
        rates = {name: self.rate(name) for name in ("messages_per_s", "bytes_per_s")}
        return {**{name: self.topic[name] for name in named}, **rates, "behind": furthest}


def size(count: float) -> str:
    """Returns a number of bytes for people: `936 bytes`, `1.2 MB`."""
    from rich.filesize import decimal

    return decimal(int(count))


def moment(text: str) -> str:
    """Returns a time in UTC without its fraction."""
    return f"{text[:19]}Z"


def measure(client: "Client", topic: str) -> Measured:
    """Asks for a topic's figures. Raises TopicNotFound."""
    return Measured(client.topic(topic), client.segments(topic), client.subscriptions(topic))

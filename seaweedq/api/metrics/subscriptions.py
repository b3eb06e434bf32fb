"""Metrics of the subscriptions that one broker dispatches."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from prometheus_client import Metric

from seaweedq.api.metrics.families import Family, counter, gauge
from seaweedq.broker.subscriptions import DeadLetters, LagMeter, Stall


def _of_each(name: str, help: str, watch: str = "") -> Family:
    return gauge(f"seaweedq_subscription_{name}", help, "topic", "subscription", watch=watch)


OF_BEHIND = {  # by the member of Behind
    "messages": _of_each("lag_messages", "Messages not acked yet, as far as this broker knows", "one that only rises"),
    "size_bytes": _of_each("lag_bytes", "About how many bytes these take in files and memory, as far as known here"),
    "seconds": _of_each(
        "lag_seconds", "The age of the oldest of these, at least, as far as it is known here", "one that only rises"
    ),
    "in_flight": _of_each("in_flight", "Messages that are leased"),
    "delayed": _of_each("delayed", "Messages that come again later, after a nack or a backoff"),
    "dying": _of_each(
        "dying",
        "Messages that were given up and whose dead letters are not durable yet",
        "above 0 for minutes: [dead letters](../operate/operations.md#dead-letters)",
    ),
    "waiting": _of_each("waiting", "Messages that are for whoever pulls next"),
    "skipped": _of_each(
        "skipped",
        "Messages that retention took before they were acked, since this broker dispatches them",
        "any",
    ),
    "consumers": _of_each(
        "consumers", "Consumers that wait at any broker, pulled within the last second, or hold messages"
    ),
    "idle_consumers": _of_each(
        "idle_consumers",
        "Consumers that get nothing, since an ordered subscription has fewer segments",
        "any: use `keyed` or `shared`, or more segments",
    ),
    "waiting_pulls": _of_each("waiting_pulls", "Pulls that wait for messages, at any broker"),
    "held_up_s": _of_each(
        "held_up_seconds",
        "Time for which the successors of a segment have waited for the same unacked message; the log names it",
        "over some minutes: ack that message, or set `max_attempts` and a `dead_letter_topic`",
    ),
}
STALLED = gauge(
    "seaweedq_subscription_stalled",
    "1 where nothing is delivered of what waits, for this reason: window, max_in_flight, paused",
    "topic",
    "subscription",
    "reason",
    watch="any 1 that you do not expect",
)
LETTERS = counter(
    "seaweedq_dead_letters_total",
    "Dead letters that this broker has published",
    watch="more than a few: look at their headers",
)
FAMILIES = (*OF_BEHIND.values(), STALLED, LETTERS)


@dataclass(frozen=True)
class SubscriptionMetrics:
    """Metrics of the `limit` subscriptions of this broker that are furthest behind: a series for each of a hundred
    thousand would be too many."""

    meter: LagMeter
    letters: DeadLetters
    limit: int

    def metrics(self) -> Iterator[Metric]:
        """Yields the families as they are now. Reads nothing from the store, and asks nobody."""
        behind = self.meter.furthest_behind(self.limit)
        for member, family in OF_BEHIND.items():
            yield family.each(((one.topic, one.name), getattr(one, member)) for one in behind)
        yield STALLED.each(
            ((one.topic, one.name, reason), one.stalled == reason) for one in behind for reason in get_args(Stall)
        )
        yield LETTERS.of(self.letters.published)

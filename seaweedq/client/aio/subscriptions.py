"""The part of the async client about subscriptions; `AsyncClient` inherits it."""

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from weakref import WeakSet

from seaweedq.client.aio.subscriber import AsyncAcker, AsyncDeliveries
from seaweedq.client.aio.transport import AsyncTransport
from seaweedq.client.aio.work import AsyncWork
from seaweedq.client.core.consuming.arguments import check_wanted, check_work
from seaweedq.client.core.consuming.pulling import Mode, Pulling, Wanted
from seaweedq.client.core.consuming.working import Worked
from seaweedq.client.core.messages.batch import Batch
from seaweedq.client.core.messages.lease_names import LeaseNames
from seaweedq.client.core.messages.message import AsyncMessage, Make
from seaweedq.client.core.protocol.effects import ARROW, JSON, Steps
from seaweedq.client.core.protocol.retry import Patience
from seaweedq.client.core.topics import calls
from seaweedq.client.core.topics.configuration import Filter, Seconds, Start, named
from seaweedq.clock import Ids

T = TypeVar("T")


class AsyncSubscriptions:
    """Subscriptions: create and read them, show and change them."""

    _transport: AsyncTransport
    _ids: Ids
    _timeout_s: float
    _patience: Callable[[float], Patience]
    _message: Callable[[str], Make[AsyncMessage]]

    def _run(self, steps: Steps[T]) -> Coroutine[Any, Any, T]:
        return self._transport.run(steps)

    def _begin_subscriptions(self, names: LeaseNames) -> None:
        self._lease_names = names
        self._ackers: WeakSet[AsyncAcker] = WeakSet()
        self._works: set[AsyncWork] = set()

    def subscribe(
        self,
        topic: str,
        subscription: str,
        start: Start = "latest",
        idle_timeout_s: float | None = None,
        max_messages: int = 500,
        ack_deadline_s: float = 30,
        mode: Mode | None = None,
        consumer: str | None = None,
        max_attempts: int | None = None,
        dead_letter_topic: str | None = None,
        backoff_s: Sequence[Seconds] | None = None,
        max_in_flight: int | None = None,
        filter: Filter | None = None,
        expires_after_s: Seconds | None = None,
    ) -> AsyncIterator[AsyncMessage]:
        """Iterates over the messages of a subscription; ends after `idle_timeout_s` without any.

        Creates the subscription as the iteration begins unless it exists. Breaking off early leaves the last acks to
        `close`. At least once: what is not acked within `ack_deadline_s` comes again, and after a broker's restart what
        was acked a moment before may too. `start`: "latest", "earliest" or {"timestamp": ...}, for a new subscription.
        `mode`: "ordered" (the default of a new one: a segment has one consumer at a time), "shared" (no order) or
        "keyed" (the order of each key). The other settings are the subscription's; durations may have units. `consumer`
        is this consumer's name, by default a random one: one that comes back under its name gets first what it held in
        "ordered", and no two may share one. Raises SubscriptionConflict where the subscription exists in another mode,
        or with other settings, than are named; `start` and `ack_deadline_s` count for a new one alone.
        """
        settings = named(
            max_attempts=max_attempts,
            dead_letter_topic=dead_letter_topic,
            backoff_s=backoff_s,
            max_in_flight=max_in_flight,
            filter=filter,
            expires_after_s=expires_after_s,
        )
        wanted = Wanted(start, ack_deadline_s, mode, settings, max_messages, idle_timeout_s)
        pulling = self._pulling(topic, subscription, consumer, wanted)
        return self._deliveries(pulling, JSON, self._message(topic))

    def batches(
        self,
        topic: str,
        subscription: str,
        start: Start = "latest",
        idle_timeout_s: float | None = None,
        max_messages: int = 5000,
        ack_deadline_s: float = 30,
        mode: Mode | None = None,
        consumer: str | None = None,
        max_attempts: int | None = None,
        dead_letter_topic: str | None = None,
        backoff_s: Sequence[Seconds] | None = None,
        max_in_flight: int | None = None,
        filter: Filter | None = None,
        expires_after_s: Seconds | None = None,
    ) -> AsyncIterator[Batch]:
        """Iterates over batches of a subscription: the rows of a pull as a pyarrow table, acked together by
        `batch.ack()`. At most `max_messages` (10,000) rows a batch, and 8 MiB.

        Parameters and guarantees are those of `subscribe`. Raises NeedsLevel below the cluster's level 3.
        """
        settings = named(
            max_attempts=max_attempts,
            dead_letter_topic=dead_letter_topic,
            backoff_s=backoff_s,
            max_in_flight=max_in_flight,
            filter=filter,
            expires_after_s=expires_after_s,
        )
        wanted = Wanted(start, ack_deadline_s, mode, settings, max_messages, idle_timeout_s)
        pulling = self._pulling(topic, subscription, consumer, wanted)
        return self._deliveries(pulling, ARROW, Batch)

    async def work(
        self,
        topic: str,
        subscription: str,
        handler: Callable[[AsyncMessage], Any],
        workers: int = 8,
        start: Start = "latest",
        idle_timeout_s: float | None = None,
        max_messages: int | None = None,
        ack_deadline_s: float = 30,
        mode: Mode | None = None,
        consumer: str | None = None,
        max_extension_s: float = 3600,
        max_attempts: int | None = None,
        dead_letter_topic: str | None = None,
        backoff_s: Sequence[Seconds] | None = None,
        max_in_flight: int | None = None,
        filter: Filter | None = None,
        expires_after_s: Seconds | None = None,
    ) -> Worked:
        """Handles the messages of a subscription, up to `workers` at a time, and returns the counts once none came for
        `idle_timeout_s`, or the client is closed.

        A message is acked when `handler(message)` returns, and nacked when it raises: it comes again after the
        subscription's backoff. `Reject` makes it a dead letter. The messages of a segment (`ordered`) or of a key
        (`keyed`) are handled one at a time, in their order. Leases are extended meanwhile, each message's for at most
        `max_extension_s` (3,600). At most `max_messages` wait to be handled, by default twice as many as there are
        workers; short handlers want more. Other parameters are those of `subscribe`. Acks that came too late are
        logged, and counted as `unknown`. An interrupt, or a cancellation, gives back what was not begun, and lets
        nothing be leased for long. Raises the errors of `subscribe`, and the first one of an ack.
        """
        most = check_work(handler, workers, max_messages, max_extension_s)
        settings = named(
            max_attempts=max_attempts,
            dead_letter_topic=dead_letter_topic,
            backoff_s=backoff_s,
            max_in_flight=max_in_flight,
            filter=filter,
            expires_after_s=expires_after_s,
        )
        wanted = Wanted(start, ack_deadline_s, mode, settings, most, idle_timeout_s)
        pulling = self._pulling(topic, subscription, consumer, wanted)
        work = AsyncWork(pulling, handler, self._message(topic), self._run, workers, max_extension_s)
        self._works.add(work)
        try:
            return await work.run()
        finally:
            self._works.discard(work)

    async def subscription(self, topic: str, name: str) -> dict[str, Any]:
        """Returns a subscription's configuration, and its lag for each segment. Raises SubscriptionNotFound."""
        return await self._run(calls.call("GET", calls.subscription_path(topic, name)))

    async def subscriptions(self, topic: str) -> list[dict[str, Any]]:
        """Returns all subscriptions of a topic."""
        return await self._run(calls.pages(f"{calls.topic_path(topic)}/subscriptions", "subscriptions"))

    async def create_subscription(
        self,
        topic: str,
        name: str,
        *,
        mode: Mode | None = None,
        start: Start | None = None,
        ack_deadline_s: Seconds | None = None,
        max_attempts: int | None = None,
        dead_letter_topic: str | None = None,
        backoff_s: Sequence[Seconds] | None = None,
        max_in_flight: int | None = None,
        filter: Filter | None = None,
        expires_after_s: Seconds | None = None,
    ) -> dict[str, Any]:
        """Creates a subscription, or checks that an existing one matches the fields that are given. Returns it as
        `subscription` does.

        Durations may have units: `backoff_s=["1s", "5m"]`. Raises SubscriptionConflict, InvalidRequest, NeedsLevel.
        """
        config = named(
            mode=mode,
            start=start,
            ack_deadline_s=ack_deadline_s,
            max_attempts=max_attempts,
            dead_letter_topic=dead_letter_topic,
            backoff_s=backoff_s,
            max_in_flight=max_in_flight,
            filter=filter,
            expires_after_s=expires_after_s,
        )
        return await self._run(calls.call("PUT", calls.subscription_path(topic, name), config))

    async def update_subscription(self, topic: str, name: str, **config: Any) -> dict[str, Any]:
        """Changes the given fields: all but mode, start and filter; `paused=True` lets it deliver nothing more. Raises
        SubscriptionNotFound, InvalidRequest, NeedsLevel.
        """
        return await self._run(calls.call("PATCH", calls.subscription_path(topic, name), config))

    async def seek(self, topic: str, name: str, to: str | datetime | Mapping[str, Any]) -> dict[str, Any]:
        """Lets a subscription go on elsewhere: all leases end, and what was acked from there on comes again.

        `to`: "earliest", "latest", the time of a message (with a time zone), or {"offsets": {segment: offset}}, which
        moves those segments alone. Returns `segments` with `from` and `to`, and `moved`: those of which retention had
        taken what was wanted. Raises SubscriptionNotFound, OffsetOutOfRange, InvalidRequest, NeedsLevel.
        """
        return await self._run(calls.seek(topic, name, to, self._ids.nonce()))

    async def delete_subscription(self, topic: str, name: str) -> None:
        """Deletes a subscription. Raises SubscriptionNotFound."""
        await self._run(calls.call("DELETE", calls.subscription_path(topic, name)))

    def _pulling(self, topic: str, name: str, consumer: str | None, wanted: Wanted) -> Pulling:
        check_wanted(wanted, consumer)
        patience = self._patience(self._timeout_s)
        return Pulling(topic, name, consumer or self._ids.nonce(), wanted, patience, self._lease_names)

    def _deliveries(self, pulling: Pulling, accept: str, made: Callable[[Any, Any], Any]) -> AsyncIterator[Any]:
        acker = AsyncAcker(lambda items: self._run(pulling.answer(items)))
        self._ackers.add(acker)
        return AsyncDeliveries(pulling, accept, self._run, acker, made)

    async def _end_works(self) -> None:
        """Ends all `work` of this client: what runs is finished."""
        works = tuple(self._works)
        for work in works:
            work.stop()
        for work in works:
            await work.wait()

"""The steps of a subscriber: create the subscription, pull, answer, give back, and end when idle. No I/O.

A pull has a name, the name of its lease. Repeated under its name it gets the same messages, so that none is skipped if
an answer was lost.

The bounds of a caller's arguments are checked at the call, before anything is sent. Each error names the argument, its
value and the bound: a TypeError for a value of another type, a ValueError for one out of bounds. Settings, places and
names are judged by the broker alone.
"""

import logging
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf, isfinite, isnan
from typing import Any, Literal, TypeAlias

import msgspec

from seaweedq.client.core.attempts import Patience
from seaweedq.client.core.calls import MAX_WAIT_S, of_span, subscription_path
from seaweedq.client.core.effects import ARROW, JSON, Reply, Request, Steps
from seaweedq.client.core.message import Item, Verb, bodies, return_of
from seaweedq.client.core.problems import check
from seaweedq.client.core.wire import AckResult, WireMessage, decode_ack_result, decode_pull, encode
from seaweedq.errors import (
    ClientError,
    Forbidden,
    LeaseEnded,
    SeaweedqError,
    SubscriptionConflict,
    SubscriptionNotFound,
    TopicNotFound,
)
from seaweedq.traces import Traces, of_program

# Acks wait for company, but no longer than this, and no more of them than that.
ACK_LINGER_S = 0.1
ACK_BATCH = 500
REPORT_S = 10.0
Mode: TypeAlias = Literal["ordered", "shared", "keyed"]
logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LateAcks:
    """Counts acks that came too late, and says when to report them: at once, then at most every REPORT_S. `example` is
    the id of one, `total` how many there ever were."""

    count: int = 0
    example: str = ""
    total: int = 0
    _reported_s: float = -inf

    def count_late(self, late: Sequence[str], now_s: float) -> int:
        """Adds acks by their ids. Returns how many are to be reported now."""
        self.count += len(late)
        self.total += len(late)
        self.example = late[0] if late else self.example
        if not self.count or now_s - self._reported_s < REPORT_S:
            return 0
        due, self.count, self._reported_s = self.count, 0, now_s
        return due


@dataclass(frozen=True, slots=True)
class PullOptions:
    """The wishes of a subscriber: the subscription's configuration if it is new, and the size of its pulls. `mode` and
    `settings` are those that it named."""

    start: str | Mapping[str, Any] = "latest"
    ack_deadline_s: float = 30
    mode: Mode | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    max_messages: int = 500
    idle_timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class PullResult:
    """The answer to a pull: messages, or one Arrow stream, and the lease under which they are."""

    lease: str | None
    items: list[Any]


@dataclass(slots=True)
class Pulling:
    """One consumer of a subscription. `lease` is the name of a pull that is not answered yet; `new_lease` draws one.
    What somebody of this name held before comes first; `is_ahead` once messages came, since what it holds from then on
    is this one's."""

    topic: str
    subscription: str
    consumer: str
    wanted: PullOptions
    patience: Patience
    new_lease: Callable[[], str]
    late: LateAcks = field(default_factory=LateAcks, init=False)
    lease: str | None = field(default=None, init=False)
    is_ahead: bool = field(default=False, init=False)
    _traces: Traces | None = field(default_factory=of_program, init=False)
    _handled: dict[str, str] = field(default_factory=dict, init=False)  # ids, and contexts of spans, until the answer

    @contextmanager
    def processing(self, wire: WireMessage) -> Iterator[None]:
        """Makes the span of a handler."""
        if self._traces is None:
            yield
            return
        with self._traces.process(self.topic, wire.headers, subscription=self.subscription, id=wire.id) as context:
            if context:
                self._handled[wire.id] = context
            yield

    def ensure(self) -> Steps[dict[str, Any] | None]:
        """Creates the subscription, and returns it; None if it exists with another configuration, which is used as
        it is. A repeated request finds the subscription that it made. A caller that may consume but not create finds
        the subscription that exists.

        Raises SubscriptionConflict if it exists in another mode, or with other settings, than were named.
        """
        wanted = self.wanted
        about = {"mode": wanted.mode or "ordered", "start": wanted.start, "ack_deadline_s": wanted.ack_deadline_s}
        body, named = {**about, **wanted.settings}, set(wanted.settings) | ({"mode"} if wanted.mode else set())
        request = Request("PUT", self._path(), {}, encode(body), {"Content-Type": JSON})
        try:
            reply = yield from self.patience.send(request)
        except SubscriptionConflict as error:
            if named & set(error.fields.get("differences", ())):
                raise
            return None
        except Forbidden as error:
            return (yield from self._found(named, body, error))
        found: dict[str, Any] = msgspec.json.decode(reply.body)
        return found

    def _found(self, named: Set[str], body: Mapping[str, Any], refusal: Forbidden) -> Steps[dict[str, Any]]:
        """Returns the subscription, which the caller may not create. Raises the refusal if the caller cannot see it, or
        has named other settings."""
        try:
            reply = yield from self.patience.send(Request("GET", self._path()))
        except (Forbidden, SubscriptionNotFound, TopicNotFound):
            raise refusal from None
        found: dict[str, Any] = msgspec.json.decode(reply.body)
        if any(found.get(name) != body[name] for name in named):
            raise refusal
        return found

    def shown(self) -> Steps[dict[str, Any]]:
        """Creates the subscription unless it exists, and returns its configuration. Raises as `ensure`."""
        found = yield from self.ensure()
        if found is None:
            reply = yield from self.patience.send(Request("GET", self._path()))
            found = msgspec.json.decode(reply.body)
        return found

    def pull(
        self, most: int | None = None, longest_s: float = MAX_WAIT_S, accept: str = JSON
    ) -> Steps[PullResult | None]:
        """Waits for messages, at most `most`. Returns at least one, or None once brokers had none for `idle_timeout_s`.

        Only waits that a broker answered count as idle; an outage raises an error after the timeout.
        """
        left_s = self.wanted.idle_timeout_s
        while True:
            wait_s = longest_s if left_s is None else min(longest_s, left_s)
            pulled = yield from self.pull_once(most or self.wanted.max_messages, wait_s, accept)
            if pulled.items:
                return pulled
            if left_s is not None:
                left_s -= wait_s
                if left_s <= 0:
                    return None

    def pull_now(self, accept: str = JSON) -> Steps[PullResult | None]:
        """Returns messages that are there now, or None. It comes before the end if answers were on their way while
        the last pull found nothing: what is behind them may be held up until a broker has them."""
        pulled = yield from self.pull_once(self.wanted.max_messages, 0, accept)
        return pulled if pulled.items else None

    def pull_once(self, most: int, wait_s: float, accept: str = JSON) -> Steps[PullResult]:
        """Waits up to `wait_s` for messages. A pull whose answer was lost is repeated under its name; where that lease
        has ended, its messages come again anyway."""
        while True:
            self.lease = self.lease or self.new_lease()
            body = {"max_messages": most, "wait_s": wait_s, "consumer": self.consumer, "lease": self.lease}
            body |= {"ahead": True} if self.is_ahead else {}
            try:
                reply = yield from self.patience.send(self._post("pull", body, wait_s, accept))
            except LeaseEnded:
                self.lease = None
                continue
            pulled = _pulled(reply, accept)
            self.lease = None
            self.is_ahead |= bool(pulled.items)
            return pulled

    def answer(self, items: Iterable[Item]) -> Steps[AckResult]:
        """Sends acks, nacks and extensions; once a broker answers 200, the acks are durable, but for those of ended
        leases, which it logs. Sends all of them before it raises the first error."""
        unknown: list[str] = []
        failed: SeaweedqError | None = None
        for verb, body in bodies(items, self.consumer):
            try:
                reply = yield from self._answered(verb, body)
                found = decode_ack_result(reply.body).unknown
            except LeaseEnded as error:
                found = body.get("ids") or [str(error.fields.get("lease"))]
            except SeaweedqError as error:
                failed = failed or error
                continue
            unknown += found
            self._log_late(verb, found)
        if failed:
            raise failed
        return AckResult(unknown=unknown)

    def _answered(self, verb: Verb, body: dict[str, Any]) -> Steps[Reply]:
        """Sends one of the answers, within a span if some of its messages were handled within one."""
        handled, post = self._handled, self._post(verb, body)
        if self._traces is None or not handled or verb == "extend":
            return (yield from self.patience.send(post))
        contexts = [handled.pop(id) for id in body.get("ids", ()) if id in handled]
        count = len(contexts)
        with self._traces.span(
            verb, self.topic, contexts, "CLIENT", is_apart=True, subscription=self.subscription, count=count
        ) as traceparent:
            return (yield from self.patience.send(replace(post, headers={**post.headers, **of_span(traceparent)})))

    def give_back(self, lease: str | None, ids: Sequence[str] | None) -> Steps[None]:
        """Lets others have what nobody works on, as if it had not been delivered: these messages of a lease, None for
        all of it. It is sent once: if that fails, they come when the lease has ended."""
        if not lease or (ids is not None and not ids):
            return
        items = [return_of(None, lease)] if ids is None else [return_of(id, lease) for id in ids]
        for verb, body in bodies(items, self.consumer):
            try:
                check((yield self._post(verb, body)))
            except SeaweedqError as error:
                logger.debug(
                    "messages that were not handled could not be returned, and are redelivered when their lease "
                    "ends: %s",
                    error,
                )

    def give_back_pull(self) -> Steps[None]:
        """Lets others have what a pull brings that was broken off; none is under way."""
        lease, self.lease = self.lease, None
        yield from self.give_back(lease, None)

    def _log_late(self, verb: Verb, unknown: Sequence[str]) -> None:
        if verb != "ack":
            return
        if late := self.late.count_late(unknown, self.patience.monotonic_s()):
            logger.warning(
                "%d acks of subscription %s of topic %s arrived after the leases of their messages "
                "had ended, so these messages (for example %s) are redelivered; ack sooner, pull fewer "
                "messages (max_messages=%d), or raise ack_deadline_s",
                late,
                self.subscription,
                self.topic,
                self.late.example,
                self.wanted.max_messages,
            )

    def _path(self) -> str:
        return subscription_path(self.topic, self.subscription)

    def _post(self, verb: str, body: dict[str, Any], wait_s: float = 0, accept: str = JSON) -> Request:
        headers = {"Content-Type": JSON} | ({"Accept": ARROW} if accept == ARROW else {})
        return Request("POST", f"{self._path()}/{verb}", {}, encode(body), headers, wait_s, repeatable=True)


def ids_of(items: Iterable[Any]) -> list[str] | None:
    """Returns the ids of messages; None for an Arrow stream, which is all that its lease holds."""
    rest = list(items)
    return None if rest and isinstance(rest[0], bytes) else [one.id for one in rest]


def _pulled(reply: Reply, accept: str) -> PullResult:
    if accept == ARROW:
        media = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != ARROW:  # as of a proxy's page
            raise ClientError(
                f"a pull asked for an Arrow stream, but the broker answered with {media!r}", status=reply.status
            )
        lease = reply.headers.get("lease")
        return PullResult(lease, [reply.body] if lease else [])
    found = decode_pull(reply.body)
    return PullResult(found.lease, found.messages)


MAX_PULL = 10_000  # messages that a broker gives at a time
MOST_WORKERS = 10_000
CONSUMER_CHARS = 255


def check_pull_options(wanted: PullOptions, consumer: str | None) -> None:
    """Raises TypeError or ValueError for a subscriber's wishes that no broker could fulfil."""
    _check_whole("max_messages", wanted.max_messages, MAX_PULL)
    idle: object = wanted.idle_timeout_s
    if isinstance(idle, bool) or not isinstance(idle, int | float | None):
        raise TypeError(f"idle_timeout_s must be a number of seconds, or None for no timeout, not {_shown(idle)}")
    if idle is not None and (not isfinite(idle) or idle < 0):
        raise ValueError(
            f"idle_timeout_s must be a finite number of seconds, at least 0, or None for no timeout, not {idle}"
        )
    if consumer is None:
        return
    if not isinstance(consumer, str):
        raise TypeError(f"consumer must be a str, or None for a random name, not {_shown(consumer)}")
    if not 1 <= len(consumer) <= CONSUMER_CHARS:
        raise ValueError(f"consumer must have 1 to {CONSUMER_CHARS} characters, not {reprlib.repr(consumer)}")


def check_work(handler: object, workers: int, max_messages: int | None, max_extension_s: float) -> int:
    """Returns how many messages may wait to be handled. Raises TypeError or ValueError for a pool that cannot be."""
    if not callable(handler):
        raise TypeError(f"handler must be a function that accepts a message, not {_shown(handler)}")
    _check_whole("workers", workers, MOST_WORKERS)
    if isinstance(max_extension_s, bool) or not isinstance(max_extension_s, int | float):
        raise TypeError(f"max_extension_s must be a number of seconds, not {_shown(max_extension_s)}")
    if isnan(max_extension_s) or max_extension_s < 0:
        raise ValueError(f"max_extension_s must be at least 0 seconds, not {max_extension_s}")
    return min(2 * workers, MAX_PULL) if max_messages is None else max_messages


def _check_whole(name: str, value: object, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number from 1 to {most:,}, not {_shown(value)}")
    if not 1 <= value <= most:
        raise ValueError(f"{name} must be a whole number from 1 to {most:,}, not {value}")


def _shown(value: object) -> str:
    return f"{reprlib.repr(value)} ({type(value).__name__})"

"""The search for the broker that answers a request: this one, or another one to which the request is relayed. A request
about a segment is answered by its owner, or by any broker once the segment is sealed.

A search belongs to one request that may be repeated. It decides where the request is tried, when it is tried again, and
when the client gets its error. It knows nothing of HTTP: its caller answers the request at the target.

    await search.answer(here, there)
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Protocol, TypeVar

import msgspec

from seaweedq.broker.context import ClusterView
from seaweedq.broker.rpc.client import ask_while
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.concurrency.deadline import Deadline
from seaweedq.concurrency.futures import Signal
from seaweedq.errors import ChainDamaged, NeedsNewerBroker, NotReady, OffsetOutOfRange, SeaweedqError, Unavailable

T = TypeVar("T")
PAUSE_S = 0.1
PATIENCE_S = 5.0


class SearchRequest(msgspec.Struct, frozen=True):
    """The part of a client's request that a search needs. `wait_s` is the time that the client waits for messages;
    `relayed` says that another broker sent the request here, so that it is not relayed once more."""

    wait_s: float = 0.0
    relayed: bool = False


class Target(msgspec.Struct, frozen=True):
    """The broker at which a request is tried. `url` is None if that broker has gone. `wait_s` is left of the
    client's wait; the whole answer may take `answer_s`."""

    here: bool
    url: str | None
    wait_s: float
    answer_s: float
    check: Callable[[], None]

    async def ask(self, call: Awaitable[T]) -> T:
        """Returns the result of a call to that broker. Raises Unavailable once that broker has gone, NotReady once
        this one stops."""
        return await ask_while(self.check, call)


class Locator(Protocol):
    """Says which broker answers the requests about one thing. `patience_s` is how long that broker may take beyond a
    client's wait; `moved` wakes a search that pauses."""

    @property
    def patience_s(self) -> float: ...

    @property
    def moved(self) -> Signal | None: ...

    async def locate(self) -> str | None:
        """Returns the broker's id, None if there is none just now."""

    def failed(self, error: Unavailable) -> float | None:
        """Returns how many seconds after an error the request may be tried again; None if the error is final."""


@dataclass(frozen=True)
class SearchContext:
    """The state that all searches of a broker share. A search goes on until `timeout_s` after its first failure, or
    until the broker stops."""

    view: ClusterView
    timeout_s: float
    stopping: Callable[[], bool]


class Search:
    """The search for the broker that answers one request. `in_doubt`: some attempt got no answer, so that it may have
    done what was asked."""

    def __init__(self, context: SearchContext, topic: Topic, asked: SearchRequest, locator: Locator) -> None:
        self.in_doubt = False
        self._context = context
        self._view = context.view
        self._topic = topic
        self._relayed = asked.relayed
        self._locator = locator
        self._wait = Deadline(self._view.clock, asked.wait_s)
        self._give_up = Deadline(self._view.clock, inf, context.stopping)
        self._attempts = self._give_up.attempts(locator.moved)

    async def answer(self, here: Callable[[Target], Awaitable[T]], there: Callable[[Target], Awaitable[T]]) -> T:
        """Returns the answer of `here`, or of `there`, at another broker. Raises their errors if these are final;
        otherwise waits a little, and tries again."""
        view, mine = self._view, self._view.membership.broker
        while True:
            await anext(self._attempts)
            view.catalog.check(self._topic)
            wait_s = self._wait.left_s
            broker = mine if self._relayed else await self._locator.locate()
            answer_s = wait_s + self._locator.patience_s
            target = Target(broker == mine, view.roster.url(broker), wait_s, answer_s, partial(self._check, broker))
            try:
                return await (here if target.here else there)(target)
            except OffsetOutOfRange as error:
                known = await self._doubt(error)
                if not await self._is_tried_again(known):
                    raise known from None
            except (Unavailable, ChainDamaged) as error:
                if not await self._is_tried_again(error):
                    raise

    async def _doubt(self, error: OffsetOutOfRange) -> SeaweedqError:
        """Returns the error; or, since others may have appended behind that end by now, that the lease has ended."""
        try:
            await self._view.membership.check_lives()
        except Unavailable as ended:
            return ended
        return error

    async def _is_tried_again(self, error: SeaweedqError) -> bool:
        if isinstance(error, ChainDamaged):  # a deleted topic's files may go before this broker hears of the deletion
            await self._view.catalog.refresh(self._topic.name)
            self._view.catalog.check(self._topic)
        if self._relayed or not isinstance(error, Unavailable) or isinstance(error, NeedsNewerBroker):
            return False
        pause_s = self._locator.failed(error)
        if pause_s is None:
            return False
        self.in_doubt = self.in_doubt or type(error) is Unavailable
        self._attempts.pause_s = pause_s
        self._give_up.shorten(self._context.timeout_s)
        return not self._attempts.is_last()

    def _check(self, broker: str | None) -> None:
        if self._context.stopping():
            raise NotReady("the broker is stopping")
        self._view.roster.check_alive(broker)


@dataclass(frozen=True, slots=True)
class OwnerFinder:
    """Begins the searches for owners of segments."""

    context: SearchContext
    ownership: Ownership

    def search(self, topic: Topic, segment: int, asked: SearchRequest) -> Search:
        """Begins the search for the broker that answers a request about a segment; it raises SegmentNotFound."""
        return Search(self.context, topic, asked, _OwnerLocator(self, topic, segment))


@dataclass(frozen=True, slots=True)
class _OwnerLocator:
    finder: OwnerFinder
    topic: Topic
    segment: int

    @property
    def patience_s(self) -> float:
        return PATIENCE_S

    @property
    def moved(self) -> Signal | None:
        return self.topic.moved

    async def locate(self) -> str | None:
        view = self.finder.context.view
        if self.finder.ownership.has(self.topic, self.segment):
            return view.membership.broker
        return view.catalog.segment(self.topic, self.segment).record.owner

    def failed(self, error: Unavailable) -> float | None:
        return PAUSE_S

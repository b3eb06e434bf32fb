"""The limits of principals and of topics, judged before anything of a request's body is read.

A limit is the cluster's; each broker has its share (access/limits), which the leader changes (broker/cluster/
limit_split). Costs that are known only later are paid for by the next request: the bytes of a body without a stated
length, its messages, the segments that a change touches beside the first, the bytes of answers. An answer in parts
waits behind each part until that is paid for, and so do a WebSocket's messages. A request that another broker relays
was counted there, and the bytes behind a signed link are nobody's.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from typing import Any

from seaweedq.access.limits import NO_LIMITS, Account, Accounts, Bucket, Limits
from seaweedq.access.rights import Caller
from seaweedq.api.request import ANONYMOUS_KEY, Receive, Request, release_connection
from seaweedq.api.routes import WITH_BODIES
from seaweedq.broker.access import Callers
from seaweedq.broker.topics import Catalog
from seaweedq.clock import Clock
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.errors import RateLimited

BODY = "bytes_in"  # the limit of which bodies take their length
RETRY_S = 1.0  # when a place may have become free
LOOKS = 8  # uploads that are looked up at a time
Cost = tuple[str, float]
Opened = Callable[[str, str], None]
IsOpen = Callable[[str, str], Awaitable[bool]]


class Rates:
    """The limits of callers and of topics at one broker. No route reads a body over `most_bytes`: one that states more
    costs no more than that. Else one header could leave a topic in debt for years."""

    def __init__(self, clock: Clock, accounts: Accounts, callers: Callers, catalog: Catalog, most_bytes: int) -> None:
        self._catalog = catalog
        self.clock = clock
        self.accounts = accounts
        self._callers = callers
        self._most_bytes = most_bytes

    def admit(self, request: Request) -> None:
        """Takes the known costs of a request, and gives it its meter. Raises RateLimited."""
        caller = request.caller
        limits = caller.limits
        if self._catalog.limited and self._admit_to_topic(caller, request):
            return
        if limits is NO_LIMITS:
            return
        now_s = self.clock.monotonic_s()
        account = self.accounts.get(caller.uid or ANONYMOUS_KEY, limits, now_s) or self._account(caller, now_s)
        meter: Meter | None = account.meter
        if meter is None:
            meter = account.meter = Meter(self, (account,))
        if limits.connections is not None:
            meter.count_connection(request)
        route = request.route
        plan = account.plans.get(route) or account.plan(route, route.costs, BODY if route.has_body else None)
        if not plan.admits(self._length(request) if plan.by_length else 0, now_s):
            meter.take(self._costs(request), now_s)
        self._begin(meter, request)

    def _begin(self, meter: "Meter", request: Request) -> None:
        request.meter, request.receive = meter, meter.receiving(request)

    def _admit_to_topic(self, caller: Caller, request: Request) -> bool:
        """Does as `admit` for a request about a topic that has limits. False: it has none."""
        topic = self._catalog.limited.get(request.resource.topic or "")
        if topic is None or request.is_relayed:
            return False
        now_s, limits = self.clock.monotonic_s(), topic.record.config.limits or NO_LIMITS
        source = partial(_limits_of_topic, self._catalog, topic.name, topic.record.incarnation)
        accounts = [self.accounts.open(f"{topic.name}/{topic.record.incarnation}", limits, source, now_s)]
        if caller.limits is not NO_LIMITS:
            accounts.insert(0, self._account(caller, now_s))
        meter = Meter(self, accounts)
        if caller.limits.connections is not None:
            meter.count_connection(request)
        meter.take(self._costs(request), now_s)
        self._begin(meter, request)
        return True

    def _costs(self, request: Request) -> Sequence[Cost]:
        """Returns the costs of a request that are known before its body is read."""
        route = request.route
        if not route.has_body:
            return route.costs
        return (*route.costs, (BODY, self._length(request)))

    def _length(self, request: Request) -> int:
        length = request.content_length or 0
        return length if length < self._most_bytes else self._most_bytes

    def _account(self, caller: Caller, now_s: float) -> Account:
        """Returns the account of a principal, which goes by its uid: a namesake that is created later has another one.
        All who are anonymous have one together."""
        key = caller.uid or ANONYMOUS_KEY
        source = partial(self._callers.limits, caller.principal, caller.uid)
        return self.accounts.open(key, caller.limits, source, now_s)


def _limits_of_topic(catalog: Catalog, name: str, incarnation: int) -> Limits | None:
    found = catalog.limited.get(name)
    if found is None or found.record.incarnation != incarnation:
        return None
    return found.record.config.limits or None


class Meter:
    """Counts the use of limits by one request, or by one connection that lasts."""

    __slots__ = ("_accounts", "_rates")

    def __init__(self, rates: Rates, accounts: Sequence[Account]) -> None:
        self._rates = rates
        self._accounts = accounts

    def take(self, costs: Iterable[Cost], now_s: float) -> None:
        """Takes all costs, or raises RateLimited and takes nothing. A cost of 0 asks only whether all is paid."""
        for account in self._accounts:
            buckets = account.buckets
            for limit, amount in costs:
                bucket = buckets.get(limit)
                if bucket is not None and (wait_s := bucket.take(amount, now_s)):
                    self._give_back(costs, bucket)
                    raise _limited(account, limit, bucket.whole, " a second", wait_s)

    def _give_back(self, costs: Iterable[Cost], refused: Bucket) -> None:
        for account in self._accounts:
            for limit, amount in costs:
                bucket = account.buckets.get(limit)
                if bucket is refused:
                    return
                if bucket is not None:
                    bucket.spend(-amount)

    def take_now(self, limit: str, amount: float) -> None:
        """Takes a cost of a request beyond those of its route. Raises RateLimited."""
        self.take(((limit, amount),), self._rates.clock.monotonic_s())

    def spend(self, limit: str, amount: float) -> None:
        """Takes a cost of a request that was let in."""
        for account in self._accounts:
            if bucket := account.buckets.get(limit):
                bucket.spend(amount)

    async def paid(self, *limits: str) -> None:
        """Returns once nothing is owed of these."""
        while wait_s := self._owed_s(limits):
            await asyncio.sleep(wait_s)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts a pull that waits. Raises RateLimited."""
        for account in self._accounts:
            most = account.most("waiting_pulls")
            if most is not None and account.waiting >= most:
                raise _limited(account, "waiting_pulls", account.limits.waiting_pulls or 0, "", RETRY_S)
        for account in self._accounts:
            account.waiting += 1
        try:
            yield
        finally:
            for account in self._accounts:
                account.waiting -= 1

    def count_connection(self, request: Request) -> None:
        """Counts the connection of a request for the principal that has sent the last request on it. Raises
        RateLimited."""
        account, connection = self._accounts[0], request.connection
        if connection is None or connection.account is account:
            return
        most = account.most("connections")
        if most is not None and account.connections >= most:
            raise _limited(account, "connections", account.limits.connections or 0, "", RETRY_S)
        release_connection(connection)
        connection.account = account
        account.connections += 1

    @asynccontextmanager
    async def opening(self, is_open: IsOpen) -> AsyncIterator[Opened]:
        """Counts an upload that begins in this block, which tells its topic and id. Raises RateLimited."""
        for account in self._accounts:
            await self._check_uploads(account, is_open)
        for account in self._accounts:
            account.opening += 1
        try:
            yield self._opened
        finally:
            for account in self._accounts:
                account.opening -= 1

    def _opened(self, topic: str, upload: str) -> None:
        for account in self._accounts:
            if account.limits.open_uploads is not None:
                account.uploads.add((topic, upload))

    async def _check_uploads(self, account: Account, is_open: IsOpen) -> None:
        """Raises RateLimited if this broker has as many uploads of an account as it may. Some may have ended elsewhere,
        which is looked up before one is refused, at most every RETRY_S."""
        most = account.most("open_uploads")
        if most is None or len(account.uploads) + account.opening < most:
            return
        now_s = self._rates.clock.monotonic_s()
        if now_s >= account.uploads_checked_s + RETRY_S:
            account.uploads_checked_s = now_s
            known = sorted(account.uploads)
            there = await gather_bounded(LOOKS, lambda one: is_open(*one), known)
            account.uploads -= {one for one, is_there in zip(known, there, strict=True) if not is_there}
        if len(account.uploads) + account.opening >= most:
            raise _limited(account, "open_uploads", account.limits.open_uploads or 0, "", RETRY_S)

    def receiving(self, request: Request) -> Receive:
        """Returns a `receive` that counts a body of unknown length, or a WebSocket's messages."""
        if request.is_socket:
            return self._heard(request.receive)
        is_known = request.headers.get(b"content-length", b"").isdigit()
        return request.receive if is_known or request.method not in WITH_BODIES else self._counted(request.receive)

    async def sent(self, message: MutableMapping[str, Any]) -> None:
        """Counts a part that was sent. If more follow, it waits until this one is paid for."""
        if size := _size(message):
            self.spend("bytes_out", size)
            if message.get("more_body", message["type"] == "websocket.send"):
                await self.paid("bytes_out")

    def _counted(self, receive: Receive) -> Receive:
        async def read() -> MutableMapping[str, Any]:
            """Receives a part of the body, and counts its bytes."""
            message = await receive()
            self.spend("bytes_in", len(message.get("body", b"")))
            return message

        return read

    def _heard(self, receive: Receive) -> Receive:
        async def hear() -> MutableMapping[str, Any]:
            """Receives an event of a WebSocket. A message waits until it is paid for."""
            message = await receive()
            if message["type"] == "websocket.receive":
                await self.paid("requests", "bytes_in")
                self.spend("requests", 1)
                self.spend("bytes_in", _size(message))
            return message

        return hear

    def _owed_s(self, limits: Sequence[str]) -> float:
        """Returns the time until nothing is owed of these, by the present limits and shares."""
        now_s, accounts = self._rates.clock.monotonic_s(), self._rates.accounts
        for account in self._accounts:
            accounts.fit(account, account.source() or NO_LIMITS, now_s)
        owed = [account.buckets[limit] for account in self._accounts for limit in limits if limit in account.buckets]
        return max((bucket.take(0, now_s) for bucket in owed), default=0.0)


@contextmanager
def waiting(request: Request) -> Iterator[None]:
    """Runs a request that waits for messages. Raises RateLimited, and Overloaded if too many connections wait."""
    with request.meter.waiting() if request.meter is not None else nullcontext(), request.staying():
        yield


@asynccontextmanager
async def opening(request: Request, is_open: IsOpen) -> AsyncIterator[Opened]:
    """Runs a request that begins an upload, and is told its topic and id. Raises RateLimited."""
    meter = request.meter
    if not isinstance(meter, Meter):
        yield lambda topic, upload: None
        return
    async with meter.opening(is_open) as opened:
        yield opened


def _size(message: MutableMapping[str, Any]) -> int:
    text = message.get("text")
    return len(text.encode()) if text else len(message.get("body") or message.get("bytes") or b"")


def _limited(account: Account, limit: str, bound: float, unit: str, wait_s: float) -> RateLimited:
    topic = account.key.rpartition("/")[0]
    detail = f"the limit of {limit}{f' of topic {topic!r}' if topic else ''} is reached: {bound:g}{unit}"
    more = {"topic": topic} if topic else {}
    return RateLimited(detail, limit=limit, rate=bound, retry_after_s=round(wait_s, 3), **more)

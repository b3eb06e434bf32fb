"""The limits of principals, judged before anything of a request's body is read.

A limit is the cluster's, and each broker lets in an even share of it: the limit ÷ living brokers; of pulls that wait at
least one. What is known only later is paid for by the principal's next request: the bytes of a body without a stated
length, the messages in it, the segments that a change touches beside the first, the bytes of answers. What is sent in
parts waits behind each part until that is paid for, and so does what a WebSocket says. A request that another broker
relays was counted there, and what a signed link gets is nobody's.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from seaweedq.access.actions import Action
from seaweedq.access.buckets import Bucket
from seaweedq.access.caller import Caller
from seaweedq.access.limits import NO_LIMITS
from seaweedq.api.asgi.gate import RULE
from seaweedq.api.asgi.http import Receive, Scope, Send, content_length, staying
from seaweedq.clock import Clock
from seaweedq.errors import RateLimited

METER = "seaweedq.meter"  # the key in a scope of what counts for its principal; only those with limits have one
CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
WITH_BODIES = CHANGING - {"DELETE"}
SWEEP_AT = 256  # principals of which something is counted, before those that are no more are looked for
RETRY_S = 1.0  # when a place may have become free


@dataclass(slots=True, eq=False)
class _Account:
    """The use that one principal makes of this broker: a bucket for each limit of a rate, and its pulls that wait."""

    buckets: dict[str, Bucket] = field(default_factory=dict)
    waiting: int = 0


class Rates:
    """What the principals have left at one broker. `living` counts the brokers, `again` returns a caller as it is now,
    and `exists` tells whether there is a principal."""

    def __init__(
        self,
        clock: Clock,
        living: Callable[[], int],
        again: Callable[[Caller], Caller | None],
        exists: Callable[[str], bool],
    ) -> None:
        self.clock = clock
        self.living = living
        self.again = again
        self._exists = exists
        self._accounts: dict[str, _Account] = {}
        self._sweep_at = SWEEP_AT

    def admit(self, caller: Caller, scope: Scope) -> None:
        """Takes what is known of a request's cost. Raises RateLimited."""
        if caller.limits is NO_LIMITS:
            return
        meter = Meter(self, caller, self._account(caller.principal or ""))
        meter.take(_costs(scope))
        scope[METER] = meter

    def __len__(self) -> int:
        return len(self._accounts)

    def _account(self, name: str) -> _Account:
        found = self._accounts.get(name)
        if found is None:
            if len(self._accounts) >= self._sweep_at:
                self._accounts = {one: kept for one, kept in self._accounts.items() if self._exists(one)}
                self._sweep_at = max(SWEEP_AT, 2 * len(self._accounts))
            found = self._accounts[name] = _Account()
        return found


class Meter:
    """Counts what one request, or one connection that lasts, uses of its principal's limits."""

    __slots__ = ("_account", "_caller", "_rates")

    def __init__(self, rates: Rates, caller: Caller, account: _Account) -> None:
        self._rates = rates
        self._caller = caller
        self._account = account

    def take(self, costs: Mapping[str, float]) -> None:
        """Takes all of it, or raises RateLimited and takes nothing. A cost of 0 asks only whether all is paid."""
        now_s = self._rates.clock.monotonic_s()
        taken: list[tuple[Bucket, float]] = []
        for limit, amount in costs.items():
            bucket = self._bucket(limit, now_s)
            if bucket is None:
                continue
            if wait_s := bucket.take(amount, now_s):
                for one, cost in taken:
                    one.spend(-cost)
                raise _limited(limit, getattr(self._caller.limits, limit), " a second", wait_s)
            taken.append((bucket, amount))

    def spend(self, limit: str, amount: float) -> None:
        """Takes what was let in before it was known."""
        if bucket := self._bucket(limit, self._rates.clock.monotonic_s()):
            bucket.spend(amount)

    async def paid(self, *limits: str) -> None:
        """Returns once nothing is owed of these."""
        while wait_s := max(self._owed_s(limit) for limit in limits):
            await asyncio.sleep(wait_s)
            self._caller = self._rates.again(self._caller) or self._caller

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts a pull that waits. Raises RateLimited."""
        most, account = self._caller.limits.waiting_pulls, self._account
        if most is not None and account.waiting >= max(1, most // max(1, self._rates.living())):
            raise _limited("waiting_pulls", most, "", RETRY_S)
        account.waiting += 1
        try:
            yield
        finally:
            account.waiting -= 1

    def receiving(self, scope: Scope, receive: Receive) -> Receive:
        """Returns what reads a body of unknown length, or what a WebSocket says, and counts it."""
        if scope["type"] == "http":
            unknown = scope["method"] in WITH_BODIES and content_length(scope) is None
            return self._counted(receive) if unknown else receive
        return self._heard(receive)

    def sending(self, out: Send) -> Send:
        """Returns what sends, and counts it."""

        async def send(message: MutableMapping[str, Any]) -> None:
            """Sends a part; where more follow, behind it waits until it is paid for."""
            await out(message)
            if size := _size(message):
                self.spend("bytes_out", size)
                if message.get("more_body", message["type"] == "websocket.send"):
                    await self.paid("bytes_out")

        return send

    def _counted(self, receive: Receive) -> Receive:
        async def read() -> MutableMapping[str, Any]:
            message = await receive()
            self.spend("bytes_in", len(message.get("body", b"")))
            return message

        return read

    def _heard(self, receive: Receive) -> Receive:
        async def hear() -> MutableMapping[str, Any]:
            message = await receive()
            if message["type"] == "websocket.receive":
                await self.paid("requests", "bytes_in")
                self.spend("requests", 1)
                self.spend("bytes_in", _size(message))
            return message

        return hear

    def _owed_s(self, limit: str) -> float:
        now_s = self._rates.clock.monotonic_s()
        bucket = self._bucket(limit, now_s)
        return bucket.take(0, now_s) if bucket else 0.0

    def _bucket(self, limit: str, now_s: float) -> Bucket | None:
        """Returns what is left of a limit, with the rate of now; None where there is no such limit."""
        whole = getattr(self._caller.limits, limit)
        if whole is None:
            return None
        share = whole / max(1, self._rates.living())
        bucket = self._account.buckets.get(limit)
        if bucket is None:
            bucket = self._account.buckets[limit] = Bucket(share, now_s)
        elif bucket.rate != share:
            bucket.set_rate(share, now_s)
        return bucket


def take(scope: Scope, limit: str, amount: float) -> None:
    """Takes what a request costs more than its route tells. Raises RateLimited."""
    meter: Meter | None = scope.get(METER)
    if meter is not None:
        meter.take({limit: amount})


def spend(scope: Scope, limit: str, amount: float) -> None:
    """Takes what a request has turned out to cost."""
    meter: Meter | None = scope.get(METER)
    if meter is not None:
        meter.spend(limit, amount)


@contextmanager
def waiting(scope: Scope) -> Iterator[None]:
    """Runs a request that waits for messages. Raises RateLimited, and Overloaded where too many connections wait."""
    meter: Meter | None = scope.get(METER)
    if meter is None:
        with staying(scope):
            yield
        return
    with meter.waiting(), staying(scope):
        yield


def _costs(scope: Scope) -> dict[str, float]:
    """Returns what is known of a request before its body is read."""
    method, action = scope.get("method", "GET"), scope[RULE][0].action
    costs: dict[str, float] = {"requests": 1}
    if method in WITH_BODIES:
        costs["bytes_in"] = content_length(scope) or 0
    if action is Action.PUBLISH and method == "POST":
        costs["messages"] = 0
    elif action not in (Action.PUBLISH, Action.CONSUME) and method in CHANGING:
        costs["changes"] = 1
    if method == "GET" or scope[RULE][0].lasts:  # an ack is let in: else leases would end
        costs["bytes_out"] = 0
    return costs


def _size(message: MutableMapping[str, Any]) -> int:
    text = message.get("text")
    return len(text.encode()) if text else len(message.get("body") or message.get("bytes") or b"")


def _limited(limit: str, bound: float, unit: str, wait_s: float) -> RateLimited:
    detail = f"the limit of {limit} is reached: {bound:g}{unit}"
    return RateLimited(detail, limit=limit, rate=bound, retry_after_s=round(wait_s, 3))

"""The rates of principals: requests, and bytes that come in, judged before anything of a body is read.

A limit is the cluster's, and each broker lets in an even share of it: the limit ÷ living brokers. A body without a
stated length is counted as it comes, and is paid for by the principal's next request. A request that another broker
relays was counted there.
"""

from collections.abc import Callable, MutableMapping
from typing import Any

from seaweedq.access.buckets import Bucket
from seaweedq.access.caller import Caller
from seaweedq.access.shares import even
from seaweedq.api.asgi.http import Receive, Scope, content_length
from seaweedq.clock import Clock
from seaweedq.errors import RateLimited

UNCOUNTED = "seaweedq.uncounted"  # the key in a scope of the bucket that pays for a body of unknown length
WITH_BODIES = frozenset({"POST", "PUT", "PATCH"})


class Rates:
    """What the principals have left at one broker. `living` counts the brokers."""

    def __init__(self, clock: Clock, living: Callable[[], int]) -> None:
        self._clock = clock
        self._living = living
        self._buckets: dict[tuple[str, str], Bucket] = {}  # by principal and limit: as many as there are records

    def admit(self, caller: Caller, scope: Scope) -> None:
        """Takes what a request costs. Raises RateLimited."""
        limits = caller.limits
        if limits.requests is None and limits.bytes_in is None:
            return
        name = caller.principal or ""
        asked = None if limits.requests is None else self._bucket(name, "requests", limits.requests)
        if asked:
            self._take(asked, "requests", limits.requests, 1)
        if limits.bytes_in is None or scope.get("method") not in WITH_BODIES:
            return
        paying, size = self._bucket(name, "bytes_in", limits.bytes_in), content_length(scope)
        try:
            self._take(paying, "bytes_in", limits.bytes_in, size or 0)
        except RateLimited:
            if asked:
                asked.spend(-1)
            raise
        if size is None:
            scope[UNCOUNTED] = paying

    def _bucket(self, name: str, limit: str, rate: float) -> Bucket:
        share, now_s = even(rate, self._living()), self._clock.monotonic_s()
        bucket = self._buckets.get((name, limit))
        if bucket is None:
            bucket = self._buckets[name, limit] = Bucket(share, now_s)
        elif bucket.rate != share:
            bucket.set_rate(share, now_s)
        return bucket

    def _take(self, bucket: Bucket, limit: str, rate: float | None, amount: float) -> None:
        if wait_s := bucket.take(amount, self._clock.monotonic_s()):
            raise RateLimited(
                f"the limit of {limit} is reached: {rate:g} a second",
                limit=limit,
                rate=rate,
                retry_after_s=round(wait_s, 3),
            )


def counted(scope: Scope, receive: Receive) -> Receive:
    """Returns what reads a body of unknown length, and has it paid for."""
    bucket: Bucket = scope[UNCOUNTED]

    async def read() -> MutableMapping[str, Any]:
        message = await receive()
        bucket.spend(len(message.get("body", b"")))
        return message

    return read

"""When and how often a request is repeated. Pure: time and randomness are passed in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from seaweedq.client.core.effects import Pause, Reply, Request, Steps
from seaweedq.client.core.problems import TRANSIENT, check, error_of, retry_after_s
from seaweedq.errors import ConnectionFailed, RateLimited, SeaweedqError

T = TypeVar("T")
LIMITED = 429
# Is called before each repeat with the error, and the seconds for which it is still tried; and with None once a broker
# has answered again.
OnRetry: TypeAlias = Callable[[SeaweedqError | None, float], None]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between attempts: doubling from `first_s` up to `cap_s`, each shortened by up to a half at random."""

    first_s: float = 0.05
    cap_s: float = 2.0

    def pause_s(self, attempt: int, random: float) -> float:
        """Returns the seconds to wait after failed attempt number `attempt` (from 0); `random` is in [0, 1)."""
        whole: float = min(self.cap_s, self.first_s * 2.0 ** min(attempt, 30))
        return whole * (1 - random / 2)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a request is repeated: for at most `total_s` seconds, in addition to the wait asked of the server."""

    total_s: float
    monotonic_s: Callable[[], float]
    random: Callable[[], float]
    backoff: Backoff = Backoff()
    on_retry: OnRetry | None = None

    def pause_s(self, attempt: int) -> float:
        """Returns the seconds to wait after failed attempt number `attempt` (from 0)."""
        return self.backoff.pause_s(attempt, self.random())

    def send(self, request: Request, since_s: float | None = None) -> Steps[Reply]:
        """Sends until a broker accepts the request; the time counts from `since_s` (monotonic), by default from now.

        Lost connections, timeouts, 408, 429 and 502 to 504 are tried again, not before the answer's Retry-After. Any
        other error, and the last failure after the timeout, is raised. The waits for a rate do not count in it: whoever
        sends more than it may is slowed down, and does not fail, unless the rate is nothing.

        The request must be safe to repeat.
        """
        began_s = self.monotonic_s() if since_s is None else since_s
        deadline = began_s + request.wait_s + self.total_s
        attempt = 0
        while True:
            failure: SeaweedqError
            try:
                reply: Reply = yield request
            except ConnectionFailed as error:
                failure, wait_s = error, 0.0
            else:
                if reply.status not in TRANSIENT:
                    if attempt and self.on_retry:
                        self.on_retry(None, 0.0)
                    return check(reply)
                failure, wait_s = error_of(reply), retry_after_s(reply)
            wait_s = max(wait_s, self.pause_s(attempt))
            if isinstance(failure, RateLimited):
                wait_s = self._wait_for_rate_s(failure)
                deadline += wait_s if failure.fields.get("rate") else 0.0
            left_s = deadline - self.monotonic_s()
            if wait_s > left_s:
                raise failure
            if self.on_retry:
                self.on_retry(failure, left_s)
            yield Pause(wait_s)
            attempt += 1

    def rate_wait_s(self, reply: Reply) -> float:
        """Returns how long to wait where a rate has refused a request, 0 where none has."""
        failure = error_of(reply) if reply.status == LIMITED else None
        return self._wait_for_rate_s(failure) if isinstance(failure, RateLimited) else 0.0

    def _wait_for_rate_s(self, limited: RateLimited) -> float:
        """Returns the wait that the broker has said, and up to a quarter more: all who wait for a rate would come
        back at once."""
        told_s = float(limited.fields.get("retry_after_s") or 0)
        return max(told_s, self.backoff.first_s) * (1 + self.random() / 4)


def patiently(steps: Steps[T], patience: Patience) -> Steps[T]:
    """Runs steps whose requests are all safe to repeat, and sends each of them as `patience` allows."""
    answer: Any = None
    failure: Exception | None = None
    while True:
        try:
            effect = steps.throw(failure) if failure else steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        answer, failure = None, None
        try:
            answer = (yield from patience.send(effect)) if isinstance(effect, Request) else (yield effect)
        except Exception as error:  # the steps may expect it
            failure = error


def unhurried(steps: Steps[T], patience: Patience) -> Steps[T]:
    """Runs steps whose requests are sent once each, and waits where a rate refuses one: then nothing of it was done, so
    it is safe to send again. Raises RateLimited once the waits are longer than the patience."""
    left_s, answer = patience.total_s, None
    failure: Exception | None = None
    while True:
        try:
            effect = steps.throw(failure) if failure else steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        failure = None
        try:
            answer = yield effect
            while isinstance(effect, Request) and (wait_s := patience.rate_wait_s(answer)) and wait_s <= left_s:
                left_s -= wait_s
                yield Pause(wait_s)
                answer = yield effect
        except Exception as error:  # the steps may expect it
            failure = error

"""The attempts of a request: which broker is asked, the next one when it fails, and when and how often the request is
repeated. Pure: time and randomness are passed in.

The user names some brokers, and the client learns of others from a topic's segment map. Named brokers are always tried;
those that failed recently come last. Learned brokers are only a shortcut: one that failed is left out for a while, and
for longer if it never answered, since its address may be unreachable from here.

A machine that is cut off neither answers nor refuses. The others take over its segments once its lease has ended; a
producer that waited for its own timeout would learn of it long after. So a hedged request leaves a first broker that is
silent for about a lease, and asks the next one, which waits for the new owner. It may reach both: it has an identity.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, TypeAlias, TypeVar
from urllib.parse import SplitResult, urlsplit

from seaweedq.client.core.effects import Attempt, Effect, Pause, Reply, Request, Steps
from seaweedq.client.core.problems import TRANSIENT, check, error_of, retry_after_s
from seaweedq.errors import ConnectionFailed, RateLimited, SeaweedqError

AVOID_S, AVOID_MOST_S, AVOID_UNKNOWN_S = 1.0, 30.0, 300.0
SILENT_S = 5.0  # the default of lease_s: a broker that lives has nearly always answered before
_ELSEWHERE = frozenset({502, 503, 504})
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SAFE = frozenset({"GET", "PUT"})


class Brokers:
    """The brokers of a client. Thread-safe: a thread that reads an old state makes a detour."""

    def __init__(self, urls: Sequence[str], monotonic_s: Callable[[], float]) -> None:
        self.urls = tuple(urls)
        self._monotonic_s = monotonic_s
        self._scheme = urlsplit(self.urls[0]).scheme
        self.has_secret = False  # whether requests show a token, which not every learned broker may see
        self._answered = set(self.urls)
        self._failures: dict[str, tuple[int, float]] = {}  # how often in a row, and until when it is avoided

    def order(self, preferred: Sequence[str] = ()) -> list[str]:
        """Returns the URLs to try, in order: `preferred`, then those that the user named."""
        now_s = self._monotonic_s()
        learned = [url for url in preferred if self._usable(url, now_s)]
        return sorted(dict.fromkeys([*learned, *self.urls]), key=lambda url: self._avoided_s(url, now_s))

    def send(self, request: Request) -> Steps[Reply]:
        """Tries each broker once. Returns the first answer other than 502, 503 and 504, else the last one; or raises
        the last failure.

        A request that may not be repeated goes to the next broker only if it cannot have reached the one before.
        """
        repeatable = request.repeatable or request.method in _SAFE
        reply: Reply
        last: Reply | ConnectionFailed | None = None
        order = self.order(request.urls)
        for number, url in enumerate(order):
            is_short = request.is_hedged and repeatable and number == 0 and len(order) > 1
            try:
                last = reply = yield Attempt(url, request, SILENT_S if is_short else inf)
            except ConnectionFailed as error:
                last = error
                self._fail(url)
                if repeatable or not error.fields.get("sent", True):
                    continue
                raise
            if reply.status not in _ELSEWHERE:
                self._failures.pop(url, None)
                self._answered.add(url)
                return reply
            self._fail(url)
            if not repeatable:
                return reply
        if isinstance(last, Reply):
            return last
        assert last is not None
        raise last

    def _usable(self, url: str, now_s: float) -> bool:
        # Another scheme may mean a check of certificates that this client did not set up.
        if urlsplit(url).scheme != self._scheme:
            return False
        is_trusted = not self.has_secret or may_see_token(url)
        return url in self.urls or (is_trusted and not self._avoided_s(url, now_s))

    def _avoided_s(self, url: str, now_s: float) -> float:
        until_s = self._failures.get(url, (0, 0.0))[1]
        return until_s if until_s > now_s else 0.0

    def _fail(self, url: str) -> None:
        times = self._failures.get(url, (0, 0.0))[0]
        avoid_s = min(AVOID_MOST_S, AVOID_S * 2.0 ** min(times, 30)) if url in self._answered else AVOID_UNKNOWN_S
        self._failures[url] = (times + 1, self._monotonic_s() + avoid_s)


def may_see_token(learned: str) -> bool:
    """Returns whether a broker that the user did not name may see a token: over https, which its certificate proves, or
    on this machine."""
    parts = urlsplit(learned)
    return parts.scheme == "https" or parts.hostname in LOOPBACK


def parse_urls(url: str | Sequence[str]) -> tuple[str, ...]:
    """Parses one URL, several separated by commas, or a sequence of such. Raises ValueError for an invalid one."""
    urls = []
    for one in (part.strip() for text in ([url] if isinstance(url, str) else url) for part in text.split(",")):
        parts = urlsplit(one)
        if parts.scheme not in ("http", "https") or not parts.netloc or not _has_valid_port(parts):
            raise ValueError(f"url must be a URL such as http://127.0.0.1:8080, not {one!r}")
        urls.append(one.rstrip("/"))
    if len({urlsplit(one).scheme for one in urls}) > 1:
        raise ValueError(f"url is {url!r}; use http:// for all brokers, or https:// for all brokers")
    if not urls:
        raise ValueError("url is empty; it must contain at least one URL such as http://127.0.0.1:8080")
    return tuple(dict.fromkeys(urls))


def _has_valid_port(parts: SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:  # no number, or above 65535
        return False


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
        other error, and the last failure after the timeout, is raised. The waits for a rate do not count: a client
        that sends more than it may is slowed down, and does not fail, unless the rate is nothing.

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
        """Returns how long to wait if a rate has refused a request, else 0."""
        failure = error_of(reply) if reply.status == LIMITED else None
        return self._wait_for_rate_s(failure) if isinstance(failure, RateLimited) else 0.0

    def _wait_for_rate_s(self, limited: RateLimited) -> float:
        """Returns the wait that the broker has said, and up to a quarter more: all that wait for a rate would come
        back at once."""
        told_s = float(limited.fields.get("retry_after_s") or 0)
        return max(told_s, self.backoff.first_s) * (1 + self.random() / 4)


def patiently(steps: Steps[T], patience: Patience) -> Steps[T]:
    """Runs steps whose requests are all safe to repeat, and sends each of them as `patience` allows."""

    def perform(effect: Effect) -> Steps[Any]:
        return (yield from patience.send(effect)) if isinstance(effect, Request) else (yield effect)

    return (yield from _run(steps, perform))


def unhurried(steps: Steps[T], patience: Patience) -> Steps[T]:
    """Runs steps whose requests are sent once each, and waits if a rate refuses one: then nothing of it was done, so
    it is safe to send again. Raises RateLimited once the waits are longer than the patience."""
    left_s = patience.total_s

    def perform(effect: Effect) -> Steps[Any]:
        nonlocal left_s
        answer = yield effect
        while isinstance(effect, Request) and (wait_s := patience.rate_wait_s(answer)) and wait_s <= left_s:
            left_s -= wait_s
            yield Pause(wait_s)
            answer = yield effect
        return answer

    return (yield from _run(steps, perform))


def _run(steps: Steps[T], perform: Callable[[Effect], Steps[Any]]) -> Steps[T]:
    """Runs steps, and performs each of their effects by other steps."""
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
            answer = yield from perform(effect)
        except Exception as error:  # the steps may expect it
            failure = error

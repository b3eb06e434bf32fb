"""Chooses the broker of a request, and the next one when it fails. Pure: the time is passed in.

The user names some brokers, and the client learns of others from a topic's segment map. Named brokers are always tried;
those that failed recently come last. Learned brokers are only a shortcut: one that failed is left out for a while, and
for longer if it never answered, since its address may be unreachable from here.

A machine that is cut off neither answers nor refuses. The others take over its segments once its lease has ended; a
producer that waited for its own timeout would learn of it long after. So a hedged request leaves a first broker that is
silent for about a lease, and asks the next one, which waits for the new owner. It may reach both: it has an identity.
"""

from collections.abc import Callable, Sequence
from math import inf
from urllib.parse import urlsplit

from seaweedq.client.core.effects import Attempt, Reply, Request, Steps
from seaweedq.errors import ConnectionFailed

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
        return url in self.urls or not (self._avoided_s(url, now_s) or (self.has_secret and not _may_see(url)))

    def _avoided_s(self, url: str, now_s: float) -> float:
        until_s = self._failures.get(url, (0, 0.0))[1]
        return until_s if until_s > now_s else 0.0

    def _fail(self, url: str) -> None:
        times = self._failures.get(url, (0, 0.0))[0]
        avoid_s = min(AVOID_MOST_S, AVOID_S * 2.0 ** min(times, 30)) if url in self._answered else AVOID_UNKNOWN_S
        self._failures[url] = (times + 1, self._monotonic_s() + avoid_s)


def parse_urls(url: str | Sequence[str]) -> tuple[str, ...]:
    """Parses one URL, several separated by commas, or a sequence of such. Raises ValueError for an invalid one."""
    given = [url] if isinstance(url, str) else list(url)
    urls = tuple(dict.fromkeys(_base(one.strip()) for text in given for one in text.split(",")))
    if len({urlsplit(one).scheme for one in urls}) > 1:
        raise ValueError(f"url is {url!r}; use either http:// or https:// for all brokers")
    if not urls:
        raise ValueError("url names no broker; it must be like http://127.0.0.1:8080")
    return urls


def _base(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"url is {url!r}; it must be like http://127.0.0.1:8080")
    return url.rstrip("/")


def _may_see(url: str) -> bool:
    """Tells whether a learned broker may see a token: over https, which its certificate proves, or on this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or parts.hostname in LOOPBACK

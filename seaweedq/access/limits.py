"""Limits of principals and topics, and how much of each is left at one broker. Pure: the time is passed in.

A limit of a rate is the cluster's. A broker has a share: an even one, limit ÷ living brokers, unless the leader has
told it another one not longer than LAPSE_S before its report. The report has the use since the last report; shares
name the report that they answer, and count only until the next one: so neither a leader that was paused, nor two of
them, can have one broker follow old numbers. A set of shares replaces the one before. Each broker measures intervals
by its own monotonic clock, so clocks may differ.

A share is kept by a bucket. A request is let in if the bucket is not in debt, whatever it costs, and may leave it in
debt: else one that costs more than the bucket holds could never be served. Those behind it wait until the debt is paid,
so that the rate holds. A bucket of a low rate holds the gain of more than a second: one that holds less than a request
or two forgets most of its gain while nobody asks, and would let in little more than half of its rate, since refused
requests are lost.

The leader splits a limit by the use of each broker since the last split, in parts of 1. A broker that refused requests
wants more than it used: those share evenly what the others leave. The unused rest is shared out evenly. No share is
below a tenth of an even one, so that a broker which gets its first requests can serve some of them until the next
split. Those floors come on top of the split: they stay unused, or count as use in the next one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from seaweedq.checks import require

OF_TOPICS = ("requests", "messages", "bytes_in", "bytes_out", "changes", "waiting_pulls", "open_uploads")
RATES = ("requests", "messages", "bytes_in", "bytes_out", "changes")
BURST_S = 1.0  # of its rate are in a full bucket
FEW, FEW_S = 5.0, 8.0  # it holds at least so many requests, as far as so many seconds bring them
MOST_WAIT_S = 60.0  # that a refusal states: the rate may be raised meanwhile
SPLIT_S = 2.0
NEXT_SHARE_S = SPLIT_S + 0.5  # after a refusal there is another share at the latest
LAPSE_S = 6.0  # for which a share counts that is not renewed; then it is an even one
FLOOR = 0.1  # of an even share
SWEEP_AT = 256  # accounts, before those of former principals and topics are dropped
NEARLY_NOTHING = 0.001  # of a limit
MOST_REPORTED = 2_000  # limits in a report, the most wanted ones: others have an even share


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bounds of a principal's use; None is no bound. Those of RATES are rates, each second, in the whole cluster; the
    others are counts at one time."""

    requests: float | None = None
    messages: float | None = None
    bytes_in: float | None = None
    bytes_out: float | None = None
    changes: float | None = None
    connections: int | None = None
    waiting_pulls: int | None = None
    topics: int | None = None
    segments: int | None = None
    open_uploads: int | None = None

    def completed(self, default: "Limits") -> "Limits":
        """Returns these limits, completed by the default's; NO_LIMITS itself if there are none."""
        own = msgspec.structs.asdict(self)
        limits = Limits(**{name: getattr(default, name) if value is None else value for name, value in own.items()})
        return NO_LIMITS if limits == NO_LIMITS else limits


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Use:
    """The part of a limit that one broker let in, and whether it refused something."""

    part: float
    refused: bool = False


IDLE = Use(0.0)


def burst(rate: float) -> float:
    """Returns what a bucket of this rate holds."""
    return max(rate * BURST_S, min(FEW, rate * FEW_S))


def take_all(asked: Iterable["Bucket"], costs: Iterable[tuple["Bucket", float]], now_s: float) -> bool:
    """Takes all costs and returns True; or nothing if one of those `asked`, which include those of `costs`, would
    refuse. To `take` from each takes twice as long for a request with a few limits."""
    for bucket in asked:
        level = bucket._level + (now_s - bucket._at_s) * bucket.rate
        bucket._level = level if level < bucket._most else bucket._most
        bucket._at_s = now_s
        if level < 0 or not bucket.rate:
            return False
    for bucket, amount in costs:
        bucket._level -= amount
        bucket.used += amount
    return True


class Bucket:
    """A token bucket, full at first: the rest of one limit of a rate. It gains `rate` a second, this broker's share of
    the limit, which is `whole` and above 0; a bucket without one has its rate alone, and reports nothing. It counts the
    amount `used`, and whether something was `refused`.

    It `wants` more while it is in debt behind a refusal: a client that waits for the stated time asks for nothing
    meanwhile. Its `part` is the use that it reports: of a limit that gives fewer than FEW between two reports the
    average of several. One request is more than such a limit gives in that time: brokers would seem to need all of it,
    or nothing, in turns."""

    __slots__ = ("_at_s", "_level", "_most", "part", "rate", "refused", "used", "wants", "whole")

    def __init__(self, rate: float, now_s: float, whole: float | None = None) -> None:
        require(whole is None or whole > 0, "a bucket has shares of a limit of %s", whole)
        self.rate = rate
        self.whole = whole = rate if whole is None else whole
        self._level = self._most = burst(rate)
        if whole:  # a low rate's buckets hold seconds of it: full at all brokers they would let in too much at first
            self._level = min(self._level, burst(whole) * rate / whole)
        self._at_s = now_s
        self.used = self.part = 0.0
        self.refused = self.wants = False

    def take(self, amount: float, now_s: float) -> float:
        """Takes an amount and returns 0; or takes nothing, and returns the seconds until a request is let in. The share
        of a broker that refuses rises with the next split, up to the whole limit: a client that waited for as long as
        the present share takes would sleep through that."""
        rate = self.rate
        level = self._level + (now_s - self._at_s) * rate
        self._level = level = level if level < self._most else self._most
        self._at_s = now_s
        if level < 0 or not rate:
            self.refused = True
            debt = max(0.0, -level)
            wait_s = min(MOST_WAIT_S, debt / rate) if rate else MOST_WAIT_S
            return min(wait_s, max(debt / self.whole, NEXT_SHARE_S)) if self.whole else wait_s
        self._level = level - amount
        self.used += amount
        return 0.0

    def level(self, now_s: float) -> float:
        """Returns its content; below 0 the debt."""
        return self._level + max(0.0, now_s - self._at_s) * self.rate

    def spend(self, amount: float) -> None:
        """Takes further costs of a request that was let in; a negative amount is given back."""
        self._level -= amount
        self.used += amount

    def set_rate(self, rate: float, now_s: float) -> None:
        """Changes the rate from now on. The gain so far is kept as far as the bucket holds it then, a debt as it is."""
        level = self._level + max(0.0, now_s - self._at_s) * self.rate
        most = burst(rate)
        self._level, self._at_s, self.rate = min(level, max(self._most, most)), now_s, rate
        self._most = most

    def report(self, passed_s: float, now_s: float) -> Use | None:
        """Returns the use in the time since the last report, None for no use."""
        owes = self.level(now_s) < 0
        used, refused = max(0.0, self.used), self.refused or (self.wants and owes)
        self.wants = refused and owes
        self.used, self.refused = 0.0, False
        weight = min(1.0, self.whole * passed_s / FEW)
        self.part += weight * (used / passed_s / self.whole - self.part)
        return Use(self.part, refused) if self.part > NEARLY_NOTHING or refused or owes else None


def split(uses: Mapping[str, Use], silent: int = 0) -> dict[str, float]:
    """Returns the share of each broker that reported its use. Each `silent` one may take an even share."""
    if not uses:
        return {}
    floor, limit = FLOOR / (len(uses) + silent), len(uses) / (len(uses) + silent)
    hungry = [broker for broker, use in uses.items() if use.refused]
    parts = {broker: use.part for broker, use in uses.items() if not use.refused}
    scale = min(1.0, limit / total) if (total := sum(parts.values())) else 0.0
    shares = _fair({broker: part * scale for broker, part in parts.items()}, limit, len(hungry))
    left = max(0.0, limit - sum(shares.values()))
    takers = hungry or list(uses)
    for broker in takers:
        shares[broker] = shares.get(broker, 0.0) + left / len(takers)
    return {broker: max(floor, share) for broker, share in shares.items()}


def _fair(shares: Mapping[str, float], limit: float, hungry: int) -> dict[str, float]:
    """Cuts the shares of brokers that want no more to a fair bound, beside so many `hungry` ones: the highest bound at
    which all below it keep theirs, and all others, the hungry ones with them, have that bound."""
    ordered = sorted(shares.values())
    left, heads = limit, len(ordered) + hungry
    bound = left / heads if hungry else limit
    for part in ordered if hungry else ():
        if part > left / heads:
            break
        left, heads = left - part, heads - 1
        bound = left / heads
    return {broker: min(part, bound) for broker, part in shares.items()}


@dataclass(frozen=True, slots=True)
class Plan:
    """The buckets of an account for one kind of request: those that must be out of debt, the costs of some, and the one
    that pays for its length."""

    asked: tuple[Bucket, ...]
    costs: tuple[tuple[Bucket, float], ...]
    by_length: Bucket | None

    def admits(self, length: int, now_s: float) -> bool:
        """Takes all of it and returns True, or takes nothing."""
        if not take_all(self.asked, self.costs, now_s):
            return False
        if self.by_length is not None:
            self.by_length.spend(length)
        return True


class Account:
    """The use of this broker by one principal, or of one topic: its buckets by limit, and counts of its requests under
    way. `source` returns its present limits, None once the principal or topic has gone."""

    __slots__ = (
        "brokers",
        "buckets",
        "connections",
        "edition",
        "key",
        "limits",
        "meter",
        "opening",
        "plans",
        "source",
        "uploads",
        "uploads_checked_s",
        "waiting",
    )

    def __init__(self, key: str, source: Callable[[], Limits | None]) -> None:
        self.key = key
        self.source = source
        self.limits = NO_LIMITS
        self.buckets: dict[str, Bucket] = {}
        self.plans: dict[object, Plan] = {}  # by kind of request, for as long as these are its buckets
        self.meter: Any = None  # of the requests that use this account alone
        self.edition = -1  # of the shares that it goes by
        self.brokers = 1
        self.waiting = self.connections = self.opening = 0
        self.uploads: set[tuple[str, str]] = set()  # topic and id of the open ones that began here
        self.uploads_checked_s = float("-inf")  # when it was last checked which of them are open

    def plan(self, kind: object, costs: Sequence[tuple[str, float]], by_length: str | None) -> Plan:
        """Makes the plan of requests of this kind, and keeps it in `plans`."""
        found = [(self.buckets[limit], amount) for limit, amount in costs if limit in self.buckets]
        length = None if by_length is None else self.buckets.get(by_length)
        asked = tuple(bucket for bucket, _ in found) + (() if length is None else (length,))
        plan = self.plans[kind] = Plan(asked, tuple(one for one in found if one[1]), length)
        return plan

    @property
    def is_busy(self) -> bool:
        """Whether some of its requests are under way."""
        return bool(self.waiting or self.connections or self.opening)

    def most(self, limit: str) -> int | None:
        """Returns this broker's bound of a counted limit: an even share, at least one."""
        whole = getattr(self.limits, limit)
        return None if whole is None else max(1, int(whole) // self.brokers)


class Wish(NamedTuple):
    """One limit in a report, of the account `key`, and its use."""

    key: str
    limit: str
    part: float
    refused: bool


class Accounts:
    """All accounts of a broker. `brokers` is the number of living ones."""

    def __init__(self, now_s: float) -> None:
        self.brokers = 1
        self.number = 0  # of the last report
        self._accounts: dict[str, Account] = {}
        self._sweep_at = SWEEP_AT
        self._reported_s = now_s
        self._shares: dict[tuple[str, str], float] = {}
        self._edition = 0  # rises with each change of shares or brokers
        self._lapse_s = float("inf")

    def __len__(self) -> int:
        return len(self._accounts)

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def get(self, key: str, limits: Limits, now_s: float) -> Account | None:
        """Returns an existing account with these limits, in this broker's present shares."""
        account = self._accounts.get(key)
        if account is None:
            return None
        if account.limits is not limits or account.edition != self._edition or now_s >= self._lapse_s:
            self.fit(account, limits, now_s)
        return account

    def open(self, key: str, limits: Limits, source: Callable[[], Limits | None], now_s: float) -> Account:
        """Returns an account as `get`, a new one if there is none."""
        if account := self.get(key, limits, now_s):
            return account
        if len(self._accounts) >= self._sweep_at:
            self._accounts = {
                one: kept for one, kept in self._accounts.items() if kept.is_busy or kept.source() is not None
            }
            self._sweep_at = max(SWEEP_AT, 2 * len(self._accounts))
        account = self._accounts[key] = Account(key, source)
        self.fit(account, limits, now_s)
        return account

    def fit(self, account: Account, limits: Limits, now_s: float) -> None:
        """Gives an account these limits, in this broker's shares."""
        if now_s >= self._lapse_s:
            self._replace({}, float("inf"))
        account.limits, account.edition, account.brokers = limits, self._edition, max(1, self.brokers)
        for name in RATES:
            whole = getattr(limits, name)
            if whole is None:
                if account.buckets.pop(name, None):
                    account.plans.clear()
                continue
            rate = whole * self._shares.get((account.key, name), 1 / account.brokers)
            bucket = account.buckets.get(name)
            if bucket is None:
                account.buckets[name] = Bucket(rate, now_s, whole)
                account.plans.clear()
            else:
                bucket.whole = whole
                bucket.set_rate(rate, now_s)

    def set_brokers(self, brokers: int) -> None:
        """Sets the number of living brokers."""
        if brokers != self.brokers:
            self.brokers, self._edition = brokers, self._edition + 1

    def report(self, now_s: float) -> list[Wish]:
        """Returns the use since the last report, of at most MOST_REPORTED limits, the most wanted ones first."""
        passed_s = max(0.001, now_s - self._reported_s)
        self._reported_s, self.number = now_s, self.number + 1
        wishes = []
        for account in self._accounts.values():
            for name, bucket in account.buckets.items():
                if use := bucket.report(passed_s, now_s):
                    wishes.append(Wish(account.key, name, use.part, use.refused))
        wishes.sort(key=lambda wish: (not wish.refused, -wish.part))
        return wishes[:MOST_REPORTED]

    def apply_shares(self, number: int, shares: Sequence[tuple[str, str, float]], now_s: float) -> bool:
        """Applies the shares with which the leader has answered a report. False: they answer none, or an old one."""
        lapse_s = self._reported_s + LAPSE_S
        if number != self.number or now_s >= lapse_s:
            return False
        self._replace({(key, limit): part for key, limit, part in shares}, lapse_s)
        return True

    def _replace(self, shares: Mapping[tuple[str, str], float], lapse_s: float) -> None:
        self._shares, self._lapse_s, self._edition = dict(shares), lapse_s, self._edition + 1

"""The keys that sign a broker's own URLs: one for each day, derived from a secret that all brokers of the cluster have.

Today's key signs; today's and yesterday's are taken, and for clocks that differ also tomorrow's, a little before
midnight. Nothing is stored, and a key that leaks is worth nothing two days later. The secret is the cluster's; where a
cluster has none it is drawn once, and kept in coordination. While the cluster's is changed there are several: one that
all brokers have signs, and all are taken.

From level PEERS_FROM on the keys come from the secret's root (broker/rpc/peer_keys), below it from the secret itself;
both are taken at any level, as brokers see a rise one after another. Below level 2 the drawn secret itself signs, as
older brokers have it; what they sign is taken until the level rises.
"""

import hmac
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from seaweedq.broker.rpc.peer_keys import PEERS_FROM, LinkRoot
from seaweedq.clock import Ids
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Put
from seaweedq.coordination.records.cluster import SecretRecord
from seaweedq.coordination.records.versioned import Versioned

DAILY_FROM = 2  # the level
SKEW_S = 300  # how far brokers' clocks may differ
_LABEL = b"seaweedq payload links of "


def key_of(secret: bytes, now_s: float) -> bytes:
    """Returns the key of the day, in UTC, of a time."""
    day = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=now_s)).date().isoformat()
    return hmac.new(secret, _LABEL + day.encode(), "sha256").digest()


class LinkKeys:
    """The keys of one cluster. `roots` returns those of its secrets, the one that signs first, none where it has none;
    `level` tells the written one."""

    def __init__(
        self,
        coordination: Coordination,
        ids: Ids,
        roots: Callable[[], Sequence[LinkRoot]],
        level: Callable[[], int],
    ) -> None:
        self._coordination = coordination
        self._ids = ids
        self._roots = roots
        self._level = level
        self._known: bytes | None = None

    async def signing(self, now_s: float) -> bytes:
        """Returns the key that signs now."""
        level = self._level()
        if level < DAILY_FROM or not (roots := self._roots()):
            drawn = await self._drawn()
            return key_of(drawn, now_s) if level >= DAILY_FROM else drawn
        return key_of(roots[0].derived if level >= PEERS_FROM else roots[0].secret, now_s)

    async def taken(self, now_s: float) -> list[bytes]:
        """Returns the keys whose signatures are taken now."""
        secrets = [secret for root in self._roots() for secret in (root.derived, root.secret)] or [await self._drawn()]
        times = (now_s, now_s - 86_400, now_s + SKEW_S)
        found = list(dict.fromkeys(key_of(secret, at_s) for secret in secrets for at_s in times))
        return found if self._level() >= DAILY_FROM else [*found, await self._drawn()]

    async def _drawn(self) -> bytes:
        if self._known is None:
            key = keys.URL_SECRET.key()
            there = await self._coordination.get(key)
            if there is None:
                drawn = keys.URL_SECRET.encode(Versioned.new(SecretRecord(self._ids.nonce() + self._ids.nonce())))
                await self._coordination.commit([Compare(key, 0)], [Put(key, drawn)])  # or another broker was faster
                there = await self._coordination.get(key)
                assert there is not None
            self._known = bytes.fromhex(keys.URL_SECRET.require(there).record.secret)
        return self._known

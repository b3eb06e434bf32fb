"""The leader's split of limits among the brokers, by the use that each of them reports.

Every SPLIT_S the leader asks all living brokers for their use of limits, splits (access/limits), and tells each its
shares. It keeps nothing: a leader that follows goes on with the next reports, and while there is none each broker falls
back to even shares (access/limits). This goes on beside the leader's rounds, which may wait for coordination. A
broker that does not answer within CALL_S (it is paused, cut off, or too old to know the call) may use an even share,
and the others split what is left. At most MOST_REPORTED limits are split, the most wanted ones.
"""

import asyncio
import logging
from collections.abc import Mapping

from seaweedq.access.limits import IDLE, MOST_REPORTED, SPLIT_S, Accounts, Use, split
from seaweedq.broker.context import ClusterView
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.messages import ShareCall, UseReport
from seaweedq.coordination.election import Election

CALL_S = 1.0
logger = logging.getLogger(__name__)
Limit = tuple[str, str]  # whose it is, and which


def splits(reports: Mapping[str, UseReport], silent: int) -> dict[str, list[tuple[str, str, float]]]:
    """Returns the shares of each broker that reported."""
    uses: dict[Limit, dict[str, Use]] = {}
    for broker, report in reports.items():
        for key, limit, part, refused in report.uses:
            uses.setdefault((key, limit), {})[broker] = Use(part, refused)
    wanted = sorted(uses, key=lambda limit: -sum(use.part + use.refused for use in uses[limit].values()))
    shares: dict[str, list[tuple[str, str, float]]] = {broker: [] for broker in reports}
    for key, limit in wanted[:MOST_REPORTED]:
        by_broker = uses[key, limit]
        for broker, part in split({one: by_broker.get(one, IDLE) for one in reports}, silent).items():
            shares[broker].append((key, limit, part))
    return shares


class LimitSplit:
    """Splits limits while this broker leads."""

    def __init__(self, view: ClusterView, election: Election, peers: Peers, accounts: Accounts) -> None:
        self._roster = view.roster
        self._own = view.membership.broker
        self._clock = view.clock
        self._election = election
        self._peers = peers
        self._accounts = accounts

    async def run(self) -> None:
        """Splits every SPLIT_S, for ever."""
        while True:
            await self._election.elected()
            try:
                if self._election.is_leader:
                    await self.split()
            except Exception:
                logger.exception("rate limits could not be divided among the brokers; trying again soon")
            await asyncio.sleep(SPLIT_S)

    async def split(self) -> None:
        """Asks, splits and tells once."""
        urls = {broker: known.record.url for broker, known in self._roster.brokers.items() if broker != self._own}
        if not urls:
            return
        reports = await self._ask(urls)
        shares = splits(reports, max(0, self._roster.living - len(reports)))
        told = {broker: ShareCall(reports[broker].number, each) for broker, each in shares.items() if each}
        if own := told.pop(self._own, None):
            self._accounts.apply_shares(own.number, own.shares, self._clock.monotonic_s())
        tells = (self._peers.call(urls[broker], "share", call, bool, CALL_S) for broker, call in told.items())
        await asyncio.gather(*tells, return_exceptions=True)

    async def _ask(self, urls: Mapping[str, str]) -> dict[str, UseReport]:
        asked = (self._peers.call(url, "use", None, UseReport, CALL_S) for url in urls.values())
        answers = await asyncio.gather(*asked, return_exceptions=True)
        reports = {broker: a for broker, a in zip(urls, answers, strict=True) if isinstance(a, UseReport)}
        reports[self._own] = UseReport.from_accounts(self._accounts, self._clock.monotonic_s())
        return reports

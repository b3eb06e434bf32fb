"""The loads of all brokers' segments, as the leader knows them from reports."""

import asyncio
from dataclasses import dataclass

from seaweedq.balancer.load import SegmentLoad, costs
from seaweedq.balancer.placement import SegmentId
from seaweedq.broker.load.meters import LoadReport, Loads, policy_of
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.topics.catalog import Catalog
from seaweedq.coordination.roster import Roster

CALL_S = 5.0


@dataclass(frozen=True, slots=True)
class Counted:
    """The end of a segment, as its owner reported it, and the messages and bytes that this owner has taken since it
    opened the segment."""

    owner: str
    end: int
    messages: int
    size_bytes: int

    @property
    def mean_bytes(self) -> float:
        """Returns the bytes of a message."""
        return self.size_bytes / self.messages if self.messages else 0.0


class Reports:
    """The last report of each broker, of which `broker` is this one and `own` its loads. `loads` are those of the
    brokers that answered, whose names are in `answered`; `counted` are the counts of their segments that have had any
    message.

    The observations of a segment's earlier owner still count: neither a move nor a death makes its load unknown. So
    `costs` also has the last known ones of segments that nobody reports now.
    """

    def __init__(self, catalog: Catalog, roster: Roster, peers: Peers, broker: str, own: Loads) -> None:
        self.loads: dict[SegmentId, SegmentLoad] = {}
        self.costs: dict[SegmentId, float] = {}
        self.answered: set[str] = set()
        self.counted: dict[SegmentId, Counted] = {}
        self._catalog = catalog
        self._roster = roster
        self._peers = peers
        self._broker = broker
        self._own = own
        self._owners: dict[SegmentId, str] = {}
        self._earlier: dict[SegmentId, SegmentLoad] = {}  # observed by earlier owners
        self._last: dict[SegmentId, SegmentLoad] = {}  # of each segment that is still there

    async def ask(self) -> None:
        """Asks all living brokers."""
        urls = {broker: known.record.url for broker, known in self._roster.brokers.items() if broker != self._broker}
        asked = (self._peers.call(url, "load", None, LoadReport, CALL_S) for url in urls.values())
        answers = await asyncio.gather(*asked, return_exceptions=True)
        reports = {broker: a for broker, a in zip(urls, answers, strict=True) if isinstance(a, LoadReport)}
        reports[self._broker] = self._own.report()
        loads: dict[SegmentId, SegmentLoad] = {}
        for broker, report in reports.items():
            for segment, load in report.all().items():
                loads[segment] = self._joined(segment, broker, load)
        self.answered = set(reports)
        told = ((broker, *each) for broker, report in reports.items() for each in report.counted())
        self.counted = {segment: Counted(broker, *counts) for broker, segment, counts in told}
        known = loads.keys() | {one for owner in self._catalog.owners() for one in self._catalog.owned_by(owner)}
        self._last = {segment: load for segment, load in (self._last | loads).items() if segment in known}
        self.loads, self.costs = loads, costs(self._last)
        self._owners = {segment: owner for segment, owner in self._owners.items() if segment in known}
        self._earlier = {segment: load for segment, load in self._earlier.items() if segment in known}

    def _joined(self, segment: SegmentId, owner: str, load: SegmentLoad) -> SegmentLoad:
        before = self._owners.get(segment)
        if before not in (None, owner) and (last := self._last.get(segment)):
            self._earlier[segment] = last
        self._owners[segment] = owner
        earlier = self._earlier.get(segment)
        if earlier is None:
            return load
        topic = self._catalog.find(segment[0])
        return load.following(earlier, policy_of(topic).cool_down_s) if topic else load

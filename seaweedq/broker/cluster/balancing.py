"""Balancing: the leader moves segments until brokers' loads are about equal, splits hot segments and merges idle ones.

`balancer/placement` and `balancer/scaling` decide in a thread, from the loads that owners report. The owner of a
segment moves it (broker/reshape/segment_mover), or carries out a plan that is written first (broker/reshape/planning).
Nothing here matters for safety, and a move or a plan that fails costs nothing.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from seaweedq.balancer.load import with_unknown
from seaweedq.balancer.placement import Host, Move, SegmentId, TopicId, assign, moves
from seaweedq.balancer.policy import ScalingPolicy
from seaweedq.balancer.scaling import Gather, HotKey, Merge, Plan, Segment, Split, decide
from seaweedq.broker.context import ClusterView
from seaweedq.broker.load import Reports, policy_of, segment_of
from seaweedq.broker.reshape.planning import Planner
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.messages import GiveCall
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.clock import Clock
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.coordination.election import Election
from seaweedq.coordination.roster import Roster
from seaweedq.errors import SeaweedqError, TooManySegments

MOVES = 64  # at most, in each round
GIVERS = 8
TOLERANCE = 0.3
GIVE_S = 30.0  # enough to flush a large tail
SETTLED_S = 30.0  # a moved segment stays where it is for so long
REST = 10  # no further plan for so many times the duration of the last one
logger = logging.getLogger(__name__)
PLANS = 64  # at most, in each round
BREATH = 1_000  # segments between two turns of other tasks
LATER_S = 20.0


class Rebalancer:
    """The leader's rebalancer."""

    def __init__(self, catalog: Catalog, roster: Roster, reports: Reports, peers: Peers, clock: Clock) -> None:
        self._catalog = catalog
        self._roster = roster
        self._reports = reports
        self._peers = peers
        self._clock = clock
        self._moved_s: dict[SegmentId, float] = {}
        self._not_before_s = float("-inf")

    def owned(self) -> dict[SegmentId, str]:
        """Returns the segments of living brokers, with their owners."""
        return {segment: owner for owner in self._roster.brokers for segment in self._catalog.owned_by(owner)}

    async def assign(self, segments: Sequence[SegmentId]) -> dict[SegmentId, str]:
        """Returns an owner for each of these segments that can have one, by the last known loads."""
        hosts = hosts_of(self._roster)
        return await asyncio.to_thread(_assign, segments, self.owned(), self._reports.costs, hosts)

    async def rebalance(self) -> None:
        """Decides on moves, and has them made. A broker that does not report gives nothing and gets nothing."""
        if len(self._roster.brokers) < 2 or self._clock.monotonic_s() < self._not_before_s:
            return
        hosts = [host for host in hosts_of(self._roster) if host.broker in self._reports.answered]
        began_s = self._clock.monotonic_s()
        planned = await asyncio.to_thread(moves, self.owned(), self._reports.costs, hosts, MOVES, TOLERANCE)
        now_s = self._clock.monotonic_s()
        self._not_before_s = now_s + REST * (now_s - began_s)
        self._moved_s = {segment: at for segment, at in self._moved_s.items() if now_s - at < SETTLED_S}
        settled = {host.broker for host in hosts if not host.draining}
        locked = self._catalog.locked()  # a move would undo the plan of a split or merge
        free = [m for m in planned if m.segment not in locked or m.source not in settled]
        due = [m for m in free if m.segment not in self._moved_s or m.source not in settled]
        due = [m for m in due if m.source not in settled or not self._catalog.has_unreadable(*m.segment[:2])]
        await gather_bounded(GIVERS, self.move, due)

    async def move(self, move: Move) -> None:
        """Has one segment moved, which then stays where it is for a while."""
        url = self._roster.url(move.source)
        if url is None:
            return
        topic, incarnation, segment = move.segment
        try:
            request = GiveCall(topic, incarnation, segment, move.target)
            await self._peers.call(url, "give", request, bool, GIVE_S)
            self._moved_s[move.segment] = self._clock.monotonic_s()
        except SeaweedqError as error:
            logger.info("segment %d of topic %s was not moved from broker %s: %s", segment, topic, move.source, error)


def _assign(
    segments: Sequence[SegmentId],
    owned: Mapping[SegmentId, str],
    costs: Mapping[SegmentId, float],
    hosts: Sequence[Host],
) -> dict[SegmentId, str]:
    return assign(segments, owned, with_unknown(costs, chain(segments, owned)), hosts)


def hosts_of(roster: Roster) -> list[Host]:
    """Returns the living brokers."""
    brokers = sorted(roster.brokers)
    known = [roster.brokers[broker].record for broker in brokers]
    return [Host(broker, one.zone, not one.takes_more) for broker, one in zip(brokers, known, strict=True)]


class Autoscaler:
    """The autoscaler. `hot` has the key of each segment whose load comes from one, which no split would help;
    `withheld` counts the plans for which the cluster has too many segments."""

    def __init__(
        self, view: ClusterView, reports: Reports, planner: Planner, rebalancer: Rebalancer, election: Election
    ) -> None:
        self.hot: dict[SegmentId, HotKey] = {}
        self.withheld = 0
        self._catalog = view.catalog
        self._roster = view.roster
        self._reports = reports
        self._planner = planner
        self._rebalancer = rebalancer
        self._election = election
        self._clock = view.clock
        self._told: set[SegmentId] = set()
        self._later: dict[
            SegmentId, float
        ] = {}  # segments that could not be planned, and the time until which they are left alone
        self._not_before_s = float("-inf")

    async def scale(self) -> None:
        """Decides from the last reports, and plans it."""
        if self._clock.monotonic_s() < self._not_before_s:
            return
        began_s = self._clock.monotonic_s()
        segments, policies = await self._segments()
        hosts = [host for host in hosts_of(self._roster) if host.broker in self._reports.answered]
        plans = await asyncio.to_thread(decide, segments, policies, self._reports.costs, hosts, PLANS)
        now_s = self._clock.monotonic_s()
        self._not_before_s = now_s + REST * (now_s - began_s)
        self._tell_hot({plan.segment: plan for plan in plans if isinstance(plan, HotKey)})
        self._later = {segment: at_s for segment, at_s in self._later.items() if at_s > now_s}
        for plan in plans:
            try:
                await self._carry_out(plan)
            except TooManySegments:  # by every round anew, so it is not logged
                self.withheld += 1
            except SeaweedqError as error:
                logger.info(
                    "the leader could not split or merge segments (plan: %s; error: %s), and will try again later",
                    plan,
                    error,
                )
                concerned = (plan.left, plan.right) if isinstance(plan, Merge) else (plan.segment,)
                self._later |= dict.fromkeys(concerned, now_s + LATER_S)

    async def _carry_out(self, plan: Plan) -> None:
        if isinstance(plan, Split) and (topic := self._topic(plan.segment)):
            logger.info(
                "segment %d of topic %s is overloaded; splitting the segment at the key hashes %s",
                plan.segment[2],
                topic.name,
                list(plan.points),
            )
            await self._planner.plan(
                topic, [plan.segment[2]], plan.points, plan.owners, [self._election.leader_compare()]
            )
        elif isinstance(plan, Merge) and (topic := self._topic(plan.left)):
            logger.info(
                "segments %d and %d of topic %s are idle; merging these segments",
                plan.left[2],
                plan.right[2],
                topic.name,
            )
            await self._planner.plan(topic, [plan.left[2], plan.right[2]], compares=[self._election.leader_compare()])
        elif isinstance(plan, Gather):
            await self._rebalancer.move(Move(plan.segment, plan.source, plan.target))

    async def _segments(self) -> tuple[list[Segment], dict[TopicId, ScalingPolicy]]:
        now_us = self._clock.now_us()
        found: list[Segment] = []
        policies: dict[TopicId, ScalingPolicy] = {}
        looked = 0
        for topic in filter(None, map(self._catalog.get, self._catalog.names())):
            if topic.record.state == "deleting":
                continue
            name = (topic.name, topic.record.incarnation)
            policies[name] = policy_of(topic)  # also of a topic that is not scaled: its load counts
            fixed = bool(self._catalog.unreadable_of(topic))
            for number, known in list(self._catalog.records(topic).items()):
                if (record := known.record).state == "open":
                    key = (*name, number)
                    segment = segment_of(key, record, self._reports.loads.get(key), now_us)
                    found.append(replace(segment, locked=True) if fixed or key in self._later else segment)
            looked += len(self._catalog.records(topic))
            if looked >= BREATH:
                looked = 0
                await asyncio.sleep(0)
        return found, policies

    def _topic(self, segment: SegmentId) -> Topic | None:
        topic = self._catalog.get(segment[0])
        return topic if topic and topic.record.incarnation == segment[1] else None

    def _tell_hot(self, hot: dict[SegmentId, HotKey]) -> None:
        """Logs each hot segment once, also if its load comes and goes."""
        self._told = set(filter(self._is_open, self._told))
        for segment, plan in hot.items():
            if segment not in self._told:
                logger.warning(
                    "segment %d of topic %s is overloaded, but is not split, because one key (hash %d) "
                    "causes %d%% of the segment's load",
                    segment[2],
                    segment[0],
                    plan.hash,
                    round(100 * plan.share),
                )
        self._told |= hot.keys()
        self.hot = hot

    def _is_open(self, segment: SegmentId) -> bool:
        topic = self._topic(segment)
        known = self._catalog.records(topic).get(segment[2]) if topic else None
        return known is not None and known.record.state == "open"

"""The key space's history of a topic, wherever it is asked for: the leader has it, and every broker asks the leader."""

import asyncio

import msgspec

from seaweedq.balancer.history import History
from seaweedq.balancer.history_cells import Cell, cells
from seaweedq.broker.load.history_recorder import HistoryRecorder
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.messages import HistoryCall
from seaweedq.broker.topics.cluster_view import ClusterView
from seaweedq.concurrency.deadline import Deadline
from seaweedq.coordination.election import Election
from seaweedq.errors import PeerTooOld, Unavailable

FIND_S, CALL_S, PAUSE_S = 5.0, 5.0, 0.2


class FoundHistory(msgspec.Struct, array_like=True, frozen=True):
    """The cells that the `leader` knows, from `begin_us` to `end_us`: it has recorded all that time."""

    leader: str
    begin_us: int
    end_us: int
    cells: list[Cell]


class Histories:
    """Finds histories at the leader, and answers from what the `recorder` has where this broker leads."""

    def __init__(self, view: ClusterView, election: Election, recorder: HistoryRecorder, peers: Peers) -> None:
        self.recorder = recorder
        self._view = view
        self._election = election
        self._peers = peers

    async def find(self, call: HistoryCall) -> FoundHistory:
        """Returns the history that a call names. Raises Unavailable where no leader answers in time."""
        deadline = Deadline(self._view.clock, FIND_S)
        failure: Unavailable | None = None
        async for _ in deadline.attempts(pause_s=PAUSE_S):
            try:
                return await self._ask(call)
            except PeerTooOld:
                raise
            except Unavailable as error:
                failure = error
        raise failure or Unavailable("no broker leads, so nobody knows the history; try again")

    async def here(self, call: HistoryCall) -> FoundHistory:
        """Returns what this broker has recorded. Raises Unavailable unless it leads and has begun to."""
        history = self.recorder.history
        if not self._election.is_leader or history is None:
            raise Unavailable("the leader has just changed, so the history begins anew; try again")
        return await asyncio.to_thread(_found, self._view.membership.broker, history, call)

    async def _ask(self, call: HistoryCall) -> FoundHistory:
        leader = await self._election.leader()
        if leader == self._view.membership.broker:
            return await self.here(call)
        url = self._view.roster.url(leader)
        if url is None:
            raise Unavailable("no broker leads, so nobody knows the history; try again")
        return await self._peers.call(url, "history", call, FoundHistory, CALL_S)


def _found(leader: str, history: History, call: HistoryCall) -> FoundHistory:
    begin_us, end_us = history.begin_us, history.end_us
    columns = history.of((call.topic, call.incarnation), call.since_us, call.until_us)
    return FoundHistory(leader, begin_us, end_us, cells(columns, call.cells))

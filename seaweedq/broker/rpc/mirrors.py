"""The cluster as mirrored journals see it: the living brokers of the roster, and calls to them (journal/interface)."""

import asyncio
from collections.abc import Mapping, Set

import msgspec

from seaweedq.broker.rpc.client import Peers, is_refused
from seaweedq.coordination.interface import Coordination
from seaweedq.coordination.roster import Roster
from seaweedq.errors import NotOwner, SeaweedqError, Unavailable
from seaweedq.journal.holdings import FenceCall, HeldCall, HoldAnswer, Holdings, HoldState
from seaweedq.journal.interface import FoundHolding, MirrorBroker
from seaweedq.journal.mirroring import FencedHolding

HOLD, FENCE, HELD = "hold", "fence", "held"
"""The names of the calls."""
FENCE_S, HELD_S = 5.0, 30.0
_ANSWER = msgspec.msgpack.Decoder(HoldAnswer)


class ClusterMirrors:
    """The mirrors as the broker at `url`, in `zone`, sees them. What its own process holds it asks without a call."""

    def __init__(
        self, coordination: Coordination, roster: Roster, peers: Peers, holdings: Holdings, url: str, zone: str
    ) -> None:
        self.zone = zone
        self.coordination = coordination
        self._roster = roster
        self._peers = peers
        self._holdings = holdings
        self._url = url

    def brokers(self) -> Mapping[str, MirrorBroker]:
        return {
            broker: MirrorBroker(known.record.zone, known.record.takes_more)
            for broker, known in self._roster.brokers.items()
            if known.record.url != self._url
        }

    async def hold(self, broker: str, data: bytes, timeout_s: float) -> HoldAnswer:
        try:
            answer = await self._peers.post(self._of(broker), HOLD, data, timeout_s)
        except Unavailable as error:
            if not is_refused(error):
                raise
            return HoldAnswer(HoldState.UNKNOWN)  # nobody listens there: the process has ended, and what it held
        try:
            return _ANSWER.decode(answer)
        except msgspec.DecodeError as error:
            raise Unavailable("unexpected response from another broker", inside=str(error)) from error

    async def fence(self, owner: str) -> tuple[list[FoundHolding], list[str]]:
        found = [FoundHolding("", one) for one in self._holdings.fence(owner)]
        silent: list[str] = []

        async def ask(broker: str) -> None:
            try:
                answer = await self._peers.call(self._of(broker), FENCE, FenceCall(owner), list[FencedHolding], FENCE_S)
            except SeaweedqError:
                silent.append(broker)
            else:
                found.extend(FoundHolding(broker, one) for one in answer)

        await asyncio.gather(*map(ask, sorted(self.brokers())))
        return found, silent

    def own(self, owner: str) -> Set[str]:
        return self._holdings.of(owner)

    async def held(self, broker: str, call: HeldCall) -> bytes:
        if not broker:
            return self._holdings.held(call)
        return await self._peers.post(self._of(broker), HELD, msgspec.msgpack.encode(call), HELD_S)

    def _of(self, broker: str) -> str:
        url = self._roster.url(broker)
        if url is None:
            raise NotOwner(f"broker {broker} is gone")
        return url

"""The rules of suspicion: the health of one broker in the eyes of another, and the brokers whose leases end. Pure.

Only a refused connection counts, since the machine's kernel says by it that nobody listens there any more. A time-out
says nothing: the network, or a broker that stands still, may be the reason. And it counts only of a broker that has
answered the reporter before, in this life and at this URL, so that a wrong URL, or a rule of a firewall that was always
there, never does. One reporter may be cut off by its own network, so it takes two if there are two.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from seaweedq.coordination.records import BrokerRecord

REFUSALS = 3
APART_S = 0.2  # between two of them
REPORTERS = 2
HELD_S = 60.0  # a request is held by a broker that lives
EXEMPT_S = 600.0  # a broker is not suspected after its lease was ended while it lived
AGAIN_S, LONGEST_S = 1.0, 30.0


class ProbeOutcome(Enum):
    """The outcome of asking a broker whether it is there."""

    ANSWERED = "it is that broker"
    LEAVES = "it is that broker, and it stops"
    REFUSED = "the connection was refused"
    FAILED = "anything else"


class Stage(Enum):
    """The stages of one broker in the eyes of another."""

    STRANGER = "it has not answered yet"
    KNOWN = "it has answered, and holds a request"
    DOUBTED = "that request has ended"
    SUSPECTED = "it refuses connections"
    LEAVING = "it has said that it stops"


@dataclass(frozen=True, slots=True)
class PeerHealth:
    """One broker's opinion of another, in one life of it at one URL. `failures` counts tries without an answer in a
    row, `refusals` those of them that were refused, since the last one that was not."""

    stage: Stage = Stage.STRANGER
    refusals: int = 0
    failures: int = 0

    def after(self, outcome: ProbeOutcome) -> "PeerHealth":
        """Returns the health after an outcome."""
        if self.stage is Stage.LEAVING or outcome is ProbeOutcome.LEAVES:
            return PeerHealth(Stage.LEAVING)
        if outcome is ProbeOutcome.ANSWERED:
            return PeerHealth(Stage.KNOWN)
        refusals = self.refusals + 1 if outcome is ProbeOutcome.REFUSED else 0
        stage = Stage.DOUBTED if refusals < REFUSALS else Stage.SUSPECTED
        if self.stage is Stage.STRANGER:
            stage, refusals = Stage.STRANGER, 0
        return PeerHealth(stage, refusals, self.failures + 1)

    @property
    def is_suspect(self) -> bool:
        """Whether the broker is reported."""
        return self.stage is Stage.SUSPECTED

    @property
    def holds_s(self) -> float:
        """How long the broker is to hold the next request, so that its end is noticed at once."""
        return HELD_S if self.stage is Stage.KNOWN else 0.0

    @property
    def pause_s(self) -> float:
        """How long to wait before the next request."""
        if self.stage is Stage.SUSPECTED:
            return AGAIN_S
        if self.stage is Stage.STRANGER:
            return min(LONGEST_S, APART_S * 2 ** (self.failures - 1)) if self.failures else 0.0
        if self.stage is Stage.DOUBTED and not self.refusals:
            return min(AGAIN_S, APART_S * (self.failures - 1))
        return APART_S


def may_be_suspected(record: BrokerRecord) -> bool:
    """Tells whether a broker's lease may be ended on suspicion. One that starts or drains may refuse connections while
    it lives, and one that does not say how long its lease is may be of a version that knows no suspicion."""
    return record.lease_s > 0 and not (record.starting or record.draining or record.suspicion_exempt)


def reporters_needed(living: int) -> int:
    """Returns how many reports end a lease if so many brokers have one."""
    return REPORTERS if living > REPORTERS else 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """The broker whose lease is to be ended, and the reporters on whom that rests."""

    broker: str
    reporters: tuple[str, ...]


def suspects(brokers: Mapping[str, BrokerRecord], living: int, reports: Mapping[str, Collection[str]]) -> list[Verdict]:
    """Returns the brokers that enough others report. Reporters that are reported themselves do not count."""
    needed = reporters_needed(living)
    enough = {broker for broker, reporters in reports.items() if len(set(reporters) - {broker}) >= needed}
    found = []
    for broker in sorted(enough & brokers.keys()):
        reporters = sorted(one for one in reports[broker] if one in brokers and one not in enough)
        if len(reporters) >= needed and may_be_suspected(brokers[broker]):
            found.append(Verdict(broker, tuple(reporters[:needed])))
    return found


def revoker_of(verdict: Verdict, leader: str | None) -> str | None:
    """Returns the broker that ends the lease: the leader, and for the leader the living reporter with the least id."""
    return min(verdict.reporters) if verdict.broker == leader else leader

"""SIGTERM in every phase of a broker's life: while it starts, at any place of any protocol, and while it stops."""

from functools import partial
from random import Random
from typing import NamedTuple

from tests.support.chaos.cluster import Cluster, Member, waited
from tests.support.chaos.fault import Begun
from tests.support.chaos.process_faults import PLACES, TAKEOVER_PLACES, TURNS, any_one
from tests.support.chaos.segment_faults import CHANGE_PLACES

STOP_PLACES = ("stop.retire", "stop.remove", "done.put", "done.stored", "stop.removed")
START_S = 4.0  # on a machine with nothing else to do a broker is ready before
GONE_S = 30.0
OVERDUE = "the broker did not stop in time"
KILLED = -15  # by the signal, before there was a handler


class Phase(NamedTuple):
    """When the signal comes: at a place, by the broker itself, or so long after its start."""

    place: str
    after_s: float


def phase(rng: Random) -> Phase:
    """Half of them any time of a start, the others between two steps. Pure."""
    if rng.random() < 0.5:
        return Phase("", rng.uniform(0, START_S))
    place = rng.choice((*PLACES, *TAKEOVER_PLACES, *CHANGE_PLACES, *STOP_PLACES))
    return Phase(f"{place}:{rng.choice(TURNS)}:term", 2 * START_S)


def end_in_a_phase(cluster: Cluster, rng: Random) -> Begun | None:
    """A broker begins anew, and is told to end; it is gone in time, whatever it was about to do."""
    found = any_one(cluster, rng)
    if not found:
        return None
    member, wanted = found[0], phase(rng)
    member.kill()
    member.process.start(wait=False, env={"SEAWEEDQ_FAIL_AT": wanted.place})
    waited(lambda: not member.process.alive, wanted.after_s)
    ended_by_itself = not member.process.alive
    if not ended_by_itself:
        member.tell_to_stop()
    end(member)
    hit = f"{member.name} at {wanted.place if ended_by_itself else 'any time'}"
    return Begun(member.revive, hit)


def drain(cluster: Cluster, rng: Random) -> Begun | None:
    """SIGTERM, one broker after the other; each is back before the next goes. One that still begins just dies of it."""
    members = [member for member in cluster.working if member.process.ready()]
    for member in members:
        member.tell_to_stop()
        end(member)
        member.revive()
        waited(member.process.ready, 30)
    return Begun(lambda: None, " ".join(member.name for member in members)) if members else None


def end(member: Member) -> None:
    """Wait for the end of a broker that was told to stop; one that another fault has stopped goes on. Fails where it
    does not end, or not well: a stop that is out of time says so."""
    member.killed = True  # nobody starts it again meanwhile
    assert waited(partial(_gone, member), GONE_S), f"{member.name} was not gone in {GONE_S:g} s"
    status = member.process.wait_gone()
    last = member.process.log.rsplit("--- start,", 1)[-1]
    assert status in (0, KILLED) or OVERDUE in last, f"{member.name} ended with {status}"


def _gone(member: Member) -> bool:
    if member.state() == "T":
        member.resume()
    return not member.process.alive

"""What can be done to segments while all else happens: they are split, merged, rolled and moved by force; and a broker
dies, or stands still, amid it."""

import threading
from collections.abc import Sequence
from random import Random
from typing import Any

import httpx

from tests.support.chaos.cluster import Cluster, Member, waited
from tests.support.chaos.fault import Begun
from tests.support.chaos.process_faults import any_one, go_on
from tests.support.history.load import TOPIC

KINDS = ("split", "merge", "roll", "move")
CHANGE_PLACES = (
    *("plan.write", "reshape.flushed", "reshape.commit", "reshape.committed"),
    *("reshape.held", "reshape.sealed", "reshape.replaced"),
)
LEAST, MOST = 2, 16  # open segments
GAP_S = (0.0, 1.5)
CALL_S = 5.0  # whatever becomes of the change, it goes on
KNOWN = (200, 202, 409, 503)
Wanted = tuple[int, str, dict[str, Any]]  # segment, what is to be done with it, and how


class Changes(threading.Thread):
    """One change after the other, of a kind of `kinds`, until it is stopped; if somebody is given, of its segments,
    and asked of it."""

    def __init__(self, cluster: Cluster, kinds: Sequence[str], rng: Random, owner: Member | None = None) -> None:
        super().__init__(name="changes", daemon=True)
        self.stopped = threading.Event()
        self.answers = 0
        self._cluster = cluster
        self._kinds = kinds
        self._rng = rng
        self._owner = owner
        self._http = httpx.Client(timeout=CALL_S, trust_env=False)

    def run(self) -> None:
        with self._http:
            while not self.stopped.wait(self._rng.uniform(*GAP_S)):
                if working := [self._owner] if self._owner else self._cluster.working:
                    self._change(self._rng.choice(working))

    def _change(self, member: Member) -> None:
        segments = f"{member.process.url}/v1/topics/{TOPIC}/segments"
        try:
            shown = self._http.get(segments)
            if shown.status_code != 200:
                return
            found = sorted((s for s in shown.json()["segments"] if s["state"] == "open"), key=lambda s: s["low"])
            wanted = self._draw(found)
            if wanted is None:
                return
            number, kind, body = wanted
            answer = self._http.post(f"{segments}/{number}/{kind}", json=body)
        except httpx.TransportError:
            return
        self.answers += answer.status_code == 200
        if answer.status_code not in KNOWN and (answer.status_code, kind) != (422, "move"):  # its target may be gone
            self._cluster.strange.append(f"{kind} of {number}, {body}: {answer.status_code} {answer.text[:300]}")

    def _draw(self, found: Sequence[dict[str, Any]]) -> Wanted | None:
        """Of the open segments in the order of their ranges; None where there is none for it."""
        kind = self._rng.choice(self._kinds)
        mine = [at for at, one in enumerate(found) if self._owner is None or one["owner"] == self._owner.id]
        if not mine and found and self._owner:
            return self._rng.choice(found)["id"], "move", {"to": self._owner.id}
        if not mine:
            return None
        at = self._rng.choice(mine)
        one = found[at]
        if kind == "split" and len(found) < MOST and one["high"] - one["low"] > 1:
            body = (
                {"parts": 3} if self._rng.random() < 0.3 else {"at": [self._rng.randrange(one["low"] + 1, one["high"])]}
            )
            return one["id"], kind, body
        if kind == "merge" and len(found) > LEAST:
            return one["id"], kind, {"with": found[at + 1 if at + 1 < len(found) else at - 1]["id"]}
        if kind == "move" and (working := self._cluster.working):
            return one["id"], kind, {"to": self._rng.choice(working).id}
        return (one["id"], "roll", {}) if kind == "roll" else None


def change(kinds: Sequence[str], cluster: Cluster, rng: Random) -> Begun | None:
    """Changes of these kinds for as long as it lasts."""
    changes = _begun(cluster, kinds, rng)
    return Begun(changes.stopped.set, ", ".join(kinds))


def amid_a_change(how: str, cluster: Cluster, rng: Random) -> Begun | None:
    """A broker that dies, or stops itself and goes on past its lease, between two steps of a change of its segments."""
    found = any_one(cluster, rng)
    if not found:
        return None
    place, member = f"{rng.choice(CHANGE_PLACES)}:{rng.choice((1, 1, 2))}:{how}", found[0]
    member.kill()
    member.process.start(wait=False, env={"SEAWEEDQ_FAIL_AT": place})
    waited(lambda: member.state() in ("T", "") or member.process.ready(), 30)
    changes = _begun(cluster, KINDS[:3], rng, member)
    reached = waited(lambda: member.state() in ("T", ""), 5 + 2 * cluster.lease_s)
    changes.stopped.set()
    return Begun(lambda: go_on(member), f"{member.name} at {place if reached else 'no place'}")


def _begun(cluster: Cluster, kinds: Sequence[str], rng: Random, owner: Member | None = None) -> Changes:
    changes = Changes(cluster, kinds, Random(rng.getrandbits(32)), owner)
    cluster.changes.append(changes)
    changes.start()
    return changes

"""One run of chaos: a cluster, a fleet, a nemesis, then everything heals, all is read, and the history is judged."""

import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.support.chaos.cluster import Cluster, waited
from tests.support.chaos.etcd_faults import slow_etcd
from tests.support.chaos.fault import Fault
from tests.support.chaos.faults import ALL, LIES
from tests.support.chaos.figures import calls, failovers
from tests.support.chaos.leaks import QUIET_S, leaked, look
from tests.support.chaos.nemesis import Nemesis, plan
from tests.support.chaos.starvation import Starvation
from tests.support.chaos_clients.fleet import Fleet, Lister, subscribe_all, subscriptions_of
from tests.support.chaos_clients.roaming import SAID
from tests.support.history.checker import Run, Violation, check
from tests.support.history.final_read import dead_letters, flush, over_http, segments
from tests.support.history.history import Event, History, Type
from tests.support.history.load import create
from tests.support.history.reading_rules import HEAL_S

SWITCH_S = 0.0005
ENDED = "is no longer a member of the cluster"
SETTLE_S = 2 * HEAL_S
SETTLE_POLL_S = 0.2
MOST_STARVED_S = 600.0  # a machine that is busier than that shows nothing
TRACE = re.compile(r"Traceback \(most recent call last\):\n(?:[ |]* .*\n)*?[ |]*([\w.]+(?:: .*)?)\n")


@dataclass(frozen=True)
class Report:
    """What came of a run: its violations, the faults that were done, the history; `changes` of segments were answered
    200."""

    seed: int
    seconds: float
    violations: Sequence[Violation]
    done: Sequence[str]
    events: Sequence[Event]
    waits: Mapping[str, Sequence[float]] = field(default_factory=dict)
    changes: int = 0
    late_s: float = 0.0  # by how much the proxies of etcd and peers were late at worst


@dataclass(frozen=True)
class Options:
    """How a run is: its seed, how long faults happen, how many brokers, which faults, over which store."""

    seed: int
    seconds: float
    brokers: int = 3
    lease_s: float = 3.0
    faults: Sequence[Fault] = ALL
    store: str = "moto"
    clients: Sequence[str] = ()  # of fleet.OTHERS, beside the usual ones
    etcds: int = 1
    journal: str = "object"  # files are on small disks
    one_life: bool = False  # etcd is slow throughout, and no broker may lose its life for it


def run(options: Options, folder: Path, watch: Callable[[float, Nemesis], None] = lambda at, nemesis: None) -> Report:
    """Do it. `folder` gets the history (`history.jsonl`), and the brokers' logs and data.

    Proxies share this process with some twenty clients, for whose turns they must not wait long.
    """
    sys.setswitchinterval(SWITCH_S)
    with (
        History(folder / "history.jsonl") as history,
        Cluster(
            folder,
            random.Random(options.seed),
            options.brokers,
            options.lease_s,
            options.store,
            etcds=options.etcds,
            journal=options.journal,
        ) as cluster,
    ):
        create(cluster.urls[0], segments=2 * options.brokers)
        subscribe_all(cluster.urls[0], options.clients)
        nemesis = Nemesis(cluster, history, plan(options.seed, options.seconds, options.lease_s, options.faults))
        lister = Lister(cluster.reader())
        fleet = Fleet(cluster.urls, history, options.seed, others=options.clients)
        lister.start()
        if options.one_life:
            slow_etcd(cluster, random.Random(options.seed))
        with fleet:
            nemesis.run(options.seconds, lambda at: watch(at, nemesis))
            late_s = cluster.proxies.late_s()
            heal(cluster, fleet, history)
            fleet.give_up()
        lister.wait()
        broken = [Violation("fault", text) for text in (*nemesis.broken, *cluster.strange)]
        harmless = {fault.name for fault in options.faults if fault.harmless}
        found = judge(cluster, history, lister, harmless, options.clients)
        fleet.look_at_last()
        lied = any(name in LIES for name in nemesis.done)
        strange = [each for each in fleet.strange if not (lied and each.rule == SAID)]
        found += [*strange, *broken, *complaints(cluster), *left(cluster)]
        found += ended_lives(cluster) if options.one_life else []
        changes = sum(each.answers for each in cluster.changes)
    waits = failovers(history.events)
    return Report(options.seed, options.seconds, found, nemesis.done, history.events, waits, changes, late_s)


def heal(cluster: Cluster, fleet: Fleet, history: History) -> None:
    """End all faults, and wait for all brokers, whose start takes what the machine allows; from then on publishers end
    after some more messages, and the subscriptions come to their ends."""
    cluster.heal()
    with suppress(AssertionError):  # the last read says so
        cluster.wait_healed()
    call = history.invoke("nemesis", "heal", [{}])
    healed, starved = time.monotonic(), Starvation(cluster)
    names = {publisher.name for publisher in fleet.publishers}

    def settled(happened: Callable[[], bool]) -> bool:
        end = healed + SETTLE_S
        while not happened():
            if time.monotonic() > end + min(starved.seconds(), MOST_STARVED_S):
                return False
            time.sleep(SETTLE_POLL_S)
        return True

    settled(lambda: names <= _answered(history, healed))
    fleet.settle_down()
    settled(lambda: not any(each.is_alive() for each in fleet.sources))
    fleet.give_up()
    fleet.forget_lag()
    outcome: Type = "ok" if settled(lambda: fleet.lag() == 0) else "info"
    history.told("nemesis", "heal", outcome, call, [{"wait_s": starved.seconds()}])


def judge(
    cluster: Cluster, history: History, lister: Lister, harmless: Collection[str], clients: Sequence[str] = ()
) -> list[Violation]:
    """All that the checker finds, over the last reads; an end that can not be read is a violation too."""
    if not waited(lambda: not cluster.locked(), SETTLE_S):
        return [
            Violation("change", f"segments {cluster.locked()} are still locked, {SETTLE_S:g} s after all was healed")
        ]
    try:
        cluster.wait_healed()
        flush(cluster.urls[0])
        shown = segments(cluster.urls[0])
        reads = {url: over_http(url) for url in cluster.urls}
        files = cluster.reader().at_last()
        terms = subscriptions_of(clients)
        topics = [one.dead_letter_topic for one in terms.values() if one.dead_letter_topic]
        letters = [letter for topic in topics for letter in dead_letters(cluster.urls[0], topic)]
    except (httpx.HTTPError, AssertionError, OSError) as error:
        return [Violation("last read", repr(error))]
    first, *others = reads
    at_others = {url: reads[url] for url in others}
    events = [*history.events]  # subscribers go on
    return check(Run(events, reads[first], files, lister.listings, at_others, shown, harmless, terms, letters))


def left(cluster: Cluster) -> list[Violation]:
    """What belongs to nobody, some time after the last request."""
    try:
        waited(lambda: not any(leaked(look(cluster))), QUIET_S)
        return [Violation("leak", text) for text in leaked(look(cluster))]
    except (httpx.HTTPError, OSError) as error:
        return [Violation("leak", repr(error))]


def complaints(cluster: Cluster) -> list[Violation]:
    """What the tracebacks end with that stand in the brokers' logs: none may."""
    return [
        Violation("log", f"{name}: {count} tracebacks of {ending[:200]}")
        for name, log in cluster.logs().items()
        for ending, count in Counter(TRACE.findall(log)).items()
    ]


def ended_lives(cluster: Cluster) -> list[Violation]:
    """What brokers say where a life of theirs ends."""
    logs = cluster.logs().items()
    return [Violation("life", f"{name}: {line}") for name, log in logs for line in log.splitlines() if ENDED in line]


def summary(report: Report) -> str:
    """The figures, one a line."""
    counted = calls(report.events)
    lines = [f"{op:8} {outcome:5} {count:8,}" for (op, outcome), count in sorted(counted.items())]
    return "\n".join([*lines, f"change   ok    {report.changes:8,}", f"proxies late by {report.late_s:.3f} s at most"])


def _answered(history: History, since: float) -> set[str]:
    """The producers that were answered since then; the history grows at its end."""
    found = set()
    for event in reversed(history.events[:]):
        if event.t < since:
            break
        if event.op == "publish" and event.type == "ok":
            found.add(event.proc)
    return found

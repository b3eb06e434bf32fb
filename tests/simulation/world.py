"""A simulated run: a cluster, its clients and its faults by a plan, and its end.

At the end all is healed. Within a simulated minute every publish is answered, every subscription has no lag, and every
broker is ready; everything that was acknowledged is there once, under its id, in order, and every open segment has an
owner. Then all brokers leave in peace, and nothing is left of them but what is stored.
"""

import asyncio
import gc
import hashlib
import json
import logging
import random
import re
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seaweedq.errors import SeaweedqError
from seaweedq.settings import Settings
from tests.simulation import knobs
from tests.simulation.clients import TOPIC, Client, Observer, Publisher, Reader, Reshaper, Story
from tests.simulation.cluster import Cluster
from tests.simulation.consumers import DELAY_S, SOUGHT, STREAMED, Consumer, Listener, Seeker, Subscribed, Tail, failing
from tests.simulation.faults import Faults
from tests.simulation.judging import (
    HEAL_S,
    Reading,
    alone,
    as_segments,
    first_again,
    held,
    left,
    mixed,
    stray,
    unsound,
)
from tests.simulation.loop import LivesLoop
from tests.simulation.losses import Losses, without
from tests.simulation.network import Refused
from tests.simulation.plan import BROKERS, UNPROMISED, Plan
from tests.simulation.returns import Operator
from tests.simulation.typed import TYPED, Changer, TypedConsumer, TypedImports, TypedPublisher
from tests.simulation.users import WORKED, Deletions, Imports, Payloads, Producer, Retention, User, Worker
from tests.support.brokers import inside
from tests.support.history.checker import check
from tests.support.history.history import Row
from tests.support.history.judged import LOST_JOURNAL, RETURNS, Run
from tests.support.history.terms import Terms

QUIET_S = 25.0
DAMAGE = re.compile(r"are missing|would be lost|damage|gap or an overlap|have other")
GONE_BACK = re.compile(r"lost or restored|was restored|is empty")
OTHERS: dict[str, tuple[Terms | None, tuple[tuple[type[Client], float, dict[str, Any]], ...]]] = {
    "producer": (None, ((Producer, 2.0, {}),)),
    "worker": (WORKED, ((Worker, 1.0, {}),)),
    "seeks": (SOUGHT, ((Consumer, 1.0, {"terms": SOUGHT}), (Consumer, 1.0, {"terms": SOUGHT}), (Seeker, 5.0, {}))),
    "streams": (STREAMED, ((Listener, 1.0, {}), (Listener, 1.0, {"is_socket": True}))),
    "tail": (None, ((Tail, 1.0, {}),)),
    "payloads": (None, ((Payloads, 5.0, {}),)),
    "imports": (None, ((Imports, 8.0, {}),)),
    "deletions": (None, ((Deletions, 3.0, {}),)),
    "retention": (None, ((Retention, 2.0, {}),)),
    "typed": (
        None,
        (
            *((Changer, 4.0, {}), (Changer, 8.0, {}), (TypedImports, 8.0, {}), (TypedConsumer, 1.0, {})),
            *((TypedPublisher, 1.0, {"behind": behind, "pins": pins}) for behind in (0, 1) for pins in (False, True)),
            (Reshaper, 15.0, {"topic": TYPED}),
        ),
    ),
}
"""Clients beside the usual ones: the terms of their subscription; their kinds, each with how seldom it acts."""


@dataclass
class Outcome:
    """What a run came to. `wrong` is empty for a good one."""

    plan: Plan
    wrong: list[str] = field(default_factory=list)
    digest: str = ""
    reached: dict[str, int] = field(default_factory=dict)  # fail points
    faults: dict[str, int] = field(default_factory=dict)  # that took effect
    came: tuple[int, ...] = ()  # the same, by their place in the plan
    acknowledged: int = 0
    slowest_s: float = 0.0  # of the publishes that were acknowledged
    unknown: int = 0  # publishes whose outcome their clients do not know
    delivered: int = 0
    starts: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    requests: dict[str, int] = field(default_factory=dict)
    loud: list[str] = field(default_factory=list)  # what brokers told an operator of as errors
    timeline: list[str] = field(default_factory=list)


class Endless(SystemExit):
    """A run has no end: only such an error leaves any task."""


class Errors(logging.Handler):
    """The errors that brokers log: what an operator is told of, and exceptions that nothing foresaw."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []
        self.unforeseen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.name}: {record.getMessage()}"
        if record.exc_info and record.exc_info[1]:
            self.unforeseen.append(f"{text}: {record.exc_info[1]!r}")
        else:
            self.told.append(text)

    def of_damage(self, plan: Plan) -> list[str]:
        """Those that no promised fault of the plan brings."""
        goes_back = any(fault.kind in RETURNS for fault in plan.faults)
        return [text for text in self.told if DAMAGE.search(text) or (not goes_back and GONE_BACK.search(text))]


class World:
    """What a run consists of."""

    def __init__(self, plan: Plan, loop: LivesLoop, folder: Path) -> None:
        self.plan = plan
        self.loop = loop
        settings = {"journal": plan.journal, "brokers": 1, **knobs.settings_of(plan.knobs)}
        budget_bytes = plan.knobs.get(knobs.BUDGET, 0)
        self.cluster = Cluster(loop, plan.seed, folder, settings, plan.machines, budget_bytes)
        self.story = Story(loop)
        self.losses = Losses(self.cluster)
        self.operator = Operator(
            self.cluster.network, self.cluster.processes, self.cluster.failures, self.losses.unknown
        )
        self.faults = Faults(self.cluster, self.story, self.operator, self.losses)
        goes_back = any(fault.kind in (*RETURNS, LOST_JOURNAL) for fault in plan.faults)  # then a message may die twice
        self.terms = {mode: Terms(mode, 2, DELAY_S) if goes_back else failing(mode) for mode in plan.consumers}
        self.clients: list[Client] = [
            self.made(Publisher, f"p{n}", idempotent=n % 3 != 2) for n in range(plan.publishers)
        ]
        for mode, terms in self.terms.items():
            names = [f"c-{mode}-{n}" for n in range(plan.crew)]
            self.clients += [self.made(Consumer, name, subscription=mode, terms=terms) for name in names]
        self.clients += [self.made(Reader, f"r{n}", 2.0) for n in range(plan.readers)]
        if plan.reshapes:
            self.clients.append(self.made(Reshaper, "reshaper", 20.0))
        for name in plan.others:
            subscribed, kinds = OTHERS[name]
            if subscribed:
                self.terms[name] = subscribed
            for n, (kind, slower, more) in enumerate(kinds):
                more = {**more, "subscription": name} if issubclass(kind, Subscribed | Worker) else more
                if kind is Retention:
                    more = {"ages": not any(fault.kind == "clock" for fault in plan.faults)}
                self.clients.append(self.made(kind, f"{name}-{n}", slower, **more))
        self.observers: list[Observer] = [
            self.made(Observer, f"o-{name}", 4.0, subscription=name) for name in self.terms
        ]
        self.clients += self.observers
        self.admin: Client = self.made(Client, "admin")
        self.reading = Reading(self.admin, self.cluster)
        self.files: list[Row] = []  # the rows of the topic's files, when all was judged

    def made(self, kind: type[Any], name: str, slower: float = 1.0, **more: Any) -> Any:
        """A client."""
        urls = [f"http://b{number}" for number in range(BROKERS)]
        pause_s = slower / self.plan.calls_per_s
        return kind(name, self.cluster.network, self.story, self.plan.seed, urls, pause_s, **more)

    async def run(self) -> Outcome:
        """The whole run, and its judgement."""
        cluster = self.cluster
        with cluster.living():
            for number in range(BROKERS):
                cluster.begin(number)
            await self.until(lambda: len(cluster.ready) == BROKERS, "the brokers do not start")
            await self.make_topic()
            tasks = {asyncio.create_task(client.run(), name=client.name): client for client in self.clients}
            self.faults.begin(self.plan.faults)
            await asyncio.sleep(self.plan.length_s)
            wrong = await self.settle(tasks)
            if not wrong:
                wrong = await self.judge()
            self.operator.end()
            if not wrong:
                wrong = await self.end()
        return self.outcome(wrong + cluster.failures + self.loop.errors + self.loop.unseen())

    async def make_topic(self) -> None:
        """The topic and its subscriptions."""
        flush = {"flush": {"max_age_s": 2, "max_bytes": 65_536}} if self.plan.seed % 2 else {}
        await self.put("", {"initial_segments": 2, **flush})
        for name, terms in self.terms.items():
            await self.put(f"/subscriptions/{name}", terms.settings)

    async def put(self, path: str, body: dict[str, Any]) -> None:
        """Makes something, whatever it takes."""
        for _ in range(200):
            try:
                if await self.admin.ask("PUT", path, json.dumps(body)) is not None:
                    return
            except Refused:
                await asyncio.sleep(0.2)
        raise AssertionError(f"PUT {path} is never answered")

    async def until(self, holds: Callable[[], bool], message: str, end_s: float | None = None) -> None:
        """Waits in simulated time, by default for HEAL_S."""
        end_s = end_s or self.loop.time() + HEAL_S
        while not holds():
            assert self.loop.time() < end_s, message
            await asyncio.sleep(0.05)

    # the end

    async def settle(self, tasks: dict[asyncio.Task[None], Client]) -> list[str]:
        """Heals all, and has sources be answered and subscriptions come to their ends, within HEAL_S together."""
        self.faults.heal()
        call, end_s = self.story.invoke("nemesis", "heal", [{}]), self.loop.time() + HEAL_S
        for client in self.clients:
            client.settling = True
            client.stopping = client.is_source
        wrong: list[str] = []
        sources = [task for task, client in tasks.items() if client.is_source]
        if sources:
            await asyncio.wait(sources, timeout=HEAL_S)
        for observer in self.observers:
            observer.lag = -1
        try:
            await self.until(lambda: all(one.lag == 0 for one in self.observers), "the lag is not zero", end_s)
            self.story.told("nemesis", "heal", "ok", call, [{}])
            await self.until(lambda: len(self.cluster.ready) == BROKERS, "not all brokers are ready", end_s)
            await self.until(lambda: not self.cluster.orphans, "journals of dead brokers are not removed", end_s)
        except AssertionError as error:
            lags = {observer.subscription: observer.lag for observer in self.observers}
            ready = [process.life.name for process in self.cluster.ready]
            wrong.append(f"{error} {HEAL_S:g} s after all was healed; lags {lags}, ready {ready}")
        for task, client in tasks.items():
            client.stopping = True
            if task in sources and not task.done():
                wrong.append(f"{client.name} had no answer within {HEAL_S:g} s after all was healed")
        if tasks:
            await asyncio.wait(tasks, timeout=end_s - self.loop.time())
        for task, client in tasks.items():
            if not task.done():
                wrong.append(f"{client.name} does not end")
                task.cancel()
            elif task.exception():
                wrong.append(f"{client.name}: {task.exception()!r}")
        await asyncio.gather(*tasks, return_exceptions=True)
        return wrong

    async def judge(self) -> list[str]:
        """What is wrong with the history, with what is read at last, and with what clients find."""
        segments = await self.reading.segments()
        ready = {process.broker.id for process in self.cluster.ready if process.broker}
        if strangers := [one["id"] for one in segments if one["state"] == "open" and one.get("owner") not in ready]:
            return [f"no ready broker owns the segments {strangers}"]
        rows = await self.reading.rows()
        letters = await self.reading.letters(
            [one.dead_letter_topic for one in self.terms.values() if one.dead_letter_topic]
        )
        await self.reading.insist("POST", "/flush")  # everything acknowledged is in files after it
        files = self.files = self.reading.in_files()
        lease_s = float(self.plan.knobs.get("lease_s", Settings.model_fields["lease_s"].default))
        run = Run(
            self.story.events,
            rows,
            files,
            segments=as_segments(segments),
            terms=self.terms,
            letters=letters,
            lease_s=lease_s,
        )
        wrong = [*self.losses.wrong(run)]
        if not self.losses.accepted:
            tails = [client for client in self.clients if isinstance(client, Tail)]
            wrong += [f"{tail.name}: {at} is above the end of a segment" for tail in tails for at in tail.above]
        else:
            exposure_s = float(
                self.plan.knobs.get("journal_exposure_s", Settings.model_fields["journal_exposure_s"].default)
            )
            run.lapses = self.losses.lapses(run, exposure_s)
            run = without(run, self.losses.may_be_gone(run, exposure_s))
        excused = {"live"}  # `settle` has its own bound
        if knobs.WINDOW in self.plan.knobs:
            excused.add("nothing_there")  # what is beyond the window is
        wrong += [f"{each.rule}: {each.text}" for each in check(run) if each.rule not in excused]
        wrong += [f"first again: {text}" for text in first_again(run)]
        wrong += [f"alone: {text}" for text in alone(run)]
        for user in [client for client in self.clients if isinstance(client, User)]:
            try:
                await user.at_last()
            except SeaweedqError as error:
                user.strange.append(f"cannot look at last: {error!r}")
            await user.close()
            wrong += [f"{user.name}: {text}" for text in user.strange]
        return wrong + [f"versions: {text}" for text in mixed(self.cluster)]

    async def end(self) -> list[str]:
        """Everybody leaves in peace; what is wrong with what is left."""
        await self.sweep()
        wrong: list[str] = []
        for found, within_s in ((held, QUIET_S), (stray, HEAL_S)):
            end_s = self.loop.time() + within_s
            while (wrong_here := [*found(self.cluster)]) and self.loop.time() < end_s:
                await asyncio.sleep(0.5)
            wrong += wrong_here
        for process in self.cluster.processes.values():
            process.leaving.set()
        processes = self.cluster.processes.values()
        try:
            await self.until(lambda: all(process.ended for process in processes), "not all brokers have left")
        except AssertionError as error:
            return [*wrong, str(error)]
        wrong += left(self.cluster)
        if gone := Counter(self.files) - Counter(self.reading.in_files()):  # a late publish may have added some
            wrong.append(f"{gone.total()} rows of {TOPIC} were in files, and have gone while brokers left")
        try:
            await self.cluster.coordination.records.close()  # which checks invariants, and the states that are drawn
        except AssertionError as error:
            wrong.append(f"invariant: {error}")
        return wrong

    async def sweep(self) -> None:
        """Has a broker do as the leader does each hour: a late put of a creation that failed is gone then."""
        for process in self.cluster.ready[:1]:
            assert process.broker
            await process.life.start(inside.topic_admin(process.broker).sweep())

    def outcome(self, wrong: list[str]) -> Outcome:
        """What there is to tell."""
        told = repr(self.story.events) + repr(self.cluster.coordination.records.history).replace(
            str(self.cluster.folder), "folder"
        )
        publishes = [event for event in self.story.events if event.op == "publish"]
        begun_s = {event.call: event.t for event in publishes if event.type == "invoke"}
        return Outcome(
            self.plan,
            wrong,
            hashlib.sha256(told.encode()).hexdigest(),
            dict(sorted(self.cluster.reached.items())),
            dict(sorted(self.faults.counts.items())),
            tuple(at for at, fault in enumerate(self.plan.faults) if fault in self.faults.came),
            sum(1 for event in publishes if event.type == "ok"),
            max((event.t - begun_s[event.call] for event in publishes if event.type == "ok"), default=0.0),
            len({event.call for event in publishes if event.type == "info"}),
            sum(1 for event in self.story.events if event.op == "deliver" and event.type == "ok"),
            self.cluster.starts,
            self.loop.time(),
            requests={**self.cluster.store.counts, "http": self.cluster.network.count},
            timeline=self.cluster.timeline,
        )


def simulate(plan: Plan, log: bool = False) -> Outcome:
    """Runs a plan, in this thread, with the garbage collection off: run many in processes of their own."""
    began_s = time.process_time()
    gc.disable()
    gc.freeze()  # no collection looks at what was there before
    random.seed(plan.seed)  # of which the Python client's pauses are drawn
    loop, errors, logger = LivesLoop(plan.seed), Errors(), logging.getLogger("seaweedq")
    logger.propagate = log
    logger.setLevel(logging.INFO if log else logging.ERROR)
    logger.addHandler(errors)
    with tempfile.TemporaryDirectory() as folder, knobs.turned(plan.knobs):
        asyncio.set_event_loop(None)
        world = World(plan, loop, Path(folder))
        try:
            outcome = loop.run_until_complete(world.run())
        except (Exception, Endless) as error:  # one of the judge's own is told with its seed, too
            place = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{error!r}, in {place.name} ({Path(place.filename).name}:{place.lineno})"
            outcome = world.outcome([text, *world.cluster.failures, *loop.errors])
        is_unpromised = any(fault.kind in UNPROMISED for fault in plan.faults)
        damage: list[str] = []
        if not outcome.wrong or is_unpromised:
            damage = [*unsound(world.cluster, Path(folder) / "store")]
            outcome.wrong += damage
    logger.removeHandler(errors)
    broken = world.cluster.network.broken
    if is_unpromised:
        ends = [text for text in world.cluster.failures if DAMAGE.search(text)]  # of processes
        outcome.loud = [*errors.of_damage(plan), *dict.fromkeys(broken), *outcome.wrong]
        if errors.of_damage(plan) or broken or damage or ends:
            outcome.wrong = []
    else:
        outcome.wrong += [*broken, *errors.unforeseen]
    outcome.cpu_s = time.process_time() - began_s
    return outcome

"""A simulated run: a cluster, its clients and its faults by a plan, and what is judged at its end.

At the end all is healed: within a simulated minute everything that was acknowledged is there once, under its id, in
order; every subscription has no lag, every segment has an owner, and every broker is ready.
"""

import asyncio
import gc
import hashlib
import io
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.records import RevocationRecord
from seaweedq.coordination.versioned import Versioned
from tests.simulation.backends import Trouble
from tests.simulation.clients import TOPIC, Client, Consumer, Observer, Publisher, Reader, Reshaper, Story, WrongAnswer
from tests.simulation.cluster import Cluster, Process
from tests.simulation.loop import LivesLoop
from tests.simulation.network import Refused, Weather
from tests.simulation.plan import BROKERS, Fault, Plan
from tests.simulation.returns import Operator
from tests.support.brokers import inside
from tests.support.history import reading_rules
from tests.support.history.checker import check
from tests.support.history.history import Row, row
from tests.support.history.judged import RETURNS, Run, Segment
from tests.support.history.terms import Terms

HEAL_S = 60.0
COLUMNS = ["_offset", "_key", "value"]


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
    delivered: int = 0
    starts: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    requests: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "plan": self.plan.to_json()})


class Endless(SystemExit):
    """A run has no end: only such an error leaves any task."""


class World:
    """What a run consists of."""

    def __init__(self, plan: Plan, loop: LivesLoop, folder: Path) -> None:
        self.plan = plan
        self.loop = loop
        settings = {"journal": plan.journal, "brokers": 1, **plan.knobs}
        self.cluster = Cluster(loop, plan.seed, folder, settings)
        self.story = Story(loop)
        self.operator = Operator(self.cluster.network, self.cluster.processes, self.cluster.failures)
        self.faults: dict[str, int] = {}
        self.came: set[Fault] = set()
        urls = [f"http://b{number}" for number in range(BROKERS)]
        pause_s = 1 / plan.calls_per_s

        def made(kind: type[Any], name: str, slower: float = 1.0, **more: Any) -> Any:
            return kind(name, self.cluster.network, self.story, plan.seed, urls, pause_s * slower, **more)

        self.publishers: list[Publisher] = [
            made(Publisher, f"p{n}", idempotent=n % 3 != 2) for n in range(plan.publishers)
        ]
        self.terms = {mode: Terms(mode, ack_deadline_s=2) for mode in plan.consumers}
        self.consumers: list[Consumer] = [
            made(Consumer, f"c-{mode}", terms=self.terms[mode]) for mode in plan.consumers
        ]
        self.observers: list[Observer] = [
            made(Observer, f"o-{mode}", slower=4, subscription=mode) for mode in plan.consumers
        ]
        others: list[Client] = [made(Reader, f"r{n}", slower=2) for n in range(plan.readers)]
        if plan.reshapes:
            others.append(made(Reshaper, "reshaper", slower=60))
        self.others = others
        self.admin: Client = made(Client, "admin")

    async def run(self) -> Outcome:
        """The whole run, and its judgement."""
        cluster = self.cluster
        with cluster.living():
            for number in range(BROKERS):
                cluster.begin(number)
            await self.until(lambda: len(cluster.ready) == BROKERS, "the brokers do not start")
            await self.make_topic()
            everybody = [*self.publishers, *self.consumers, *self.observers, *self.others]
            tasks = {asyncio.create_task(client.run(), name=client.name): client for client in everybody}
            began_s = self.loop.time()
            nemesis = [self.loop.outside.start(self.commit(fault, began_s)) for fault in self.plan.faults]
            await asyncio.sleep(self.plan.length_s)
            wrong = await self.settle(tasks, nemesis)
            if not wrong:
                wrong = await self.judge()
            self.operator.end()
        return self.outcome(wrong + cluster.failures + self.loop.errors)

    async def make_topic(self) -> None:
        """The topic and its subscriptions."""
        await self.put("", {"initial_segments": 2, "flush": {"max_age_s": 2, "max_bytes": 65_536}})
        for mode, terms in self.terms.items():
            await self.put(f"/subscriptions/{mode}", terms.settings)

    async def put(self, path: str, body: dict[str, Any]) -> None:
        """Makes something, whatever it takes."""
        for _ in range(200):
            found = await self.patient("PUT", path, json.dumps(body))
            if found is not None:
                return
        raise AssertionError(f"PUT {path} is never answered")

    async def patient(self, method: str, path: str, content: str = "") -> Any:
        """An answer, or None."""
        try:
            return await self.admin.ask(method, path, content)
        except Refused:
            await asyncio.sleep(0.2)
            return None

    async def until(self, holds: Callable[[], bool], message: str, within_s: float = HEAL_S) -> None:
        """Waits in simulated time."""
        end_s = self.loop.time() + within_s
        while not holds():
            assert self.loop.time() < end_s, message
            await asyncio.sleep(0.05)

    # faults

    async def commit(self, fault: Fault, began_s: float) -> None:
        """Has a fault come, and go."""
        await asyncio.sleep(max(0.0, began_s + fault.at_s - self.loop.time()))
        if not fault.place:
            await self.hit(fault, fault.broker)
            return
        come: asyncio.Future[int] = self.loop.create_future()
        left = fault.turn
        planted = [fault.broker] if fault.broker >= 0 else list(range(BROKERS))

        def reached(number: int) -> None:
            nonlocal left
            left -= 1
            if left == 0 and not come.done():
                come.set_result(number)
                for each in planted:
                    self.cluster.planted.pop((each, fault.place), None)
                self.strike(fault, number)

        for number in planted:
            self.cluster.planted.setdefault((number, fault.place), lambda number=number: reached(number))
        hit = await come
        await self.hit(fault, hit)

    def strike(self, fault: Fault, number: int) -> None:
        """What has to happen at the very step at which a fail point is reached."""
        life = self.cluster.processes[number].life
        if fault.kind == "kill":
            life.die()
        elif fault.kind == "pause":
            life.pause()

    async def hit(self, fault: Fault, number: int) -> None:
        """Does it, waits, and takes it back."""
        self.faults[fault.kind] = self.faults.get(fault.kind, 0) + 1
        self.came.add(fault)
        call = self.story.invoke("nemesis", "fault", [{"note": fault.kind, "broker": f"b{number}"}])
        undo = self.begin(fault, self.cluster.processes[number])
        await asyncio.sleep(fault.for_s)
        undo()
        self.story.told("nemesis", "fault", "ok", call, [{"note": fault.kind, "broker": f"b{number}"}])

    def begin(self, fault: Fault, process: Process) -> Callable[[], None]:
        """Begins a fault; what takes it back."""
        cluster, kind, amount = self.cluster, fault.kind, fault.amount
        weather, store, coordination = cluster.network.weather, cluster.store.trouble, cluster.coordination.trouble
        others = [f"http://b{n}" for n in range(BROKERS) if n != process.number]
        if kind == "kill":
            process.life.die()
            return lambda: self.again(process.number)
        if kind in ("pause", "stall", "mute"):
            parts = [part for part in (process.life, process.renewing) if part]
            stands = {"pause": parts, "stall": parts[:1], "mute": parts[1:]}[kind]
            for part in stands:
                part.pause()
            return lambda: [part.go_on() for part in stands] and None
        if kind in ("cut", "cut one way"):
            pairs = {(process.url, other) for other in others}
            if kind == "cut":
                pairs |= {(other, process.url) for other in others}
            weather.cut |= pairs
            return lambda: weather.cut.difference_update(pairs)
        if kind in ("cut from coordination", "outlawed"):
            reached = process.coordination
            assert reached
            reached.is_cut = True
            if kind == "outlawed":
                self.end_lease(process)
            return reached.join
        if kind == "lease":
            self.end_lease(process)
            return _nothing
        if kind in RETURNS:
            return self.operator.begin(kind, cluster.coordination.records)
        if kind == "clock":
            process.clock.wrong_us += int((amount - 0.5) * 240e6)
            return _nothing
        changes: dict[str, tuple[Any, dict[str, Any]]] = {
            "loss": (weather, {"loses": 0.3 * amount, "forgets": 0.3 * amount}),
            "late calls": (weather, {"delays": 0.3 * amount}),
            "repeats": (weather, {"repeats": 0.5 * amount}),
            "slow store": (store, {"slow_s": 2 * amount}),
            "late puts": (store, {"defers": 0.5 * amount}),
            "lost puts": (store, {"forgets": 0.5 * amount, "refuses": 0.3 * amount}),
            "store away": (store, {"away": True}),
            "coordination away": (coordination, {"away": True}),
            "late transactions": (coordination, {"defers": 0.3 * amount, "late_s": 15.0}),
            "lost transactions": (coordination, {"forgets": 0.3 * amount, "refuses": 0.2 * amount}),
            "slow coordination": (coordination, {"slow_s": amount}),
            "watches": (coordination, {"breaks": 0.5 * amount}),
        }
        of, changed = changes[kind]
        before = type(of)()
        for name, value in changed.items():
            setattr(of, name, value)
        return lambda: [setattr(of, name, getattr(before, name)) for name in changed] and None

    def end_lease(self, process: Process) -> None:
        """Ends a broker's lease as others do who suspect it (broker/cluster/revoker): its revocation comes before."""
        if process.is_ready and process.broker:
            membership, server = inside.membership(process.broker), self.cluster.coordination
            lease_s = process.broker.process.settings.lease_s
            record = keys.REVOCATIONS.encode(Versioned.new(RevocationRecord("", (), lease_s)))
            server.engine.commit([], [Put(keys.REVOCATIONS.key(membership.broker), record)])
            server.engine.revoke(membership.lease)
            server.changed()

    def again(self, number: int) -> None:
        """Starts a process that has died, unless it has begun again."""
        if self.cluster.processes[number].life.is_dead:
            self.cluster.begin(number)

    def heal(self, nemesis: Sequence[asyncio.Task[None]]) -> None:
        """Ends all faults."""
        for task in nemesis:
            task.cancel()
        self.cluster.planted.clear()
        self.cluster.network.weather = Weather()
        self.cluster.store.trouble = Trouble()
        self.cluster.coordination.trouble = Trouble()
        for number, process in self.cluster.processes.items():
            if process.life.is_dead:
                self.cluster.begin(number)
            for part in filter(None, (process.life, process.renewing)):
                part.go_on()
            if process.coordination:
                process.coordination.join()

    # the end

    async def settle(self, tasks: dict[asyncio.Task[None], Client], nemesis: Sequence[asyncio.Task[None]]) -> list[str]:
        """Heals all, and has publishers be answered and subscriptions come to their ends."""
        self.heal(nemesis)
        call = self.story.invoke("nemesis", "heal", [{}])
        for publisher in self.publishers:
            publisher.stopping = True
        wrong: list[str] = []
        writing = [task for task, client in tasks.items() if isinstance(client, Publisher)]
        await asyncio.wait(writing, timeout=HEAL_S)
        for observer in self.observers:
            observer.lag = -1
        try:
            await self.until(lambda: all(one.lag == 0 for one in self.observers), "the lag is not zero")
            self.story.told("nemesis", "heal", "ok", call, [{"wait_s": HEAL_S - reading_rules.HEAL_S}])
            await self.until(lambda: len(self.cluster.ready) == BROKERS, "not all brokers are ready")
        except AssertionError as error:
            lags = {observer.subscription: observer.lag for observer in self.observers}
            ready = [process.life.name for process in self.cluster.ready]
            wrong.append(f"{error} {HEAL_S:g} s after all was healed; lags {lags}, ready {ready}")
        for task, client in tasks.items():
            client.stopping = True
            if task.done() and task.exception():
                wrong.append(f"{client.name}: {task.exception()!r}")
            elif task in writing and not task.done():
                wrong.append(f"{client.name} had no answer within {HEAL_S:g} s after all was healed")
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return wrong

    async def judge(self) -> list[str]:
        """What is wrong with the history and with what is read at last."""
        segments = await self.read_segments()
        if open_ones := [one["id"] for one in segments if one["state"] == "open" and not one.get("owner")]:
            return [f"nobody owns the segments {open_ones}"]
        rows = [row for one in segments for row in await self.read(one["id"])]
        await self.put_flush()
        found = {
            one["id"]: Segment(
                *(one["low"], one["high"], tuple(one["predecessors"]), tuple(one["successors"])),
                one["end_offset"] if one["state"] == "sealed" else None,
            )
            for one in segments
        }
        run = Run(self.story.events, rows, self.in_files(), segments=found, terms=self.terms)
        wrong = [
            f"{each.rule}: {each.text}" for each in check(run) if each.rule != "live"
        ]  # `settle` has its own bound
        try:
            await self.cluster.coordination.records.close()  # which checks invariants, and the states that are drawn
        except AssertionError as error:
            wrong.append(f"invariant: {error}")
        return wrong

    async def read_segments(self) -> list[dict[str, Any]]:
        """All segments, as soon as they can be read."""
        return [*(await self.insist("GET", "/segments"))["segments"]]

    async def insist(self, method: str, path: str, content: str = "") -> Any:
        """An answer, within HEAL_S."""
        end_s = self.loop.time() + HEAL_S
        while (found := await self.patient(method, path, content)) is None:
            assert self.loop.time() < end_s, f"{method} {path} is not answered"
        return found

    async def read(self, segment: int) -> list[Row]:
        """The messages of a segment."""
        rows: list[Row] = []
        offset = 0
        while True:
            page = await self.insist("GET", f"/segments/{segment}/messages?offset={offset}&limit=2000")
            rows += [row(segment, int(m["id"].split("-")[1]), m["key"], m["value"]) for m in page["messages"]]
            if not page["messages"]:
                return rows
            offset = page["next_offset"]

    async def put_flush(self) -> None:
        """Everything acknowledged is in files after it."""
        await self.insist("POST", "/flush")

    def in_files(self) -> list[Row]:
        """The rows of the topic's files."""
        rows: list[Row] = []
        for name, data in sorted(self.cluster.store.memory.objects.items()):
            if name.startswith(f"topics/{TOPIC}/") and name.endswith(".parquet"):
                table = pq.read_table(io.BytesIO(data), columns=COLUMNS)
                segment = int(name.split("segment=")[1].split("/")[0])
                rows += [row(segment, r["_offset"], r["_key"], json.loads(r["value"])) for r in table.to_pylist()]
        return rows

    def outcome(self, wrong: list[str]) -> Outcome:
        """What there is to tell."""
        told = repr(self.story.events) + repr(self.cluster.coordination.records.history).replace(
            str(self.cluster.folder), "folder"
        )
        return Outcome(
            self.plan,
            wrong,
            hashlib.sha256(told.encode()).hexdigest(),
            dict(sorted(self.cluster.reached.items())),
            dict(sorted(self.faults.items())),
            tuple(at for at, fault in enumerate(self.plan.faults) if fault in self.came),
            sum(1 for event in self.story.events if event.op == "publish" and event.type == "ok"),
            sum(1 for event in self.story.events if event.op == "deliver" and event.type == "ok"),
            self.cluster.starts,
            self.loop.time(),
            requests={**self.cluster.store.counts, "http": self.cluster.network.count},
        )


def _nothing() -> None:
    pass


def simulate(plan: Plan) -> Outcome:
    """Runs a plan, in this thread. Dead lives stay in memory: run many in processes of their own."""
    began_s = time.process_time()
    gc.disable()
    loop = LivesLoop(plan.seed)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.set_event_loop(None)
        try:
            world = World(plan, loop, Path(folder))
            outcome = loop.run_until_complete(world.run())
        except (AssertionError, WrongAnswer, Endless) as error:
            outcome = world.outcome([repr(error), *world.cluster.failures, *loop.errors])
    outcome.cpu_s = time.process_time() - began_s
    return outcome

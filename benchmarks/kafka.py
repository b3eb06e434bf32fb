"""Kafka and seaweedq in one run, in turns: keyed messages of 100 bytes of one Python program, until they are
acknowledged and until they are in Parquet; what a message costs all processes; and one publish after another.

Kafka has librdkafka and one consumer that writes Parquet with pyarrow; it acknowledges from the page cache. seaweedq
has an fsync before each answer, or over MinIO a put of the store; its broker writes the Parquet. The store's own CPU is
not counted.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from uuid import uuid4

import msgspec

from benchmarks import cluster_processes, kafka_server, server
from benchmarks.kafka_programs import PARTITIONS, Took
from benchmarks.metrics import metrics_of
from benchmarks.processes import started
from benchmarks.result import Result
from seaweedq import Client
from seaweedq.cli.server.journals import CHARGED_PER_S
from seaweedq.journal.pacing import BURST

ROUNDS, MESSAGES = 3, 1_000_000
BUDGETS = (0, round(CHARGED_PER_S))  # puts a second: that of stores which do not charge, and the default where they do


@dataclass(frozen=True)
class Round:
    """Messages a second until acknowledged and until in Parquet, µs of CPU a message, milliseconds of one alone."""

    acknowledged: float
    in_parquet: float
    cpu_us: float
    alone_ms: float = 0


@dataclass(frozen=True)
class OnS3:
    """A broker on S3, with its budget of puts a second."""

    where: str
    url: str
    budget: int

    def said(self) -> str:
        """Returns how many puts there were, and whether that is beyond the burst, which costs no wait."""
        puts = metrics_of(self.url)["seaweedq_journal_puts_total"]
        beyond = f"{'beyond' if puts > BURST else 'all within'} the burst of {BURST:,}"
        return f"; {puts:,.0f} puts of all rounds{f', {beyond}' if self.budget else ''}"


Way = Callable[[], Round]


class Program:
    """A program of `kafka_programs` that is ready to begin."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._line()

    def begin(self) -> None:
        """Lets it begin."""
        assert self._process.stdin
        self._process.stdin.write("on\n")
        self._process.stdin.flush()

    def ended(self) -> Took:
        """Waits for its end."""
        return msgspec.json.decode(self._line(), type=Took)

    def _line(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a program ended before its time, with status {self._process.wait()}")
        return line


@contextmanager
def program(name: str, address: str, topic: str, *more: str) -> Iterator[Program]:
    """A program, killed afterwards: a consumer may wait for ever for what a producer that failed did not send."""
    command = [sys.executable, "-m", "benchmarks.kafka_programs", name, address, topic, str(MESSAGES), *more]
    with started(command, environment=kafka_server.environment(), stdin=subprocess.PIPE) as process:
        yield Program(process)


def measure(folder: Path) -> Iterator[Result]:
    """A round of each in turn; what is not here is said, and the others are measured."""
    with ExitStack() as stack:
        on_s3: list[OnS3] = []
        ways = dict(_ways(stack, folder, on_s3))
        found: dict[str, list[Round]] = {name: [] for name in ways}
        for number in range(ROUNDS):
            for name, way in ways.items() if number % 2 == 0 else reversed(ways.items()):
                found[name].append(way())
                print(f"\n  round {number + 1}, {name}: {found[name][-1]}", end="", file=sys.stderr, flush=True)
        said = {one.where: one.said() for one in on_s3}
        for name, rounds in found.items():
            yield from _results(name, rounds, next((text for where, text in said.items() if name.endswith(where)), ""))
        for one in on_s3:
            if one.budget:
                yield _beyond_the_burst(one)


def _ways(stack: ExitStack, folder: Path, on_s3: "list[OnS3]") -> Iterator[tuple[str, Way]]:
    if why := kafka_server.missing():
        print(f"{why}: without Kafka ...", end=" ", file=sys.stderr)
    else:
        node = stack.enter_context(kafka_server.kafka(folder / "kafka"))
        yield "Kafka and a consumer", lambda: _kafka(node, folder)
    broker = stack.enter_context(server.broker(folder / "seaweedq"))
    yield from _both_ways("", f"http://127.0.0.1:{broker.port}", broker.cpu_s)
    if (binary := cluster_processes.minio()) is None:
        print("no minio binary: `make minio` builds it ...", end=" ", file=sys.stderr)
        return
    for budget in BUDGETS:
        at = folder / f"budget-{budget}"
        at.mkdir()
        options = ["--journal-puts-per-s", str(budget)]
        cluster = stack.enter_context(cluster_processes.Cluster(at, 1, binary, options=options))
        (one,) = cluster.brokers
        on_s3.append(OnS3(f" on S3, {budget} puts/s", one.url, budget))
        yield from _both_ways(on_s3[-1].where, one.url, lambda one=one: one.cpu_s)


def _both_ways(where: str, url: str, cpu_s: Callable[[], float]) -> Iterator[tuple[str, Way]]:
    for program in ("send", "send_table"):
        yield f"{program}(){where}", lambda name=f"seaweedq_{program}": _seaweedq(url, cpu_s, name)


def _kafka(node: server.Server, folder: Path) -> Round:
    topic, address, file = f"t{uuid4().hex}", f"127.0.0.1:{node.port}", folder / f"{uuid4().hex}.parquet"
    _create(address, topic)
    consuming = program("kafka_parquet", address, topic, str(file))
    with consuming as consumer, program("kafka_produce", address, topic) as producer:
        begun_s, cpu_s = time.monotonic(), node.cpu_s()
        consumer.begin()
        producer.begin()
        sent, written = producer.ended(), consumer.ended()
        cpu_s = node.cpu_s() - cpu_s + sent.cpu_s + written.cpu_s
    alone = _alone("kafka_alone", address, topic)
    return Round(MESSAGES / sent.took_s, MESSAGES / (written.ended_s - begun_s), cpu_s * 1e6 / MESSAGES, alone)


def _create(address: str, topic: str) -> None:
    program = (
        "import sys; from confluent_kafka.admin import AdminClient, NewTopic; "
        "admin = AdminClient({'bootstrap.servers': sys.argv[1]}); "
        "[made.result() for made in admin.create_topics([NewTopic(sys.argv[2], int(sys.argv[3]), 1)]).values()]"
    )
    command = [sys.executable, "-c", program, address, topic, str(PARTITIONS)]
    subprocess.run(command, check=True, env=kafka_server.environment())


def _seaweedq(url: str, broker_cpu_s: Callable[[], float], name: str) -> Round:
    topic = f"t{uuid4().hex}"
    with Client(url) as client:
        client.create_topic(topic, format="bytes", initial_segments=PARTITIONS)
        with program(name, url, topic) as producer:
            begun_s, cpu_s = time.monotonic(), broker_cpu_s()
            producer.begin()
            sent = producer.ended()
            client.flush(topic)
            ended_s = time.monotonic()
            cpu_s = broker_cpu_s() - cpu_s + sent.cpu_s
        client.create_topic(f"{topic}-alone")
        alone = _alone("seaweedq_alone", url, f"{topic}-alone") if name.endswith("send") else 0
    return Round(MESSAGES / sent.took_s, MESSAGES / (ended_s - begun_s), cpu_s * 1e6 / MESSAGES, alone)


def _alone(name: str, address: str, topic: str) -> float:
    with program(name, address, topic) as one:
        one.begin()
        return median(one.ended().each_s) * 1000


def _beyond_the_burst(one: OnS3) -> Result:
    topic = f"t{uuid4().hex}"
    with Client(one.url) as client:
        client.create_topic(topic)
    return Result(
        name=f"send(){one.where}, one after another beyond the burst",
        figure=_alone("seaweedq_beyond_the_burst", one.url, topic),
        unit="ms (p50)",
        limit=1000 / one.budget,
        limit_is="the pace of the budget",
        better="lower",
        note=f"after {BURST:,} others{one.said()}",
    )


def _results(name: str, rounds: Sequence[Round], more: str) -> Iterator[Result]:
    note = f"{MESSAGES:,} messages, {PARTITIONS} partitions or segments, {os.cpu_count()} cores; best of {len(rounds)}"
    note += more
    rates = {"acknowledged": [one.acknowledged for one in rounds], "in Parquet": [one.in_parquet for one in rounds]}
    for what, values in rates.items():
        yield Result(name=f"{name}, {what}", figure=max(values), unit="messages/s", note=note)
    yield Result(
        name=f"{name}, CPU", figure=min(one.cpu_us for one in rounds), unit="µs/msg", better="lower", note=note
    )
    if alone := [one.alone_ms for one in rounds if one.alone_ms]:
        yield Result(name=f"{name}, one after another", figure=min(alone), unit="ms (p50)", better="lower", note=note)

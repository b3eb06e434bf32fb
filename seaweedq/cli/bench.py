"""`seaweedq bench`: measures a broker's throughput and latency. Values contain the time they were sent, so that
delivery can be timed.

An interrupt stops the threads. They are daemons, so that a thread that still waits for a broker does not keep the
process alive."""

import math
import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer

from seaweedq.cli.child_process import Broker, ending_on_signals, free_port
from seaweedq.cli.limits import Limit, Look, limits, look, verdict
from seaweedq.cli.shared.common import DEFAULT_URL, Url, complain, connect, duration, one_line, say
from seaweedq.cli.shared.common import size as sized
from seaweedq.cli.shared.output import JSON, TABLE, Output, columns, say_json, say_table
from seaweedq.client import Client, Message
from seaweedq.client.sync.producer import Receipt
from seaweedq.errors import SeaweedqError
from seaweedq.extras import needs

# What a value holds beside its padding.
_OVERHEAD = 40
_IDLE_S = 2.0
_STOP_S = 0.5  # for the last acknowledgements, once an interrupt has come


@dataclass(frozen=True)
class Load:
    """The load: numbers of threads, value size in bytes, when to stop, and messages/s per producer (0: no limit)."""

    producers: int
    consumers: int
    size: int
    messages: int | None
    seconds: float
    rate: float

    @property
    def sampled_every(self) -> int:
        """Returns how many messages pass between two timed ones. At full speed, timing every message would dominate the
        work."""
        return 1 if self.rate else 16


class Figures(msgspec.Struct, frozen=True):
    """One row of the result. A latency is the time from `send` to the acknowledgement, or to the delivery."""

    what: str
    messages: int
    seconds: float
    messages_per_s: float
    mb_per_s: float
    p50_ms: float
    p99_ms: float


@dataclass
class _Sample:
    """The measurements of one thread so far: the number of messages, the first and last time, and sampled latencies in
    seconds."""

    messages: int = 0
    began_s: float = 0.0
    ended_s: float = 0.0
    latencies_s: list[float] = field(default_factory=list)


class _Worker(threading.Thread):
    """A thread that publishes or consumes, and its sample."""

    def __init__(self, work: Callable[[_Sample], None]) -> None:
        super().__init__(daemon=True)
        self.sample = _Sample()
        self.failure: BaseException | None = None
        self._work = work
        self.start()

    def run(self) -> None:
        """Runs the work, and stores the error that ended it."""
        try:
            self._work(self.sample)
        except BaseException as error:
            self.failure = error


class Result(NamedTuple):
    """The result of a bench: a row for publishing and one for delivery, the share of each resource that the run used
    (or why the shares are unknown), and whether the run was interrupted."""

    figures: list[Figures]
    used: list[Limit]
    unknown: str
    interrupted: bool


def run(url: str, load: Load) -> Result:
    """Publishes to a temporary topic, consumes from it, and deletes it. Measures the resources before and after."""
    topic = f"bench-{os.urandom(4).hex()}"
    with connect(url) as client:
        client.create_topic(topic)
        try:
            before, unknown = _look(url)
            figures, interrupted = _measure(client, topic, load)
            after, unknown = _look(url) if before and not interrupted else (None, unknown)
        finally:
            client.delete_topic(topic)
    seconds = max(row.seconds for row in figures)
    used = limits(before, after, seconds) if before and after and seconds else []
    return Result(figures, used, unknown, interrupted)


def _look(url: str) -> tuple[Look | None, str]:
    try:
        return look(url), ""
    except SeaweedqError as error:
        return None, one_line(error)


def _measure(client: Client, topic: str, load: Load) -> tuple[list[Figures], bool]:
    stop = threading.Event()
    streams = [client.subscribe(topic, f"bench-{n}", "earliest", _IDLE_S) for n in range(load.consumers)]
    pulls = [_Worker(partial(_consume, stream, load.sampled_every, stop)) for stream in streams]
    sends = [_Worker(partial(_produce, client, topic, load, stop)) for _ in range(load.producers)]
    interrupted = _is_interrupted([*sends, *pulls], stop)
    rows = [_figures("publish", [one.sample for one in sends], load.size)]
    return [*rows, *([_figures("pull, ack", [one.sample for one in pulls], load.size)] if pulls else [])], interrupted


def _is_interrupted(workers: Sequence[_Worker], stop: threading.Event) -> bool:
    """Waits for the workers. Returns whether an interrupt came first. Raises the error of a failed worker."""
    try:
        for worker in workers:
            worker.join()
            if worker.failure:
                raise worker.failure
        return False
    except KeyboardInterrupt:
        return True
    finally:
        stop.set()
        until_s = time.monotonic() + _STOP_S
        for worker in workers:
            worker.join(max(0.0, until_s - time.monotonic()))


def _produce(client: Client, topic: str, load: Load, stop: threading.Event, sample: _Sample) -> None:
    most = -(-load.messages // load.producers) if load.messages else None
    pad, waiting = "x" * max(1, load.size - _OVERHEAD), deque[tuple[float, int, Receipt]]()
    sample.began_s = next_s = time.perf_counter()
    count = 0
    with client.producer(topic) as producer:
        while count != most and (now_s := time.perf_counter()) < sample.began_s + load.seconds and not stop.is_set():
            receipt = producer.send({"sent_s": now_s, "pad": pad})
            count += 1
            if (count - 1) % load.sampled_every == 0:
                waiting.append((now_s, count, receipt))
            next_s += 1 / load.rate if load.rate else 0
            _record_latencies(waiting, sample, next_s)
            stop.wait(max(0.0, next_s - time.perf_counter()))
        _record_latencies(waiting, sample, None)
        producer.flush()
    sample.messages, sample.ended_s = count, time.perf_counter()


def _record_latencies(waiting: "deque[tuple[float, int, Receipt]]", sample: _Sample, until_s: float | None) -> None:
    """Records acknowledged messages, and waits for more until `until`; None waits for all of them."""
    while waiting:
        sent_s, number, receipt = waiting[0]
        try:
            receipt.exception(None if until_s is None else max(0.0, until_s - time.perf_counter()))
        except TimeoutError:
            return
        sample.messages, sample.ended_s = number, time.perf_counter()
        sample.latencies_s.append(sample.ended_s - sent_s)
        waiting.popleft()


def _consume(messages: Iterator[Message], sampled_every: int, stop: threading.Event, sample: _Sample) -> None:
    for message in messages:
        sample.ended_s = time.perf_counter()
        sample.began_s = sample.began_s or sample.ended_s
        sample.messages += 1
        if sample.messages % sampled_every == 0:
            sample.latencies_s.append(sample.ended_s - message.value["sent_s"])
        message.ack()
        if stop.is_set():
            return


def _figures(what: str, samples: list[_Sample], size: int) -> Figures:
    messages = sum(sample.messages for sample in samples)
    seconds = max(s.ended_s for s in samples) - min((s.began_s for s in samples if s.messages), default=0.0)
    latencies = sorted(latency for sample in samples for latency in sample.latencies_s)
    per_s = messages / seconds if seconds > 0 else 0.0
    p50, p99 = percentile(latencies, 0.5), percentile(latencies, 0.99)
    return Figures(what, messages, seconds, per_s, per_s * size / 1e6, p50 * 1e3, p99 * 1e3)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Returns the nearest-rank quantile of sorted values: `share` of them do not exceed it. Returns 0 if there are
    none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


EXAMPLES = """Examples: seaweedq bench --embedded · seaweedq bench --messages 1000000 --size 1000 --producers 2 ·
seaweedq bench --embedded --rate 1000 --seconds 10 -o json"""

INTERRUPTED = 130
_NUMBERS = "messages, seconds, messages/s, MB/s, p50 ms, p99 ms"
_HEAD = columns(f"what, {_NUMBERS}", numbers=_NUMBERS)
_USED = columns("limit, share, measured", numbers="share")


def bench(
    embedded: Annotated[
        bool,
        typer.Option(
            "--embedded", help="Measure a new broker with a temporary data folder, instead of the brokers at --url."
        ),
    ] = False,
    producers: Annotated[int, typer.Option(min=1, max=64, help="Number of threads that publish messages.")] = 1,
    consumers: Annotated[
        int,
        typer.Option(
            min=0, max=64, help="Number of threads that pull and ack messages, each with its own subscription."
        ),
    ] = 1,
    size: Annotated[int, sized("Size of each published value.", 1, 1_000_000)] = 100,
    messages: Annotated[int | None, typer.Option(min=1, help="Stop publishing after this number of messages.")] = None,
    seconds: Annotated[float, duration("Stop publishing after this time.", 0.1)] = 10,
    rate: Annotated[
        float,
        typer.Option(
            min=0, help="Maximum number of messages that each producer publishes per second; 0 means no limit."
        ),
    ] = 0,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Measure the rates at which brokers accept and deliver messages on a temporary topic, and show the resource
    that limits these rates."""
    load = Load(producers, consumers, size, messages, seconds, rate)
    with ExitStack() as stack:
        stack.enter_context(ending_on_signals())
        if embedded:
            with needs("server", "seaweedq bench --embedded"):
                import uvicorn  # noqa: F401
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="seaweedq-bench-")))
            broker = stack.enter_context(Broker(scratch / "data", free_port(), scratch / "broker.log"))
            broker.start()
            url = broker.url
        result = run(url, load)
    if output == JSON:
        for row in result.figures:
            say_json(row)
        if result.used:
            say_json({"what": "limits", "limits": result.used, "verdict": _verdict(result, load)})
    else:
        say_table(output, _HEAD, map(_row, result.figures))
        if not result.interrupted:
            _say_used(result, load, output)
    if result.interrupted:
        complain("interrupted: the figures cover the messages acknowledged until then")
        raise typer.Exit(INTERRUPTED)


def _say_used(result: Result, load: Load, output: str) -> None:
    if not result.used:
        complain(f"cannot tell what limits the bench: {result.unknown}")
        return
    say()
    say_table(output, _USED, ((one.limit, f"{one.share:.0%}", one.measured) for one in result.used))
    say(_verdict(result, load))


def _verdict(result: Result, load: Load) -> str:
    rate = load.rate * load.producers
    return verdict(result.used, is_rate_kept=bool(rate) and result.figures[0].messages_per_s > 0.9 * rate)


def _row(row: Figures) -> tuple[str, ...]:
    return (
        row.what, f"{row.messages:,}", f"{row.seconds:.2f}", f"{row.messages_per_s:,.0f}", f"{row.mb_per_s:.1f}",
        f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}",
    )  # fmt: skip

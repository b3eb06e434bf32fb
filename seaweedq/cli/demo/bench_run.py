"""The bench's threads and figures. Values contain the time they were sent, so that delivery can be timed."""

import math
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from seaweedq.client import Client, Message
from seaweedq.client.sync.receipts import Receipt

# What a value holds beside its padding.
_OVERHEAD = 40
_IDLE_S = 2.0


@dataclass(frozen=True)
class Load:
    """The load of a bench: threads, value size in bytes, bounds, and messages/s of each producer (0: no limit)."""

    producers: int
    consumers: int
    size: int
    messages: int | None
    seconds: float
    rate: float

    @property
    def sampled_every(self) -> int:
        """Returns the interval of timed messages: at full speed timing each one would be most of the work."""
        return 1 if self.rate else 16


class Figures(msgspec.Struct, frozen=True):
    """One row of the result. Latencies run from `send` to the acknowledgement, or to the delivery."""

    what: str
    messages: int
    seconds: float
    messages_per_s: float
    mb_per_s: float
    p50_ms: float
    p99_ms: float


@dataclass
class _Sample:
    """The observations of one thread: messages, first and last time, and some latencies, in seconds."""

    messages: int
    began_s: float
    ended_s: float
    latencies_s: list[float]


def run(url: str, load: Load) -> list[Figures]:
    """Publishes to and consumes from a topic of its own, which is deleted afterwards. Returns a row for each
    direction."""
    topic = f"bench-{os.urandom(4).hex()}"
    with Client(url) as client:
        client.create_topic(topic)
        try:
            return _measure(client, topic, load)
        finally:
            client.delete_topic(topic)


def _measure(client: Client, topic: str, load: Load) -> list[Figures]:
    streams = [client.subscribe(topic, f"bench-{n}", "earliest", _IDLE_S) for n in range(load.consumers)]
    with ThreadPoolExecutor(load.producers + load.consumers) as pool:
        pulls = [pool.submit(_consume, stream, load.sampled_every) for stream in streams]
        sends = [pool.submit(_produce, client, topic, load) for _ in range(load.producers)]
        published, pulled = [send.result() for send in sends], [pull.result() for pull in pulls]
    rows = [_figures("publish", published, load.size)]
    return [*rows, _figures("pull, ack", pulled, load.size)] if pulled else rows


def _produce(client: Client, topic: str, load: Load) -> _Sample:
    most = -(-load.messages // load.producers) if load.messages else None
    pad, waiting, latencies = "x" * max(1, load.size - _OVERHEAD), deque[tuple[float, Receipt]](), list[float]()
    began_s = next_s = time.perf_counter()
    count = 0
    with client.producer(topic) as producer:
        while count != most and (now_s := time.perf_counter()) < began_s + load.seconds:
            receipt = producer.send({"sent_s": now_s, "pad": pad})
            if count % load.sampled_every == 0:
                waiting.append((now_s, receipt))
            count += 1
            next_s += 1 / load.rate if load.rate else 0
            _settle(waiting, latencies, next_s if load.rate else 0)
        producer.flush()
        _settle(waiting, latencies, 0)
    return _Sample(count, began_s, time.perf_counter(), latencies)


def _settle(waiting: "deque[tuple[float, Receipt]]", latencies: list[float], until_s: float) -> None:
    """Records the latencies of acknowledged messages; with time left before `until_s`, waits for the next ones."""
    while waiting:
        sent_s, receipt = waiting[0]
        try:
            receipt.exception(max(0.0, until_s - time.perf_counter()))
        except TimeoutError:
            return
        latencies.append(time.perf_counter() - sent_s)
        waiting.popleft()
    time.sleep(max(0.0, until_s - time.perf_counter()))


def _consume(messages: Iterator[Message], sampled_every: int) -> _Sample:
    began_s = ended_s = 0.0
    latencies: list[float] = []
    count = 0
    for count, message in enumerate(messages, 1):
        ended_s = time.perf_counter()
        began_s = began_s or ended_s
        if count % sampled_every == 0:
            latencies.append(ended_s - message.value["sent_s"])
        message.ack()
    return _Sample(count, began_s, ended_s, latencies)


def _figures(what: str, samples: list[_Sample], size: int) -> Figures:
    messages = sum(sample.messages for sample in samples)
    seconds = max(s.ended_s for s in samples) - min((s.began_s for s in samples if s.messages), default=0.0)
    latencies = sorted(latency for sample in samples for latency in sample.latencies_s)
    per_s = messages / seconds if seconds > 0 else 0.0
    p50, p99 = percentile(latencies, 0.5), percentile(latencies, 0.99)
    return Figures(what, messages, seconds, per_s, per_s * size / 1e6, p50 * 1e3, p99 * 1e3)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Returns the value that `share` of the ordered ones do not exceed (nearest rank); 0 for none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0

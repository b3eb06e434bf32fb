"""The same publishes at the owner, and at a broker that has to send them on: single messages, and Arrow batches; by the
port for clients, and by ports for brokers, which have TLS."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import messages
from benchmarks.cluster_processes import Cluster
from benchmarks.http import NDJSON, per_s, request, run
from benchmarks.result import Result
from seaweedq import Client

ROUNDS, SINGLES, CONNECTIONS = 3, 3_000, 128
BATCHES, BATCH_CONNECTIONS = 30, 4


def measure(folder: Path) -> Iterator[Result]:
    """Owner and other take turns; the best round of each."""
    for way, peer_ports in (("forwarding", False), ("forwarding by peer_port", True)):
        (inside := folder / way.replace(" ", "-")).mkdir()
        yield from _measure(inside, way, peer_ports)


def _measure(folder: Path, way: str, peer_ports: bool) -> Iterator[Result]:
    singles = [
        request("/v1/topics/singles/messages", b'{"key":"key-%d","value":{"n":%d}}' % (n, n), NDJSON)
        for n in range(SINGLES)
    ]
    batches = [messages.arrow_request("batches", batch) for batch in messages.arrow_batches(BATCHES)]
    with Cluster(folder, peer_ports=peer_ports) as cluster, Client(cluster.urls) as client:
        kinds = (("singles", singles, CONNECTIONS, 1), ("batches", batches, BATCH_CONNECTIONS, messages.BATCH))
        for topic, prepared, connections, rows in kinds:
            client.create_topic(topic, format="json" if topic == "singles" else "bytes")
            owner = cluster.by_url(client.segments(topic)[0]["owner_url"])
            other = next(broker for broker in cluster.brokers if broker is not owner)
            rounds = [[_per_s(at.port, prepared, connections) for at in (other, owner)] for _ in range(ROUNDS)]
            through, direct = (max(column) * rows for column in zip(*rounds, strict=True))
            yield Result(
                name=f"{way}, {topic}",
                figure=through,
                unit="msg/s",
                limit=direct,
                limit_is="the same at the owner",
                note=f"object journal, {connections} connections, best of {ROUNDS}",
            )


def _per_s(port: int, prepared: Sequence[bytes], connections: int) -> float:
    return float(run(port, connections, lambda opened: per_s(opened, prepared)))

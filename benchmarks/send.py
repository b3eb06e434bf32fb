"""What `send` of one Python program brings: messages of a key and about 100 bytes, acknowledged a second, and what they
cost client and broker."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from uuid import uuid4

from benchmarks import server
from benchmarks.processes import started
from benchmarks.result import Result
from benchmarks.turns import Tree, in_turns, lowest

ROUNDS, MESSAGES = 5, 1_500_000
# Run in a process of the tree's own code: two rounds on one topic, the first with everything new.
PROGRAM = """
import json, os, sys, time
from seaweedq import Client
url, kind, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Client(url) as client:
    client.create_topic(kind, format=kind, initial_segments=4)
    value = os.urandom(100) if kind == "bytes" else {"carrier": "UA", "delay": 12, "text": "x" * 60}
    keys = [f"key-{n % 5000}" for n in range(count)]
    for _ in range(2):
        begun, cpu = time.perf_counter(), time.process_time()
        with client.producer(kind) as producer:
            for key in keys:
                producer.send(value, key=key)
        print(json.dumps([time.perf_counter() - begun, time.process_time() - cpu]), flush=True)
        sys.stdin.readline()
"""


def measure(folder: Path) -> Iterator[Result]:
    """A broker and a program of each tree in turns."""

    def once(tree: Tree) -> Mapping[str, float]:
        found: dict[str, float] = {}
        with server.broker(folder / uuid4().hex, tree=tree) as broker:
            for kind in ("bytes", "json"):
                found |= _figures(tree, broker, kind)
        return found

    note = f"{MESSAGES:,} messages with keys, 4 segments, one producer; user and system time; best of {ROUNDS} rounds"
    found = in_turns(ROUNDS, once)
    for unit in ("µs/msg", "µs of CPU"):
        some = {tree: {name: v for name, v in all.items() if name.endswith(unit)} for tree, all in found.items()}
        yield from lowest("send", unit, some, note)


def _figures(tree: Tree, broker: server.Server, kind: str) -> Mapping[str, float]:
    """Returns what a message took in each round: time until all are acknowledged, CPU of client and broker."""
    command = [sys.executable, "-P", "-c", PROGRAM, f"http://127.0.0.1:{broker.port}", kind, str(MESSAGES)]
    found: dict[str, float] = {}
    with started(command, environment=tree.environment(), stdin=subprocess.PIPE) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        for which in ("first", "second"):
            before = broker.cpu_s()
            took_s, cpu_s = json.loads(program.stdout.readline())
            per_message = 1e6 / MESSAGES
            found[f"{kind}, {which} round, µs/msg"] = took_s * per_message
            found[f"{kind}, {which} round, client, µs of CPU"] = cpu_s * per_message
            found[f"{kind}, {which} round, broker, µs of CPU"] = (broker.cpu_s() - before) * per_message
            program.stdin.write("on\n")
            program.stdin.flush()
    return found

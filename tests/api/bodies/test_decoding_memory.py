"""A body of very many tiny rows holds no more than the budget counts, from its decoding to the ids in its answer."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from seaweedq.api.bodies.decoding_memory import needed
from seaweedq.api.routes.messages import publish
from seaweedq.codec import bodies
from tests.api.bodies.test_bodies_of_strangers import Asked, serving
from tests.support.brokers import inside
from tests.support.paths import ROOT
from tests.support.tiers import later

ROWS = 300_000
SHAPES = {
    "lines": (b'{"value":1}\n' * ROWS, bodies.NDJSON, False),
    "headers": (b'{"value":1,"headers":{"a":"b"}}\n' * ROWS, bodies.NDJSON, False),
    "bare": (b"1\n" * 3 * ROWS, bodies.NDJSON, True),
    "one by one": (b'{"value":1}\n' * ROWS + b'{"value":1,"key":{}}', bodies.NDJSON, False),
    "late doubt": (b'{"value":1,"headers":{"a":"b"}}\n' * ROWS + b'{"value":1}{"value":2}', bodies.NDJSON, False),
    "json headers": (
        b'{"messages":[' + b",".join([b'{"value":1,"headers":{"a":"b"}}'] * ROWS) + b"]}",
        bodies.JSON,
        False,
    ),
    "json": (b'{"messages":[' + b",".join([b'{"value":1}'] * ROWS) + b"]}", bodies.JSON, False),
}
PEAK = """
import re, sys
from pathlib import Path

def begin():
    "The kernel's peak is what is held now."
    Path("/proc/self/clear_refs").write_text("5")
    return peak()

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""
DECODING = (
    PEAK
    + """
from seaweedq.codec import bodies
from seaweedq.errors import InvalidMessages
from tests.api.bodies.test_decoding_memory import SHAPES
from tests.support.codec.body_samples import intake
body, media, bare = SHAPES[sys.argv[1]]
bodies.decode(media, b"1" if bare else b'{"value":1}', intake(), bare)  # loads what a first body loads
before = begin()
try:
    rows = bodies.decode(media, body, intake(), bare)
except InvalidMessages:
    pass
print(peak() - before)
"""
)
ANSWERING = (
    PEAK
    + """
import numpy as np
from seaweedq.api.routes.messages.publish import _answer
from seaweedq.broker.publish.batch_split import Appended
from seaweedq.broker.publish.publisher import Published

def published(count):
    halves = [Appended(10_000 + half, 10**11, np.arange(half, count, 2), False) for half in range(2)]
    return Published(count, halves, False)

_answer(published(40_000), True)  # what allocators take for a first slice is theirs for good
large = published(int(sys.argv[1]))
before = begin()
answer = _answer(large, True)
print(peak() - before)
"""
)


def peak_bytes(code: str, argument: str) -> int:
    """Returns by how much the memory of a new process grows at most."""
    done = subprocess.run([sys.executable, "-c", code, argument], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def fits(code: str, argument: str, reserved: int) -> bool:
    """Tells whether one of three processes stays within what is reserved: an allocator that gives back late, as it does
    on a busy machine, only adds to what the code itself holds."""
    return any(peak_bytes(code, argument) < reserved for _ in range(3))


@pytest.mark.parametrize("shape", ["headers", *(later(shape) for shape in SHAPES if shape != "headers")])
def test_a_decoder_makes_no_more_than_is_reserved(shape: str) -> None:
    body, media, bare = SHAPES[shape]
    assert fits(DECODING, shape, needed(media, body, bare, 1 << 24))


def test_the_ids_of_an_answer_take_no_more_than_is_reserved() -> None:
    assert fits(ANSWERING, f"{ROWS}", ROWS * publish.ID_BYTES)


async def test_the_ids_of_an_answer_count_before_they_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    async with serving(tmp_path) as (broker, app, _):
        budget, answer = inside.budget(broker), publish._answer

        def note(*given: Any) -> bytes:
            counted.append(budget.decoding)
            return answer(*given)

        monkeypatch.setattr(publish, "_answer", note)
        for count in (1000, 1001):
            asked = Asked(app)
            await asked.send(b'{"value":1}\n' * count, more=False)
            assert await asked.status() == 200
        assert counted == [0, 1001 * publish.ID_BYTES]
        assert budget.decoding == 0

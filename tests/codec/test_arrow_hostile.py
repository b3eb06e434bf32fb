"""Arrow streams made to hurt: bombs, and damage to any byte."""

import struct
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seaweedq.codec.bodies import decode_arrow
from seaweedq.errors import BadRequest, RequestTooLarge, UnreadableBody
from tests.support.codec.body_samples import intake, stream
from tests.support.codec.damaged_streams import VALID, damaged
from tests.support.paths import ROOT
from tests.support.tiers import examples

COUNT = 20_000


def expand(body: bytes) -> None:
    """Decode, with the memory that Arrow takes watched."""
    before = pa.default_memory_pool().bytes_allocated()
    with pytest.raises(RequestTooLarge):
        decode_arrow(body, intake())
    assert pa.default_memory_pool().bytes_allocated() - before < 64 << 20


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_compressed_bomb_is_refused_before_it_is_opened(compression: str) -> None:
    texts = pa.array(['"' + "0" * 60_000 + '"'] * 2000)
    body = stream({"value": texts}, compression)
    assert len(body) < 1 << 20
    peak = pa.default_memory_pool().max_memory()
    expand(body)
    assert pa.default_memory_pool().max_memory() == peak


def test_many_small_bombs_are_one() -> None:
    batch = pa.record_batch({"value": ['"' + "0" * 60_000 + '"'] * 20})
    expand(stream(pa.Table.from_batches([batch] * 100), "zstd"))


def test_a_bomb_that_lies_about_its_length_is_unreadable() -> None:
    body = stream({"value": ['"' + "0" * 60_000 + '"'] * 2000}, "zstd")
    length = struct.pack("<q", 2000 * 60_002)
    assert body.count(length) == 1
    for lie in (0, 1, 1000, -2, -(2**63)):
        with pytest.raises(UnreadableBody):
            decode_arrow(body.replace(length, struct.pack("<q", lie)), intake())
    for lie in (2**40, 2**63 - 1):
        expand(body.replace(length, struct.pack("<q", lie)))


def test_a_dictionary_bomb_is_refused() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(COUNT, np.int8)), ['"' + "0" * 60_000 + '"'])
    expand(stream({"value": column}))


def test_a_bomb_of_views_is_refused() -> None:
    _, view, data = pa.array(['"' + "0" * 60_000 + '"'], pa.string_view()).buffers()
    views = pa.py_buffer(view.to_pybytes()[:16] * COUNT)
    expand(stream({"value": pa.Array.from_buffers(pa.string_view(), COUNT, [None, views, data])}))


def test_garbage_behind_nulls_is_not_followed() -> None:
    """Arrow's own validation leaves the slots of nulls alone, and its cast reads them: this ended the process."""
    views = struct.pack("<iqi", -(2**24), -1, 2**30) + struct.pack("<i12s", 1, b"1")
    column = pa.Array.from_buffers(pa.string_view(), 2, [pa.py_buffer(b"\x02"), pa.py_buffer(views)])
    rows = decode_arrow(stream({"value": ["1", "2"], "_key": column}), intake())
    assert rows.column("_key").to_pylist() == [None, "1"]


@pytest.mark.parametrize(
    "body", [b"", b"\x00" * 8, b"\xff" * 64, b"ARROW1\x00\x00" * 8, b'{"value":1}', bytes(1 << 16)]
)
def test_garbage_is_unreadable(body: bytes) -> None:
    with pytest.raises(BadRequest):
        decode_arrow(body, intake())


@pytest.mark.parametrize("at", range(len(VALID)))
def test_every_truncation_is_refused_or_a_prefix(at: int) -> None:
    body, taken = VALID[at]
    whole = decode_arrow(body, taken).num_rows
    for end in range(0, len(body), 7):
        try:
            assert decode_arrow(body[:end], taken).num_rows <= whole
        except BadRequest:
            pass


FLIPS = st.lists(
    st.tuples(st.integers(0, 1 << 16), st.one_of(st.integers(0, 255), st.just(255))), min_size=1, max_size=4
)


@settings(deadline=None, max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(VALID), FLIPS)
def test_damage_raises_our_errors_only(sample: tuple[bytes, object], flips: list[tuple[int, int]]) -> None:
    body, taken = sample
    try:
        rows = decode_arrow(damaged(body, flips), taken)  # type: ignore[arg-type]
    except BadRequest:
        return
    rows.validate(full=True)
    rows.to_pylist()


MANY = """
import random
from tests.support.codec.damaged_streams import VALID, damaged
from seaweedq.errors import BadRequest
from seaweedq.codec.bodies import decode_arrow
random.seed({seed})
for _ in range(int({count})):
    body, taken = random.choice(VALID)
    octets = [0, 1, 127, 128, 255, random.randrange(256)]
    flips = [(random.randrange(1 << 16), random.choice(octets)) for _ in range(random.randint(1, 6))]
    try:
        decode_arrow(damaged(body, flips), taken).to_pylist()
    except BadRequest:
        pass
print("survived")
"""


@pytest.mark.process
@pytest.mark.long
def test_a_process_survives_thousands_of_damaged_streams() -> None:
    code = MANY.format(seed=1, count=20_000)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "survived\n", done.stderr[-2000:]

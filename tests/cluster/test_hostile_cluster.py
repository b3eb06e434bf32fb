"""What comes below /internal, with the secret and without: nothing is taken that is not whole, and nothing breaks."""

import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from seaweedq.broker.rpc.messages import ForwardFrame, ForwardHeader, Outcome, encode_forward
from seaweedq.broker.rpc.peer_keys import PeerKeys
from seaweedq.coordination import keys
from seaweedq.segments.layout import Format, Layout
from tests.support.brokers.peer_client import begin_session, stamped
from tests.support.brokers.stored import record_of
from tests.support.processes.together import BROKERS, TOPIC, Together

pytestmark = pytest.mark.process

ARROW = "application/vnd.apache.arrow.stream"
LAYOUT = Layout.from_format(Format.JSON)
CALLS = ("positions", "close", "give", "ends", "read", "find", "size")
JUNK = [
    b"",
    b"\xc1",
    bytes(10),
    b"\xff" * 100,
    b"\x91" * 5000 + b"\x00",
    b"\xdd\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xffabc",
    b"\x80",
    b"\x90",
    b"\x94\xa2\xff\xfe\x01\x80\x00",
]
BEYOND = [-1, -(2**63), 2**63, 2**64 - 1]
Post = Callable[..., tuple[int, bytes]]


@pytest.fixture
def together(together_unharmed: Together) -> Together:
    """Brokers that all tests here share."""
    return together_unharmed


@pytest.fixture
def post(together: Together) -> Post:
    """POSTs to the first broker's /internal in a session, unless secrets are given to be shown."""
    known = (together.process.data_dir / "cluster-secret").read_text()
    cluster = together.get(0, "/v1/cluster")
    callee = next(one["id"] for one in cluster["brokers"] if one["url"] == together.urls[0])
    keys_ = PeerKeys.from_secrets([known], cluster["cluster"])
    session = begin_session(lambda path, headers: together.ask("POST", 0, path, headers=headers), keys_, callee)

    def send(path: str, content: bytes, *secrets: bytes) -> tuple[int, bytes]:
        shown: Any = [(b"Seaweedq-Secret", secret) for secret in secrets]
        shown = shown or stamped(session, "POST", f"/internal/{path}")
        answer = together.ask("POST", 0, f"/internal/{path}", content=content, headers=shown)
        return answer.status_code, answer.content

    return send


@pytest.fixture
def survives(together: Together) -> Iterator[None]:
    """Fails if any broker has died, or had an error that nobody expected."""
    pids = [together.pid(n) for n in range(BROKERS)]
    yield
    assert all(map(together.ready, together.urls))
    assert [together.pid(n) for n in range(BROKERS)] == pids
    assert "Traceback" not in together.process.log


def packed(*parts: Any) -> bytes:
    return msgspec.msgpack.encode(parts)


def incarnation(together: Together) -> int:
    ((_, value),) = together.rows(keys.TOPICS)
    return record_of(keys.TOPICS, value).incarnation


def own(together: Together) -> int:
    """A segment of the first broker."""
    found = together.get(0, f"{TOPIC}/segments")["segments"]
    return next(s["id"] for s in found if s["owner_url"] == together.urls[0])


def low_of(together: Together, segment: int) -> int:
    """Where its one part begins."""
    found = together.get(0, f"{TOPIC}/segments")["segments"]
    return next(int(s["low"]) for s in found if s["id"] == segment)


@pytest.mark.long
@pytest.mark.usefixtures("survives")
def test_nobody_comes_in_without_the_very_secret(together: Together, post: Post) -> None:
    known = (together.process.data_dir / "cluster-secret").read_bytes()
    for shown in ([b""], [b"x" * 43], [known[:-1]], [known], [known, known], [b"\xff\xfe"], ["ü".encode()]):
        for path in ("publish", "status", "nothing"):
            status, content = post(path, b"", *shown)
            assert status == 403, shown
            assert known not in content
    assert together.ask("POST", 0, "/internal/status").status_code == 403
    assert post("status", b"")[0] == 200


@pytest.mark.usefixtures("survives")
def test_a_call_that_says_what_cannot_be_is_refused(together: Together, post: Post) -> None:
    number, segment = incarnation(together), own(together)
    bodies = [*JUNK, *(packed(name, number, {}, 0.0) for name in ("", "..", "a/b", "../..", "t\n", "x" * 100_000))]
    for path in CALLS:
        for content in bodies:
            assert 400 <= post(path, content)[0] < 500, (path, content[:30])
    for path in ("read", "find", "size"):
        for field in range(6):
            for beyond in BEYOND[field == 5 :]:  # a time may be negative
                call: list[Any] = ["t", number, segment, 0, 10, 1000, 0]
                call[1 + field] = beyond
                assert 400 <= post(path, packed(*call))[0] < 500, (path, call)
    for wait_s in (float("nan"), float("inf"), -1.0):
        assert 400 <= post("ends", packed("t", number, {}, wait_s))[0] < 500, wait_s


def rows(columns: int = 0, count: int = 3) -> bytes:
    schema = LAYOUT.rows(columns)
    content: dict[str, Any] = {"_timestamp": 0, "_key": "k", "_headers": [("a", "b")], "_expires": None, "value": "{}"}
    return pa.record_batch([pa.array([content[f.name]] * count, f.type) for f in schema], schema=schema).serialize()


def forward(header: ForwardHeader, payload: bytes) -> bytes:
    return encode_forward([ForwardFrame(header, payload)])


@pytest.mark.usefixtures("survives")
def test_nothing_of_a_parcel_is_taken_that_is_not_whole(together: Together, post: Post) -> None:
    number, segment = incarnation(together), own(together)
    good = rows().to_pybytes()
    header = ForwardHeader("t", number, segment, low_of(together, segment), 0, "~p", 0, 2, len(good))

    def taken(content: bytes) -> int | None:
        """The first offset, or None for what was refused."""
        status, answer = post("publish", content)
        if status != 200:
            assert 400 <= status < 500, answer
            return None
        (outcome,) = msgspec.msgpack.decode(answer, type=list[Outcome])
        assert (outcome.trouble is None) == (outcome.first_offset >= 0)
        return outcome.first_offset if outcome.trouble is None else None

    changed: list[dict[str, Any]] = [
        *({"topic": name} for name in ("", "..", "../x", "a/b", "u", "t\n", "x" * 100_000)),
        *({field: beyond} for field in ("incarnation", "segment", "part", "low") for beyond in BEYOND),
        *({field: beyond} for field in ("high", "length") for beyond in BEYOND),
        *({"columns": mask} for mask in (-1, 1, 15, 16, 1 << 40, 2**64 - 1)),
        *({"producer": name} for name in ("", "p" * 1000, "a\0b", "a\nb")),
        {"incarnation": number + 1},
        {"segment": segment + 1},  # of another broker
        {"part": header.part + 1},  # nothing begins there
        {"segment": 10**9},
        {"low": 5, "high": 4},
        {"high": 1},  # for fewer rows than there are
        {"length": 0},
        {"length": len(good) - 8},
    ]
    for change in changed:
        wrong = msgspec.structs.replace(header, **change)
        assert taken(forward(wrong, good)) is None, change
    nulls = pa.record_batch([pa.array([None], LAYOUT.rows(0)[0].type), pa.array(["1"])], names=["_timestamp", "value"])
    broken = struct.pack("<4i", 0, 2, 4, 6), b"\xff\xfe{}{}"
    texts = pa.Array.from_buffers(pa.string(), 3, [None, *map(pa.py_buffer, broken)])
    wild = struct.pack("<4i", 0, 2, 2**31 - 1, 6), b"{}{}{}"
    strays = pa.Array.from_buffers(pa.string(), 3, [None, *map(pa.py_buffer, wild)])
    times = pa.array([0] * 3, LAYOUT.rows(0)[0].type)
    for batch in (nulls, *(pa.record_batch([times, bad], schema=LAYOUT.rows(0)) for bad in (texts, strays))):
        payload = batch.serialize().to_pybytes()
        assert taken(forward(msgspec.structs.replace(header, length=len(payload)), payload)) is None
    for length, rest in [(2**64 - 1, b"x" * 99), (2**63, b""), (10**5, b"\x91" * 10**5), (5, b"\xdd\xff\xff\xff\xff")]:
        assert taken(length.to_bytes(8, "little") + rest) is None
    for cut in range(0, len(good), 64):
        assert taken(forward(msgspec.structs.replace(header, length=cut), good[:cut])) is None
    assert taken(forward(header, good)) == 0
    assert taken(forward(header, good)) == 0  # a repeat


@pytest.mark.long
@pytest.mark.usefixtures("survives")
def test_flipped_bytes_of_arrow_break_no_broker(together: Together, post: Post) -> None:
    number, segment = incarnation(together), own(together)
    begins = low_of(together, segment)
    good, drawn = rows(3).to_pybytes(), random.Random(20130101)
    for low in range(0, 1200, 3):
        spoilt = bytearray(good)
        for _ in range(drawn.choice((1, 2, 8))):
            spoilt[drawn.randrange(len(spoilt))] = drawn.choice((0, 1, 0x7F, 0x80, 0xFF))
        header = ForwardHeader("t", number, segment, begins, 3, "~p", low, low + 2, len(spoilt))
        assert post("publish", forward(header, bytes(spoilt)))[0] in range(200, 500)
    together.publish(1, 20)
    fetched = together.ask("GET", 2, f"{TOPIC}/segments/{segment}/messages?limit=10000", headers={"accept": ARROW})
    end = next(s["end_offset"] for s in together.get(0, f"{TOPIC}/segments")["segments"] if s["id"] == segment)
    assert pa.ipc.open_stream(fetched.content).read_all()["_offset"].to_pylist() == list(range(end))
    assert together.ask("POST", 1, f"{TOPIC}/flush").status_code == 200

"""The client's pure parts: batches, pauses, problems, tables cut to measure, waits for a rate; and its public names."""

import json
import subprocess
import sys
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seaweedq
from seaweedq.api.problems import problem
from seaweedq.client.core.arrow_batches import streams
from seaweedq.client.core.attempts import Backoff, Patience, unhurried
from seaweedq.client.core.batching import Batcher, Limits
from seaweedq.client.core.effects import Pause, Reply, Request
from seaweedq.client.core.problems import check, error_of
from seaweedq.client.core.wire import envelope
from seaweedq.errors import ConnectionFailed, NotReady, RateLimited, ServerProblem, TopicNotFound, by_slug
from tests.support.tiers import examples


def test_public_names():
    assert sorted(seaweedq.__all__) == [
        "AsyncBatch",
        "AsyncClient",
        "AsyncMessage",
        "Batch",
        "Client",
        "Message",
        "Published",
        "Reject",
        "SeaweedqError",
        "Worked",
        "__version__",
    ]
    assert all(getattr(seaweedq, name) for name in seaweedq.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = seaweedq.nonsense


@pytest.mark.process
def test_importing_the_package_imports_no_client():
    check = "import sys, seaweedq; assert not {'httpx', 'pyarrow', 'msgspec'} & sys.modules.keys(), sys.modules.keys()"
    subprocess.run([sys.executable, "-c", check], check=True)


@pytest.mark.process
def test_a_program_that_sends_ten_messages_does_not_import_arrow(real_broker):
    """It takes longer to import than the program to run."""
    program = f"""
import sys
from seaweedq import Client
with Client({real_broker.url!r}) as client:
    client.create_topic("ten")
    with client.producer("ten") as producer:
        for n in range(10):
            producer.send({{"n": n}}, key=f"k{{n}}")
    assert client.topic("ten")["messages"] == 10
assert not {{"pyarrow", "numpy"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_both_clients_have_the_same_methods():
    def public(kind):
        return {name for name in vars(kind) if not name.startswith("_")}

    assert public(seaweedq.Client) == public(seaweedq.AsyncClient)


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=60),
    st.integers(1, 10),
    st.integers(50, 400),
)
def test_batches_keep_order_count_every_message_once_and_stay_in_bounds(sizes, batch_messages, batch_bytes):
    batcher = Batcher(Limits(linger_ms=0, batch_messages=batch_messages, batch_bytes=batch_bytes), object)
    for number, size in enumerate(sizes):
        batcher.add_line(b"%d " % number + b"x" * size, 0.0)
    seen, sequence = [], 0
    while batcher.ready_in_s(1.0) is not None:
        batch = batcher.next_batch()
        assert batch.sequence == sequence
        assert batcher.ready_in_s(1.0) is None, "one in flight"
        sequence += batch.count
        assert len(batch.lines) == batch.count <= batch_messages
        assert len(b"\n".join(batch.lines)) <= batch_bytes or batch.count == 1
        seen += [int(line.split()[0]) for line in batch.lines]
        batcher.finish()
    assert seen == list(range(len(sizes)))
    assert batcher.finished == batcher.accepted == len(sizes)


def test_an_open_batch_waits_for_its_linger_and_a_stream_closes_it():
    batcher = Batcher(Limits(linger_ms=10), object)
    batcher.add_line(b"1", 5.0)
    assert batcher.ready_in_s(5.0) == pytest.approx(0.01)
    assert batcher.ready_in_s(5.1) == 0
    batcher.add_stream(b"arrow", 7, 5.0)
    assert batcher.ready_in_s(5.0) == 0
    assert [batcher.next_batch().content_type, batcher.finish(), batcher.next_batch().sequence] == [
        "application/x-ndjson",
        None,
        1,
    ]


@pytest.mark.parametrize(
    "bad", [{"linger_ms": -1}, {"batch_messages": 0}, {"batch_bytes": 0}, {"batch_bytes": 1 << 30}]
)
def test_limits_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Limits(**bad)


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_pauses_double_up_to_the_cap_and_lose_at_most_half(attempt, random):
    pause = Backoff(0.05, 2.0).pause_s(attempt, random)
    whole = min(2.0, 0.05 * 2.0 ** min(attempt, 30))
    assert whole / 2 <= pause <= whole


def test_patience_obeys_retry_after_and_gives_up_in_time():
    now = [0.0]
    steps = Patience(3.0, lambda: now[0], lambda: 0.0).send(Request("GET", "/"))
    refused = Reply(503, {"retry-after": "2"}, b'{"type": "/problems/not-ready", "detail": "starting", "epoch": 1}')
    assert next(steps) == Request("GET", "/")
    assert steps.send(refused) == Pause(2.0)
    now[0] = 2.0
    assert steps.send(None) == Request("GET", "/")
    with pytest.raises(NotReady, match="starting") as raised:
        steps.send(refused)
    assert raised.value.retry_after_s == 2
    assert raised.value.fields == {"epoch": 1}


def test_patience_takes_a_lost_connection_for_a_reason_to_go_on():
    steps = Patience(3.0, lambda: 0.0, lambda: 0.5).send(Request("GET", "/"))
    next(steps)
    assert steps.throw(ConnectionFailed("x")) == Pause(pytest.approx(0.0375))
    assert steps.send(None) == Request("GET", "/")
    with pytest.raises(StopIteration) as end:
        steps.send(Reply(200, {}, b"ok"))
    assert end.value.value.body == b"ok"


@pytest.mark.parametrize("slug", sorted(by_slug()))
def test_every_slug_makes_an_error_with_its_fields(slug):
    body = {
        "type": f"/problems/{slug}",
        "status": 400,
        "title": "t",
        "detail": "what",
        "topic": "x",
        "retry_after_s": 9,
    }
    error = error_of(Reply(400, {}, json.dumps(body).encode()))
    assert str(error) == "what"
    assert error.fields["topic"] == "x"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b'{"self": 1, "detail": null}', b"\xff"])
def test_what_is_no_problem_document_is_a_server_problem(body):
    error = error_of(Reply(502, {}, body))
    assert isinstance(error, ServerProblem)
    assert error.fields["status"] == 502
    assert "502" in str(error)


def test_a_known_problem_is_its_class():
    body = b'{"type": "https://example.org/problems/topic-not-found", "detail": "no topic x", "topic": "x"}'
    error = error_of(Reply(404, {}, body))
    assert type(error) is TopicNotFound
    assert error.fields == {"topic": "x"}


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.binary(max_size=2000), min_size=1, max_size=80), st.integers(700, 20_000))
def test_a_table_is_cut_into_streams_below_the_limit(values, limit):
    table = pa.table({"value": pa.array(values, pa.binary())})
    found = list(streams(table, limit))
    tables = [pa.ipc.open_stream(stream).read_all() for stream, _ in found]
    assert pa.concat_tables(tables).equals(table)
    assert [t.num_rows for t in tables] == [rows for _, rows in found]
    assert all(len(stream) <= limit or rows == 1 for stream, rows in found)


def test_envelopes():
    assert json.loads(envelope({"a": float("nan")}, key="k")) == {"value": {"a": None}, "key": "k"}
    assert envelope(None) == b'{"value":null}'
    assert json.loads(envelope(b"\x00")) == {"value_base64": "AA=="}
    assert b"\n" not in envelope(msgspec.Raw(b'{\n"a": 1}'))
    with pytest.raises(TypeError):
        envelope(object())
    with pytest.raises(ValueError, match="time zone"):
        envelope(1, timestamp=datetime(2020, 1, 1))


def limited(rate: float, retry_after_s: float) -> Reply:
    status, headers, body = problem(RateLimited("too fast", limit="requests", rate=rate, retry_after_s=retry_after_s))
    return Reply(status, headers, body)


def sent(patience: Patience, answers: list[Reply], now_s: list[float]) -> tuple[Any, list[float]]:
    """The answer in the end, and the waits before it."""
    steps, waits = patience.send(Request("POST", "/v1/topics/t/messages")), []
    answer: Any = None
    try:
        while True:
            effect = steps.send(answer)
            if isinstance(effect, Pause):
                waits.append(effect.seconds)
                now_s[0] += effect.seconds
                answer = None
            else:
                answer = answers.pop(0)
    except StopIteration as end:
        return end.value, waits


def test_waits_for_a_rate_are_as_told_with_jitter_and_never_a_failure() -> None:
    now_s = [0.0]
    patience = Patience(10, lambda: now_s[0], lambda: 0.5)
    answers = [limited(5, 4.0)] * 8 + [Reply(200, {}, b"{}")]
    reply, waits = sent(patience, answers, now_s)
    assert reply.status == 200
    assert waits == [pytest.approx(4.5)] * 8, "36 s, over the 10 s that it would try otherwise"


def test_a_rate_of_nothing_fails_in_time() -> None:
    now_s = [0.0]
    with pytest.raises(RateLimited) as caught:
        sent(Patience(100, lambda: now_s[0], lambda: 0.0), [limited(0, 60.0)] * 9, now_s)
    assert caught.value.fields["limit"] == "requests"
    assert now_s[0] <= 100


def test_the_answer_says_what_is_limited_and_until_when() -> None:
    status, headers, body = problem(RateLimited("too fast", limit="bytes_in", rate=1.5, retry_after_s=2.2))
    assert status == 429
    assert headers["retry-after"] == "3"
    assert headers["ratelimit"] == '"bytes_in";r=0;t=3'
    assert headers["ratelimit-policy"] == '"bytes_in";q=150;w=100', "of 1.5 a second, in whole numbers"
    found = msgspec.json.decode(body)
    assert (found["limit"], found["rate"], found["retry_after_s"]) == ("bytes_in", 1.5, 2.2)


@pytest.mark.parametrize(
    ("rate", "said"),
    [(0.01, "q=1;w=100"), (0.29, "q=29;w=100"), (0.5, "q=50;w=100"), (3, "q=3;w=1"), (1e9, "q=1000000000;w=1")],
)
def test_the_quota_of_a_window_is_that_of_the_limit(rate: float, said: str) -> None:
    _, headers, _ = problem(RateLimited("too fast", limit="requests", rate=rate, retry_after_s=1))
    assert headers["ratelimit-policy"] == f'"requests";{said}'


def driven(steps: Any, answers: list[Reply]) -> tuple[Any, list[float]]:
    waits, answer = [], None
    try:
        while True:
            effect = steps.send(answer)
            if isinstance(effect, Pause):
                waits.append(effect.seconds)
            answer = None if isinstance(effect, Pause) else answers.pop(0)
    except StopIteration as end:
        return end.value, waits


def test_a_publish_sent_once_is_repeated_for_a_rate_and_nothing_else() -> None:
    patience = Patience(10, lambda: 0.0, lambda: 0.0)
    taken = Reply(200, {}, b'{"published": 1}')

    def once() -> Any:
        return check((yield Request("POST", "/v1/topics/t/messages")))

    assert driven(unhurried(once(), patience), [limited(5, 4.0), limited(5, 4.0), taken]) == (taken, [4.0, 4.0])
    with pytest.raises(RateLimited):
        driven(unhurried(once(), patience), [limited(5, 4.0)] * 3)
    with pytest.raises(ServerProblem):
        driven(unhurried(once(), patience), [Reply(503, {}, b""), taken])

"""Answers 429 `rate-limited`: the client waits as told, and a producer is slowed down instead of failing."""

from typing import Any

import msgspec
import pytest

from seaweedq.api.problems import problem
from seaweedq.client.core.effects import Pause, Reply, Request
from seaweedq.client.core.problems import check
from seaweedq.client.core.retry import Patience, unhurried
from seaweedq.errors import RateLimited, ServerProblem


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


def test_waits_for_a_rate_are_as_told_with_jitter_and_no_failure_however_long_they_last() -> None:
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


def test_a_publish_that_is_sent_once_waits_for_a_rate_and_is_not_repeated_for_anything_else() -> None:
    patience = Patience(10, lambda: 0.0, lambda: 0.0)
    taken = Reply(200, {}, b'{"published": 1}')

    def once() -> Any:
        return check((yield Request("POST", "/v1/topics/t/messages")))

    assert driven(unhurried(once(), patience), [limited(5, 4.0), limited(5, 4.0), taken]) == (taken, [4.0, 4.0])
    with pytest.raises(RateLimited):
        driven(unhurried(once(), patience), [limited(5, 4.0)] * 3)
    with pytest.raises(ServerProblem):
        driven(unhurried(once(), patience), [Reply(503, {}, b""), taken])

"""What a command says while no broker answers, and once one does again."""

import re

import pytest

from seaweedq.cli.pull import Outage
from seaweedq.client.core.attempts import Patience
from seaweedq.client.core.effects import Pause, Reply, Request
from seaweedq.errors import ConnectionFailed, RateLimited, SeaweedqError

GONE = ConnectionFailed("no answer")


def test_it_is_said_once_after_two_seconds_and_that_it_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = [100.0]
    outage = Outage(lambda: now_s[0])
    told = []
    for now_s[0], error in ((100.0, GONE), (101.9, GONE), (102.5, GONE), (110.0, GONE), (130.0, None), (131.0, GONE)):
        outage(error, 20.0)
        told.append(capsys.readouterr().err)
    assert told[:2] == ["", ""]
    assert re.fullmatch(r"no broker has answered for 2 s; trying until \d\d:\d\d:\d\d\n", told[2])
    assert told[3:] == ["", "a broker answers again after 30 s\n", ""]


def test_an_outage_of_a_moment_and_a_rate_are_not_said(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = [0.0]
    outage = Outage(lambda: now_s[0])
    for now_s[0], error in ((0.0, GONE), (1.0, None), (2.5, GONE), (3.0, None), (9.0, RateLimited("wait"))):
        outage(error, 20.0)
    assert capsys.readouterr().err == ""


def test_the_client_tells_each_repeat_and_that_it_is_over() -> None:
    now_s, told = [0.0], []

    def on_retry(error: SeaweedqError | None, left_s: float) -> None:
        told.append((error, left_s))

    steps = Patience(30.0, lambda: now_s[0], lambda: 0.0, on_retry=on_retry).send(Request("GET", "/"))
    next(steps)
    for _ in range(2):
        assert isinstance(steps.throw(GONE), Pause)
        now_s[0] += 3
        steps.send(None)
    with pytest.raises(StopIteration):
        steps.send(Reply(200, {}, b"{}"))
    assert told == [(GONE, 30.0), (GONE, 27.0), (None, 0.0)]

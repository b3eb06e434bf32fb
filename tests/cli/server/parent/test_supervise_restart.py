"""SIGHUP: the brokers are started anew one after another, and never two at a time."""

import os
import signal

import pytest

from tests.support.cli.stand_in_fleet import gone, until

pytestmark = pytest.mark.process


def test_one_after_another(fleet):
    parent = fleet()
    parent.start()
    pid = parent.pid
    parent.send(signal.SIGHUP)
    until(lambda: "restart: done" in parent.text)
    rolled = parent.events("term", "stop", "start")[3:]
    assert rolled == [(what, member) for member in (1, 2, 3) for what in ("term", "stop", "start")]
    assert parent.pid == pid
    assert "starting it again in" not in parent.text
    parent.send(signal.SIGTERM)
    assert parent.end() == 0


def test_the_next_one_waits_until_the_last_one_is_ready(fleet):
    parent = fleet(brokers=2)
    parent.start()
    parent.order(1, "unready")
    parent.send(signal.SIGHUP)
    until(lambda: parent.text.count("[1] seaweedq broker.") == 2)
    parent.send(signal.SIGHUP)
    until(lambda: "still in progress" in parent.text)
    assert ("term", 2) not in parent.events()
    parent.order(1, "")
    until(lambda: "restart: done" in parent.text)
    assert parent.events("term") == [("term", 1), ("term", 2)]


def test_it_goes_no_further_than_a_broker_that_does_not_start(fleet):
    parent = fleet()
    parent.start()
    parent.order(2, "end 1")
    parent.send(signal.SIGHUP)
    until(lambda: "restart: broker 2 ended before it was ready" in parent.text)
    assert parent.events("term") == [("term", 1), ("term", 2)]
    parent.order(2, "")
    until(lambda: parent.events("start").count(("start", 2)) == 2)
    parent.send(signal.SIGHUP)
    until(lambda: "restart: done" in parent.text)


def test_a_broker_that_is_dead_at_that_moment_is_started_at_once(fleet):
    parent = fleet(brokers=2)
    parent.start()
    parent.order(1, "end 1")
    os.kill(parent.member_pid(1), signal.SIGKILL)
    until(lambda: "starting it again in 3.2 s" in parent.text)
    parent.order(1, "")
    parent.send(signal.SIGHUP)
    until(lambda: "restart: broker 1 is ready again" in parent.text, within_s=3)
    until(lambda: "restart: done" in parent.text)


def test_one_that_does_not_stop_is_killed_and_started_again(fleet):
    parent = fleet(brokers=2, grace_s=1.2)
    parent.start()
    stuck = parent.member_pid(1)
    os.kill(stuck, signal.SIGSTOP)
    parent.send(signal.SIGHUP)
    until(lambda: "restart: done" in parent.text)
    assert "broker 1 did not stop within 1 s: killing it" in parent.text
    assert gone(stuck)


def test_a_stop_ends_it(fleet):
    parent = fleet(brokers=2)
    parent.start()
    parent.order(1, "unready")
    parent.send(signal.SIGHUP)
    until(lambda: parent.text.count("[1] seaweedq broker.") == 2)
    parent.send(signal.SIGTERM)
    assert parent.end() == 0
    assert "restart: done" not in parent.text
    assert all(map(gone, parent.pids()))

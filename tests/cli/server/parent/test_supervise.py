"""The parent of several brokers: who is started, stopped, started again and killed, and what is told of it."""

import os
import signal
import time

import httpx
import pytest

from tests.support.cli.stand_in_fleet import gone, until

pytestmark = pytest.mark.process


def test_every_broker_is_told_with_its_number_and_only_the_first_one_pastes(fleet):
    parent = fleet()
    parent.start()
    assert parent.urls.keys() == {1, 2, 3}
    assert len(set(parent.urls.values())) == 3
    for url in parent.urls.values():
        assert httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
    assert {f"[{n}] a log line" for n in (1, 2, 3)} <= set(parent.text.splitlines())
    until(lambda: "  curl something\n" in parent.text)
    assert parent.text.count("curl something") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_all_at_once_and_in_order(fleet, number):
    parent = fleet()
    parent.start()
    for member in (1, 2, 3):
        parent.order(member, "linger")
    parent.send(number)
    until(lambda: len(parent.events("term")) == 3)
    assert parent.events("stop") == []
    for member in (1, 2, 3):
        parent.order(member, "")
    assert parent.end() == 0
    assert sorted(parent.events("stop")) == [("stop", 1), ("stop", 2), ("stop", 3)]
    assert all(map(gone, parent.pids()))


def test_brokers_do_not_get_the_signals_of_the_parents_terminal(fleet):
    parent = fleet(brokers=2)
    parent.start()
    assert {os.getsid(parent.member_pid(n)) for n in (1, 2)} == {parent.member_pid(n) for n in (1, 2)}


def test_a_broker_that_dies_is_started_again_and_the_others_go_on(fleet):
    parent = fleet()
    parent.start()
    others = [parent.member_pid(1), parent.member_pid(3)]
    for start in (2, 3):
        os.kill(parent.member_pid(2), signal.SIGKILL)
        until(lambda start=start: parent.events("start").count(("start", 2)) == start)
    until(lambda: parent.text.count("[2] seaweedq broker.") == 3)
    assert [parent.member_pid(1), parent.member_pid(3)] == others
    pauses = [line.rpartition(" in ")[2] for line in parent.text.splitlines() if "was killed by SIGKILL" in line]
    assert pauses == ["0.2 s", "0.4 s"]
    assert parent.text.count("curl something") == 1
    parent.send(signal.SIGTERM)
    assert parent.end() == 0


def test_a_broker_that_cannot_start_at_first_ends_all_with_its_message(fleet):
    parent = fleet()
    parent.order(2, "end 2")
    parent.start(wait=False)
    assert parent.end() == 2
    assert "[2] seaweedq: such settings\n" in parent.text
    assert "broker 2 ended with 2 before it was ready" in parent.text
    assert parent.events("start").count(("start", 2)) == 0
    assert sorted(m for _, m in parent.events("start")) == sorted(m for _, m in parent.events("stop"))
    assert all(map(gone, parent.pids()))


def test_a_broker_that_cannot_start_later_is_tried_again_with_pauses(fleet):
    parent = fleet(brokers=2)
    parent.start()
    parent.order(1, "end 1")
    os.kill(parent.member_pid(1), signal.SIGKILL)
    until(lambda: parent.text.count("broker 1 ended with 1") == 2)
    parent.order(1, "")
    until(lambda: parent.events("start").count(("start", 1)) == 2)
    assert not gone(parent.member_pid(2))


def test_a_stop_ends_a_pause(fleet):
    parent = fleet(brokers=2)
    parent.start()
    parent.order(1, "end 1")
    os.kill(parent.member_pid(1), signal.SIGKILL)
    until(lambda: "starting it again in 3.2 s" in parent.text)
    began = time.monotonic()
    parent.send(signal.SIGTERM)
    assert parent.end() == 0
    assert time.monotonic() - began < 3


def test_a_second_signal_kills_and_is_no_end_in_order(fleet):
    parent = fleet(brokers=2)
    parent.start()
    parent.order(2, "linger")
    parent.send(signal.SIGTERM)
    until(lambda: parent.events("stop") == [("stop", 1)])
    parent.send(signal.SIGTERM)
    assert parent.end() == 1
    assert all(map(gone, parent.pids()))


def test_in_the_delay_a_second_signal_is_handed_on_and_a_third_one_kills(fleet):
    parent = fleet(brokers=2, delay_s=600)
    parent.start()
    for member in (1, 2):
        parent.order(member, "linger")
    for terms in (2, 4):
        parent.send(signal.SIGTERM)
        until(lambda terms=terms: len(parent.events("term")) == terms)
    assert parent.events("stop") == []
    parent.send(signal.SIGTERM)
    assert parent.end() == 1
    assert "SIGTERM again: stopping without the rest of shutdown_delay_s" in parent.text
    assert parent.text.count("killing all brokers") == 1
    assert all(map(gone, parent.pids()))


def test_who_does_not_stop_in_time_is_killed(fleet):
    parent = fleet(brokers=2, grace_s=1.2)
    parent.start()
    parent.order(2, "linger")
    parent.send(signal.SIGTERM)
    assert parent.end() == 1
    assert "1 broker did not stop within 1 s: killing it" in parent.text
    assert parent.events("stop") == [("stop", 1)]
    assert all(map(gone, parent.pids()))

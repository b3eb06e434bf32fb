"""The parent of several brokers: whom it starts, stops, starts again and kills, one after another on SIGHUP, and what
it says; a parent that is killed, that another one follows, or whose terminal goes."""

import os
import signal
import subprocess
import sys

import httpx
import pytest

from tests.support.cli.stand_in_fleet import gone, until

pytestmark = pytest.mark.process


def test_each_broker_is_told_with_its_number_and_only_the_first_pastes(fleet):
    parent = fleet()
    parent.start()
    assert parent.urls.keys() == {1, 2, 3}
    assert len(set(parent.urls.values())) == 3
    for url in parent.urls.values():
        assert httpx.get(f"{url}/readyz", timeout=30, trust_env=False).status_code == 200
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


def test_within_a_range_brokers_start_and_stop_with_the_load(fleet):
    parent = fleet(brokers="1..4")
    parent.start()
    first = parent.urls[1]
    parent.order(1, f"wish 3 {first}")
    parent.until_started(3)
    assert "starting broker 3, because the load needs 3 brokers" in parent.text
    parent.order(1, f"wish 9 {first}")
    parent.until_started(4)
    parent.order(1, f"wish 2 {first} {parent.urls[3]} {parent.urls[2]} {parent.urls[4]}")
    until(lambda: "broker 3 has stopped" in parent.text)
    assert parent.events("stop") == [("stop", 3)]  # one at a time, and never the first, whose port stays
    parent.order(4, f"wish 4 {first}")
    parent.until_started(5)
    assert parent.events("start")[-1] == ("start", 3)
    parent.send(signal.SIGTERM)
    assert parent.end() == 0
    assert all(map(gone, parent.pids()))
    assert "wants" not in parent.text


def test_a_broker_asked_for_by_the_load_alone_ends_no_other(fleet):
    parent = fleet(brokers="1..2")
    parent.order(2, "end 2")
    parent.start()
    parent.order(1, f"wish 2 {parent.urls[1]}")
    until(lambda: "broker 2 ended with 2 before it was ready" in parent.text)
    parent.order(2, "")
    parent.order(1, f"wish 2 {parent.urls[1]} again")
    parent.until_started(2)
    parent.send(signal.SIGTERM)
    assert parent.end() == 0


def test_a_broker_that_cannot_start_rests_and_another_one_takes_its_turn(fleet):
    parent = fleet(brokers="1..3")
    parent.order(2, "end 2")
    parent.start()
    for count in (1, 2):
        parent.order(1, f"wish 2 {parent.urls[1]} {count}")
        until(lambda count=count: parent.text.count("broker 2 ended with 2 before it was ready") == count)
    until(lambda: "broker 2 cannot start; it rests for 5 s" in parent.text)
    parent.order(1, f"wish 2 {parent.urls[1]} 3")
    parent.until_started(2)
    assert parent.events("start")[-1] == ("start", 3)
    assert parent.text.count("broker 2 ended with 2 before it was ready") == 2
    parent.send(signal.SIGTERM)
    assert parent.end() == 0


def test_a_restart_ends_if_a_broker_ends_before_it_was_ready(fleet):
    parent = fleet(brokers="1..2")
    parent.order(2, "mute")
    parent.start()
    parent.order(1, f"wish 2 {parent.urls[1]}")
    until(lambda: ("start", 2) in parent.events())
    parent.send(signal.SIGHUP)
    until(lambda: "restart: broker 2 ended before it was ready" in parent.text)
    parent.order(2, "")
    parent.order(1, f"wish 2 {parent.urls[1]} again")  # which no restart holds up any more
    until(lambda: parent.events("start").count(("start", 2)) == 2)
    parent.send(signal.SIGTERM)
    assert parent.end() == 0


def test_a_broker_that_does_not_stop_is_killed(fleet):
    parent = fleet(brokers="1..2", grace_s=3)
    parent.start()
    parent.order(1, f"wish 2 {parent.urls[1]}")
    parent.until_started(2)
    parent.order(2, "linger")
    parent.order(1, f"wish 1 {parent.urls[2]} {parent.urls[1]}")
    until(lambda: "broker 2 did not stop within 3 s; killing this broker" in parent.text)
    until(lambda: "broker 2 has stopped" in parent.text)
    assert gone(parent.member_pid(2))
    assert not gone(parent.member_pid(1))
    parent.send(signal.SIGTERM)
    assert parent.end() == 0


@pytest.mark.long
def test_a_stop_ends_a_pause(fleet):
    parent = fleet(brokers=2, pause_s=600)
    parent.start()
    os.kill(parent.member_pid(1), signal.SIGKILL)
    until(lambda: "restarting this broker in 600.0 s" in parent.text)
    parent.send(signal.SIGTERM)
    assert parent.end() == 0


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
    assert "received SIGTERM again; stopping now, without waiting for the rest of shutdown_delay_s" in parent.text
    assert parent.text.count("killing all brokers") == 1
    assert all(map(gone, parent.pids()))


def test_who_does_not_stop_in_time_is_killed(fleet):
    parent = fleet(brokers=2, grace_s=3)
    parent.start()
    parent.order(2, "linger")
    parent.send(signal.SIGTERM)
    assert parent.end() == 1
    assert "1 broker did not stop within 3 s; killing it" in parent.text
    assert parent.events("stop") == [("stop", 1)]
    assert all(map(gone, parent.pids()))


def test_a_second_parent_on_the_folder_is_refused_and_told_who_has_it(fleet):
    first, second = fleet(brokers=2), fleet(brokers=2)
    first.start()
    second.start(wait=False)
    assert second.end() == 1
    assert f"is in use by process {first.pid}" in second.text
    assert len(first.events("start")) == 2


def test_brokers_of_a_killed_parent_stop(fleet):
    parent = fleet()
    parent.start()
    parent.send(signal.SIGKILL)
    until(lambda: len(parent.events("stop")) == 3)
    assert sorted(parent.events("orphan")) == [("orphan", 1), ("orphan", 2), ("orphan", 3)]
    until(lambda: all(map(gone, parent.pids())))


def test_a_process_with_a_lifeline_gets_sigterm_when_it_ends():
    code = "import signal; from seaweedq.cli.server.stop_signals import end_with_parent; end_with_parent(); "
    code += "print('up', flush=True); "
    with subprocess.Popen(
        [sys.executable, "-c", code + "signal.pause()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        assert child.poll() is None
        child.stdin.close()
        assert child.wait(30) == -signal.SIGTERM


def test_one_broker_that_dies_does_not_hold_the_lifeline_of_the_others(fleet):
    # A child started later must not have inherited the parent's end of the pipe.
    parent = fleet(brokers=2)
    parent.start()
    os.kill(parent.member_pid(1), signal.SIGKILL)
    until(lambda: parent.events("start").count(("start", 1)) == 2)
    parent.send(signal.SIGKILL)
    until(lambda: sorted(parent.events("orphan")) == [("orphan", 1), ("orphan", 2)])


def test_a_new_parent_waits_for_the_brokers_of_a_killed_one(fleet):
    old, new = fleet(brokers=2), fleet(brokers=2)
    old.start()
    old.order(2, "linger")
    old.send(signal.SIGKILL)
    old.end()
    until(lambda: ("stop", 1) in old.events())
    new.start(wait=False)
    until(
        lambda: (
            (f"members/2 is in use by process {old.member_pid(2)}" in new.text)
            and ("waiting for an orphaned broker to stop" in new.text)
        )
    )
    assert len(new.events("start")) == 2
    new.order(2, "")
    until(lambda: len(new.events("start")) == 4)
    assert new.events().index(("stop", 2)) < new.events().index(("start", 1), 4)


def test_a_new_parent_is_refused_where_an_old_broker_does_not_stop(fleet):
    old, new = fleet(brokers=3), fleet(brokers=2, grace_s=1.2)
    old.start()
    old.order(3, "linger")
    old.send(signal.SIGKILL)
    until(lambda: len(old.events("stop")) == 2)
    new.start(wait=False)
    assert new.end() == 1
    assert f"members/3 is in use by process {old.member_pid(3)}" in new.text
    assert len(new.events("start")) == 3


def test_a_terminal_that_goes_stops_all(fleet):
    parent = fleet(brokers=2)
    outer, inner = os.openpty()
    parent.start(terminal=os.ttyname(inner))
    os.close(inner)
    parent.send(signal.SIGHUP)
    until(lambda: "restart: done" in parent.text)
    os.close(outer)
    assert parent.end() == 0
    assert "received SIGHUP; stopping all brokers" in parent.text
    assert all(map(gone, parent.pids()))


def test_a_new_parent_removes_what_puts_that_were_cut_off_have_left(fleet):
    parent = fleet(brokers=2)
    left = parent.data_dir / "store" / "_tmp" / "cut-off"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half of it")
    parent.start()
    assert not left.exists()


def test_one_after_another(fleet):
    parent = fleet()
    parent.start()
    pid = parent.pid
    parent.send(signal.SIGHUP)
    until(lambda: "restart: done" in parent.text)
    rolled = parent.events("term", "stop", "start")[3:]
    assert rolled == [(what, member) for member in (1, 2, 3) for what in ("term", "stop", "start")]
    assert parent.pid == pid
    assert "restarting this broker in" not in parent.text
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


@pytest.mark.long
def test_a_broker_that_is_dead_at_that_moment_is_started_at_once(fleet):
    parent = fleet(brokers=2, pause_s=600)
    parent.start()
    os.kill(parent.member_pid(1), signal.SIGKILL)
    until(lambda: "restarting this broker in 600.0 s" in parent.text)
    parent.send(signal.SIGHUP)
    until(lambda: "restart: broker 1 is ready again" in parent.text)
    until(lambda: "restart: done" in parent.text)


def test_one_that_does_not_stop_is_killed_and_started_again(fleet):
    parent = fleet(brokers=2, grace_s=1.2)
    parent.start()
    stuck = parent.member_pid(1)
    os.kill(stuck, signal.SIGSTOP)
    parent.send(signal.SIGHUP)
    until(lambda: "restart: done" in parent.text)
    assert "broker 1 did not stop within 1 s; killing this broker" in parent.text
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

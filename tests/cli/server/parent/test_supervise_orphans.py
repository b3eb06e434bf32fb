"""A parent that is killed, that another one follows, or whose terminal goes."""

import os
import signal
import subprocess
import sys

import pytest

from tests.support.cli.stand_in_fleet import gone, until

pytestmark = pytest.mark.process


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
    until(lambda: f"members/2 is in use by process {old.member_pid(2)}, whose parent has ended: waiting" in new.text)
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
    assert "SIGHUP: stopping all brokers" in parent.text
    assert all(map(gone, parent.pids()))


def test_a_new_parent_removes_what_puts_that_were_cut_off_have_left(fleet):
    parent = fleet(brokers=2)
    left = parent.data_dir / "store" / "_tmp" / "cut-off"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half of it")
    parent.start()
    assert not left.exists()

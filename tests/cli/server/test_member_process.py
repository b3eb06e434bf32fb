"""Several brokers on one machine, the decisions: settings, command lines, pauses; and the lines of a pipe."""

import asyncio
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from seaweedq.cli.main import app
from seaweedq.cli.server import broker_process
from seaweedq.cli.server.given_settings import check_members, settings_of
from seaweedq.cli.server.member_process import (
    CHUNK_BYTES,
    LAST_PAUSE_S,
    QUICK_S,
    Lines,
    Member,
    check_folder,
    ended_in_order,
    exit_words,
    homes,
    hopeless,
    member_command,
    pause_s,
    quick_ends,
    wish_in,
    wish_line,
)
from seaweedq.cli.server.supervise import change_of
from seaweedq.errors import InvalidRequest
from seaweedq.settings import BrokerRange, Settings


@pytest.mark.parametrize(
    ("given_", "field"),
    [
        ({"member": 1}, "member"),
        ({"brokers": 2, "member": 3}, "member"),
        ({"brokers": 2, "coordination": "etcd://a:1"}, "brokers"),
        ({"brokers": 2, "member": 2, "coordination": "etcd://a:1"}, "brokers"),
        ({"brokers": 2, "advertise_url": "http://a"}, "advertise_url"),
        ({"brokers": 3, "port": 65_534}, "port"),
    ],
)
def test_settings_that_are_refused(given_, field):
    with pytest.raises(InvalidRequest) as caught:
        check_members(Settings(**given_))
    assert caught.value.fields["field"] == field


@pytest.mark.parametrize(
    "given_",
    [
        {},
        {"coordination": "etcd://a:1", "advertise_url": "http://a"},
        {"brokers": 2},
        {"brokers": 2, "member": 2},
        {"brokers": 64, "port": 0},
        {"brokers": 3, "port": 65_533},
        {"brokers": 3, "member": 3, "port": 65_535},
    ],
)
def test_settings_that_are_taken(given_):
    check_members(Settings(**given_))


@pytest.mark.parametrize(("port", "ports"), [(9000, ["9000", "9001", "9002"]), (0, ["0", "0", "0"])])
def test_each_is_started_like_its_parent_with_a_number_and_a_port(tmp_path, monkeypatch, port, ports):
    monkeypatch.chdir(tmp_path)
    settings = Settings(brokers=3, port=port, data_dir="here")
    commands = [member_command(["program", "--port", "1"], settings, n) for n in (1, 2, 3)]
    for number, command in enumerate(commands, 1):
        options = dict(zip(command[1::2], command[2::2], strict=True))  # of one that comes twice the last counts
        assert command[0] == "program"
        assert options == {
            "--data-dir": str(tmp_path / "here"),
            "--brokers": "3",
            "--member": str(number),
            "--port": ports[number - 1],
            "--peer-port": "0",
            "--grpc-port": "0",
        }


@pytest.mark.parametrize("given_", ["1..4", (1, 4)])
def test_a_range_of_brokers_is_handed_on(tmp_path, given_):
    settings = Settings(brokers=BrokerRange(*given_) if isinstance(given_, tuple) else given_, data_dir=tmp_path)
    assert settings.brokers == (1, 4)
    command = member_command(["program"], settings, 2)
    assert command[command.index("--brokers") + 1] == "1..4"


def test_a_range_may_be_a_variable(monkeypatch):
    monkeypatch.setenv("SEAWEEDQ_BROKERS", "2..5")
    assert settings_of(None, {}).brokers == (2, 5)
    monkeypatch.setenv("SEAWEEDQ_BROKERS", "5..2")
    with pytest.raises(InvalidRequest, match=r"brokers='5\.\.2': .* \(given by SEAWEEDQ_BROKERS\)"):
        settings_of(None, {})


@pytest.mark.parametrize("given_", ["0", "65", "2..1", "0..3", "1..65", "1..", "..3", "1-3", "", True, 1.5, "²"])
def test_other_numbers_of_brokers_are_refused(given_):
    with pytest.raises(ValidationError, match="a number from 1 to 64, or a range of such numbers"):
        Settings(brokers=given_)


def test_a_wish_is_read_as_it_was_told():
    assert wish_in(wish_line(3, ["http://a", "http://b"]).encode()) == (3, ["http://a", "http://b"])
    assert wish_in(wish_line(1, []).encode()) == (1, [])
    assert wish_in(b"seaweedq broker.1 at http://a, store file:///s") is None


async def test_a_broker_that_waits_for_a_rebuild_tells_no_wish(monkeypatch):
    monkeypatch.setattr(broker_process, "WISH_S", 0)
    waiting: Any = SimpleNamespace(waiting="a rebuild")  # such a broker has no leadership
    async with asyncio.timeout(15):
        await broker_process.tell_wishes(waiting)


@given(st.integers(1, 6), st.integers(0, 6), st.sets(st.integers(1, 12)), st.integers(0, 20), st.randoms())
def test_members_start_and_stop_within_the_range(least, more, running, wanted, random):
    brokers = BrokerRange(least, least + more)
    running = {number: f"http://{number}" for number in running | set(range(1, least + 1)) if number <= brokers.most}
    urls = random.sample([*running.values()], random.randint(0, len(running)))
    change = change_of(brokers, running, wanted, urls)
    after = (set(running) | {number for number in change if number > 0}) - {-number for number in change}
    assert set(range(1, least + 1)) <= after <= set(range(1, brokers.most + 1))
    if wanted >= len(running):
        assert len(after) == max(len(running), min(wanted, brokers.most))
    else:
        assert len(after) >= max(len(running) - 1, min(wanted, len(running)))
        stopped = [number for number in running if number not in after]
        assert all(running[number] in urls for number in stopped)


@pytest.mark.process
async def test_the_lease_of_a_member_that_does_not_stop_in_order_ends():
    ended, (lifeline, _) = [], os.pipe()

    async def end_lease(number):
        ended.append(number)

    ignores = "import signal, time; signal.signal(15, signal.SIG_IGN); print('seaweedq x at http://a, s', flush=True)"
    command = [sys.executable, "-c", f"{ignores}; time.sleep(60)"]
    member = Member(2, command, lifeline, 1.0, end_lease, lambda *_: None)
    keeping = asyncio.create_task(member.keep())
    while not member.url:
        await asyncio.sleep(0.01)
    member.stop()
    member.kill()
    assert (await keeping, ended) == (1, [2])


def test_journals_of_a_broker_that_ran_alone_are_not_passed_over(tmp_path):
    settings = Settings(data_dir=tmp_path, brokers=2)
    check_folder(settings)
    (tmp_path / "journals").mkdir()
    check_folder(settings)
    (tmp_path / "journals" / "broker.0").mkdir()
    with pytest.raises(InvalidRequest, match="a broker that ran without the setting"):
        check_folder(settings)


def test_homes_are_those_of_all_members_that_ever_were(tmp_path):
    settings = Settings(data_dir=tmp_path, brokers=2)
    assert homes(settings) == []
    for number in (1, 2, 5):
        settings.model_copy(update={"member": number}).home.mkdir(parents=True)
    assert [home.name for home in homes(settings)] == ["1", "2", "5"]


def test_the_first_end_costs_no_pause_and_quick_ones_ever_more():
    quick, pauses = 0, []
    for lived_s in [QUICK_S, *[1.0] * 7, QUICK_S + 1, 0.0]:
        quick = quick_ends(quick, lived_s)
        pauses.append(pause_s(quick))
    assert pauses == pytest.approx([0, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 0, 0.2])


@given(st.integers(1, 10**9))
def test_a_pause_is_bounded_and_never_shrinks(quick):
    assert 0 < pause_s(quick) <= pause_s(quick + 1) <= LAST_PAUSE_S


@pytest.mark.parametrize(
    ("code", "greeted", "in_order"), [(0, True, True), (0, False, True), (-15, False, True), (-15, True, False)]
)
def test_before_its_greeting_a_broker_may_be_ended_by_the_signal_itself(code, greeted, in_order):
    assert ended_in_order(code, greeted) is in_order
    assert not ended_in_order(-9, greeted)
    assert not ended_in_order(1, greeted)


def test_hopeless_is_what_ended_by_itself_and_was_never_ready():
    assert [hopeless(code, False) for code in (0, 1, 2, -9)] == [False, True, True, False]
    assert not any(hopeless(code, True) for code in (0, 1, 2, -9))


def test_exit_codes_are_told_in_words():
    assert exit_words(-9) == "was killed by SIGKILL"
    assert exit_words(-34 - 3) == "was killed by signal 37"
    assert exit_words(3) == "ended with 3"


@given(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\n\n", b"d\ne"])))
def test_lines_are_the_same_however_they_come(parts):
    lines = Lines()
    found = [line for part in [*parts, b""] for line in lines.feed(part)]
    whole = b"".join(parts)
    expected = whole.split(b"\n")
    assert found == (expected if expected[-1] else expected[:-1])


def test_a_line_without_end_is_not_kept_for_ever():
    lines = Lines()
    assert lines.feed(b"a" * CHUNK_BYTES) == []
    assert lines.feed(b"b") == [b"a" * CHUNK_BYTES + b"b"]
    assert lines.feed(b"c\n") == [b"c"]


def test_wrong_settings_end_serve_before_anything_is_made(tmp_path):
    from typer.testing import CliRunner

    data_dir = tmp_path / "data"
    result = CliRunner().invoke(app, ["serve", "--data-dir", str(data_dir), "--brokers", "2", "--member", "3"])
    assert isinstance(result.exception, InvalidRequest)
    assert not data_dir.exists()

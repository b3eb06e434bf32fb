"""Every program in examples/ runs as it is, over one broker, and does what it says."""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from seaweedq import Client
from tests.support.paths import ROOT
from tests.support.processes.broker_process import BrokerProcess

EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh"))
Run = Callable[..., str]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path_factory.mktemp("examples") / "data")
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def run(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a Python program, in this process, and returns what it printed."""

    def of(name: str, *arguments: str) -> str:
        monkeypatch.setenv("SEAWEEDQ_URL", broker.url)
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return of


@pytest.mark.process
def test_two_consumers_share_the_orders(run: Run) -> None:
    printed = run("orders.py")
    assert "published 300 orders\n" in printed
    assert sum(int(number) for number in re.findall(r"billed (\d+) orders", printed)) >= 300
    assert "20 customers, the orders of each in order: yes\n" in printed


@pytest.mark.process
def test_each_row_of_a_ledger_is_published_once(run: Run) -> None:
    run("idempotent_producer.py")
    printed = run("idempotent_producer.py")  # another ledger, on the same topic
    assert "killed with row 300 published, and 300 rows written down\n" in printed
    assert "killed with row 700 published, and 700 rows written down\n" in printed
    assert "rows in the ledger: 1000, messages that came to the topic: 1000\n" in printed


@pytest.mark.process
def test_files_come_as_they_were(run: Run, tmp_path: Path) -> None:
    (tmp_path / "song.mp3").write_bytes(Random(0).randbytes(2_000_000))
    printed = run("big_files.py", str(tmp_path / "song.mp3"))
    assert "song.mp3: 2,000,000 bytes are message 0-0\n" in printed
    assert "song.mp3: audio/mpeg, as it was\n" in printed


@pytest.mark.process
def test_a_table_is_imported_and_nothing_of_a_bad_one(run: Run) -> None:
    printed = run("import_measurements.py", "5000")
    assert "imported 5,000 rows" in printed
    assert "nothing of bad.ndjson: " in printed
    assert "in the topic: 5,000 rows\n" in printed


@pytest.mark.process
def test_a_token_of_an_issuer_publishes_until_it_is_denied() -> None:
    ran = subprocess.run([sys.executable, str(EXAMPLES / "oidc.py")], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert "alice published 1 message to flights\n" in ran.stdout
    assert "alice may not publish to orders: the request needs the right publish on 'orders'\n" in ran.stdout
    assert "denied sub alice; to allow it: seaweedq denial remove sub-" in ran.stdout
    assert "alice's tokens are denied\n" in ran.stdout


@pytest.mark.process
def test_one_trace_has_all_steps_of_a_message() -> None:
    ran = subprocess.run([sys.executable, str(EXAMPLES / "traces.py")], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    (_, shown) = (ROOT / "docs/operate/traces.md").read_text().split("```text\ncheckout")
    assert ran.stdout == f"billed {{'order': 1}}\ncheckout{shown.partition('```')[0]}"


@pytest.mark.process
def test_the_dashboard_shows_what_comes(run: Run) -> None:
    pytest.importorskip("polars")
    for _ in range(5):  # on a busy machine nothing may come within a second
        printed = run("dashboard.py", "--feed", "--seconds", "1")
        assert "visits, the last 60 s" in printed
        if found := re.search(r"│ /\w*\s+│\s+[1-9]\d* ", printed):
            break
    assert found


def ship(broker: BrokerProcess, log: Path) -> str:
    ended = shipped(broker, log)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def shipped(broker: BrokerProcess, log: Path) -> subprocess.CompletedProcess[str]:
    command = [str(EXAMPLES / "log_shipper.sh"), str(log)]
    environment = {**os.environ, "SEAWEEDQ_URL": broker.url, "no_proxy": "127.0.0.1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.process
def test_a_log_is_shipped_once_although_the_shipper_is_killed(broker: BrokerProcess, tmp_path: Path) -> None:
    log, state = tmp_path / "app.log", tmp_path / "app.log.shipped"
    lines = [f'{{"level": "info", "n": {number}}}\n' for number in range(1_500)]
    log.write_text("".join(lines[:1_400]) + '{"half": ')
    assert "1400 lines" in ship(broker, log)
    log_and_id = state.read_text().rsplit(" ", 2)[0]
    state.write_text(f"{log_and_id} 1000 400\n")  # as if it had been killed before it noted that they were taken
    log.write_text("".join(lines))
    assert "1500 lines" in ship(broker, log)
    with Client(broker.url) as client:
        messages = list(client.subscribe("logs", "reader", start="earliest", idle_timeout_s=0.2))
    assert [message.value["n"] for message in messages] == [*range(1_500)]
    assert (broker.alive, state.read_text()) == (True, f"{log_and_id} 1500 0\n")


@pytest.mark.process
def test_a_log_that_is_rotated_is_shipped_to_its_end_before_the_new_one(broker: BrokerProcess, tmp_path: Path) -> None:
    log = tmp_path / "rotated.log"
    log.write_text('{"r": 1}\n{"r": 2}\n')
    ship(broker, log)
    with log.open("a") as more:
        more.write('{"r": 3}\n')
    log.rename(tmp_path / "rotated.log.1")
    log.write_text('{"r": 4}\n')
    ship(broker, log)
    (tmp_path / "rotated.log.1").unlink()
    log.write_text('{"r": 5}\n{"r": 6}\n')  # truncated
    assert "2 lines" in ship(broker, log)
    with Client(broker.url) as client:
        messages = client.subscribe("logs", "rotations", start="earliest", idle_timeout_s=0.2)
        assert [message.value["r"] for message in messages if "r" in message.value] == [1, 2, 3, 4, 5, 6]


@pytest.mark.process
def test_a_line_that_is_refused_is_named(broker: BrokerProcess, tmp_path: Path) -> None:
    (tmp_path / "bad.log").write_text('{"good": 1}\n{"bad": \n')
    refused = shipped(broker, tmp_path / "bad.log")
    assert (refused.returncode, "message 1 is not valid" in refused.stderr) == (1, True), refused.stderr
    gone = shipped(broker, tmp_path / "gone.log")
    assert (gone.returncode, gone.stderr) == (1, f"there is no file {tmp_path / 'gone.log'}\n")


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_short_and_listed(name: str) -> None:
    assert 30 <= len((EXAMPLES / name).read_text().splitlines()) <= 80
    assert f"]({name})" in (EXAMPLES / "README.md").read_text()


def test_there_are_eight() -> None:
    assert len(PROGRAMS) == 8

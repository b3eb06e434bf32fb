"""`seaweedq publish` beside brokers that fall silent, and people who have waited long enough."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from seaweedq.cli.data import publication
from seaweedq.cli.data.publication import Publication, watched
from seaweedq.client.core.producing.delivery import Outcome
from seaweedq.client.core.protocol.wire import Published
from seaweedq.client.sync.receipts import Delivery, Receipt
from tests.support.processes.broker_process import BrokerProcess

PATIENCE_S = 20.0


class Silent:
    """A producer whose brokers answer once they are told to: a real one would be silent for seconds."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self._delivery = Delivery()

    def send(self, value: object) -> Receipt:
        return Receipt(self._delivery, 0)

    def flush(self) -> None:
        self.acknowledged = 1
        self._delivery.settle(Outcome(Published(1, [])))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "SILENT_S", 0.05)
    monkeypatch.setattr(publication, "LOOK_S", 0.01)


def _said(capsys: pytest.CaptureFixture[str], text: str) -> Iterator[str]:
    said, end_s = "", time.monotonic() + PATIENCE_S
    while text not in said:
        assert time.monotonic() < end_s, said
        time.sleep(0.01)
        said += capsys.readouterr().err
    yield said


@pytest.mark.usefixtures("impatient")
def test_silence_is_told_once_and_so_is_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    producer = Silent()
    sent = Publication(producer, "stdin", skip_invalid=False)  # type: ignore[arg-type]
    shown: list[int] = []
    with watched(sent, shown.append):
        sent.send(1, lambda: {"value": 1})
        (said,) = _said(capsys, "no broker has taken a message for")
        assert "trying until" in said
        time.sleep(0.2)
        assert capsys.readouterr().err == ""
        sent.flush()
        assert next(_said(capsys, "brokers take messages again"))
    assert shown[-1] == 1


def test_ctrl_c_says_how_many_were_taken(real_broker: BrokerProcess) -> None:
    command = [sys.executable, "-m", "seaweedq", "publish", "interrupted", "--url", real_broker.url]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdin is not None
        process.stdin.write("1\n2\n3\n")
        process.stdin.flush()
        end_s = time.monotonic() + PATIENCE_S
        while _messages(real_broker) < 3:
            assert time.monotonic() < end_s
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (130, "")
    assert out.startswith("published 3 messages to interrupted; of 0 more it is not known")


def _messages(broker: BrokerProcess) -> int:
    import httpx

    answer = httpx.get(f"{broker.url}/v1/topics/interrupted", trust_env=False)
    return int(answer.json().get("messages", 0))

"""What the journal lets go of: acks stay until a checkpoint has them, also when the rows beside them are in files."""

import httpx
import pytest

from tests.support.history.checker import Run, check
from tests.support.history.final_read import flush, in_files, over_http
from tests.support.history.load import Observer, Publisher, Subscriber, create, until

pytestmark = pytest.mark.process

FILE_BYTES = 65_536
PATIENT = {"max_age_s": 86_400, "max_bytes": 64 * 1024 * 1024}


@pytest.mark.long
def test_acks_outlive_the_release_of_the_rows_around_them(broker_process, history):
    broker = broker_process("--checkpoint-s", "600", "--journal-file-bytes", str(FILE_BYTES))
    create(broker.url, flush=PATIENT)
    publish(broker, history, "before")
    Subscriber("subscriber", broker.url, history, 0).steps(3)
    Observer("observer", broker.url, history, 0).steps(1)
    publish(broker, history, "after")
    held = unreleased_bytes(broker)
    assert held > 2 * FILE_BYTES
    flush(broker.url)
    until(lambda: unreleased_bytes(broker) < held, what="a release")
    until(lambda: not list(broker.data_dir.glob("journals/*/00000000.journal")), what="the first file's end")
    broker.kill()
    broker.start()
    Observer("observer", broker.url, history, 1).steps(1)
    Subscriber("subscriber", broker.url, history, 1).steps(3)
    assert check(Run(history.events, over_http(broker.url), in_files(broker.store))) == []
    assert any(event.op == "ack" and event.type == "ok" for event in history.events)


def publish(broker, history, name):
    """More than a journal file holds."""
    before = unreleased_bytes(broker)
    for part in range(20):
        Publisher(f"{name}-{part}", broker.url, history, 0, idempotent=True).steps(10)
        if unreleased_bytes(broker) > before + 1.2 * FILE_BYTES:
            return
    raise AssertionError("too little was published")


def unreleased_bytes(broker):
    text = httpx.get(f"{broker.url}/metrics", timeout=30, trust_env=False).text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("seaweedq_journal_unreleased"))

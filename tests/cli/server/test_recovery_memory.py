"""The resident memory of a broker that recovers a journal larger than its budget."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random

import httpx
import pytest

from tests.support.processes.broker_process import BrokerProcess

pytestmark = pytest.mark.process

MIB = 1 << 20
BODY = 8 * MIB
BODIES = 29  # 232 MiB
TOPICS = 16


def most_resident(broker: BrokerProcess) -> int:
    """The most memory that a broker's process ever held, in bytes."""
    assert broker.process is not None
    with open(f"/proc/{broker.process.pid}/status") as status:
        (line,) = (line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def publish(url: str, number: int) -> None:
    """Publishes a large body, which hardly compresses, to one of several topics."""
    random = Random(number)
    lines = [b'{"key":"%d","value":"%s"}' % (n, random.randbytes(6_000).hex().encode()) for n in range(BODY // 12_000)]
    answer = httpx.post(
        f"{url}/v1/topics/t{number % TOPICS}/messages",
        content=b"\n".join(lines),
        headers={"content-type": "application/x-ndjson"},
        timeout=60,
        trust_env=False,
    )
    assert answer.status_code == 200, answer.text


@pytest.mark.long
def test_recovery_takes_no_more_than_its_share(broker_process: Callable[..., BrokerProcess]) -> None:
    large = {"SEAWEEDQ_MEMORY_BUDGET_BYTES": str(2048 * MIB), "SEAWEEDQ_JOURNAL_MAX_UNRELEASED_BYTES": str(1024 * MIB)}
    broker = broker_process(env=large)
    for number in range(TOPICS):
        httpx.put(f"{broker.url}/v1/topics/t{number}", json={}, timeout=30, trust_env=False).raise_for_status()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda number: publish(broker.url, number), range(BODIES)))
    broker.kill()
    (folder,) = (broker.data_dir / "journals").iterdir()
    assert sum(path.stat().st_size for path in folder.iterdir()) > 200 * MIB
    idle = broker_process(env={"SEAWEEDQ_MEMORY_BUDGET_BYTES": str(64 * MIB)})
    before = most_resident(idle)
    idle.kill()
    broker.env["SEAWEEDQ_MEMORY_BUDGET_BYTES"] = str(64 * MIB)
    broker.start()
    taken = most_resident(broker) - before
    assert taken < 100 * MIB, f"a recovery of {BODIES * 8} MiB took {taken / MIB:.0f} MiB"

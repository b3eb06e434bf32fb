"""A broker is killed at each step of a change of a schema, while publishers of two versions publish: each acknowledged
row is there once, with its values, and no file has two versions."""

import signal
import threading
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from tests.support.history.load import until
from tests.support.processes.broker_process import BrokerProcess
from tests.support.tiers import later, soaked

pytestmark = pytest.mark.process

BEFORE = [
    {"name": "k", "type": "string", "required": True},
    {"name": "n", "type": "int"},
    {"name": "old", "type": "int"},
]
AFTER = [  # `n` and the key field have other names
    {"name": "x", "type": "double"},
    {"id": 2, "name": "number", "type": "long"},
    {"id": 1, "name": "key", "type": "string"},
]


class Publisher(threading.Thread):
    """Repeats each request until it is answered, of these brokers in turn. `version` 1 states no version, 0 its own; it
    never sends what was dropped."""

    def __init__(self, urls: Sequence[str], version: int, topic: str = "t") -> None:
        super().__init__(daemon=True)
        self.paths = cycle(f"{url}/v1/topics/{topic}/messages" for url in urls)
        self.version = version
        self.stopping = threading.Event()
        self.sent: list[dict[str, Any]] = []
        self.wrong = ""

    def run(self) -> None:
        while not self.stopping.is_set() and not self.wrong:
            number = len(self.sent)
            key = f"{self.version}-{number}"
            row = {"key": key, "number": 2**40, "x": 0.5} if self.version else {"k": key, "n": number}
            headers = {"Producer-Id": f"p{self.version}", "Producer-Sequence": str(number)}
            if not self.version:
                headers["Schema-Id"] = "0"
            self._publish({"value": row}, headers)
            self.sent.append(row)

    def _publish(self, body: dict[str, Any], headers: dict[str, str]) -> None:
        while True:
            try:
                answer = httpx.post(next(self.paths), json=body, headers=headers, timeout=30, trust_env=False)
            except httpx.TransportError:
                self.stopping.wait(0.05)
                continue
            if answer.status_code != 503:
                self.wrong = "" if answer.status_code == 200 else answer.text
                return


def found_of(old: Publisher, new: Publisher) -> dict[str, dict[str, Any]]:
    """What was acknowledged, by key, as the next version shows it."""
    found = {row["key"]: row for row in new.sent}
    return found | {row["k"]: {"x": None, "number": row["n"], "key": row["k"]} for row in old.sent}


@pytest.mark.parametrize(
    "place",
    [
        *map(later, ("schema.marked", "change.made:3", "commit.durable:40")),
        *map(soaked, ("schema.decided", "schema.counted", "entry.append:4")),
    ],
)
def test_a_kill_amid_a_change_loses_no_row(broker_process: Callable[..., BrokerProcess], place: str) -> None:
    broker = broker_process(env={"SEAWEEDQ_FAIL_AT": place})

    def ask(method: str, path: str = "", **more: Any) -> httpx.Response:
        return httpx.request(method, f"{broker.url}/v1/topics/t{path}", timeout=30, trust_env=False, **more)

    made = ask("PUT", json={"format": "typed", "schema": {"fields": BEFORE}, "key_field": "k"})
    assert made.status_code == 201, made.text
    old = Publisher([broker.url], 0)
    old.start()
    until(lambda: len(old.sent) > 10, what="rows of the first version")
    change = {"schema": {"fields": AFTER}, "if_schema_id": 0}
    if place.startswith(("schema", "change")):
        with pytest.raises(httpx.TransportError):
            ask("PATCH", json=change)
    else:
        assert ask("PATCH", json=change).status_code == 200
        until(lambda: not ask_dies(ask), what="the death of the broker")
    assert broker.wait_gone() == -signal.SIGKILL
    broker.start(env={"SEAWEEDQ_FAIL_AT": ""})
    changed = ask("PATCH", json=change).json()
    assert (changed["schema_id"], changed["key_field"]) == (1, "key")
    new = Publisher([broker.url], 1)
    new.start()
    until(lambda: len(new.sent) > 20, what="rows of the next version")
    for publisher in (old, new):
        publisher.stopping.set()
        publisher.join(30)
        assert not publisher.wrong
    page = ask("GET", "/segments/0/messages?offset=0&limit=1000").json()["messages"]
    expected = found_of(old, new)
    assert len(page) == len(expected) < 1000
    assert {message["value"]["key"]: message["value"] for message in page} == expected
    assert all(message["key"] == message["value"]["key"] for message in page)
    assert ask("POST", "/flush").status_code == 200
    folder = broker.store / "topics" / "t"
    files = sorted((folder / "segment=0").iterdir())
    columns = [[name for name in pq.read_schema(file).names if not name.startswith("_")] for file in files]
    assert sorted(columns, key=lambda names: "x" in names) == columns, "versions rise"
    assert [*map(tuple, columns)].count(("k", "n", "old")) + [*map(tuple, columns)].count(
        ("x", "number", "key")
    ) == len(files)
    assert len(list((folder / "segment=-1").iterdir())) == 1


def ask_dies(ask: Callable[..., httpx.Response]) -> bool:
    """Whether the broker still answers; it also flushes."""
    try:
        ask("POST", "/flush")
    except httpx.TransportError:
        return False
    return True

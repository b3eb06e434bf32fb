"""Data folders of this version: the next one starts on them, and so does this one again; once the level has risen this
one ends, says why, and changes nothing. It does the same on a folder that an unreleased version made."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq.cli.main import main
from seaweedq.levels import DRAFT, HIGHEST
from tests.support.processes.broker_process import BrokerProcess
from tests.support.upgrade.trees import tree_with_one_level_more

pytestmark = pytest.mark.process

TOPIC = "/v1/topics/t"
SUBSCRIPTION = f"{TOPIC}/subscriptions/s"


class Folder:
    """A data folder, and the version that runs on it at the moment."""

    def __init__(self, process: BrokerProcess) -> None:
        self.process = process
        self.sent = 0
        self.pulled: list[int] = []

    def run(self, tree: Path | None) -> None:
        """Start that version; None is this one."""
        self.process.tree = tree
        self.process.start()

    def ask(self, method: str, path: str, **more: Any) -> Any:
        """An answer; fails unless it is 2xx."""
        answer = httpx.request(method, f"{self.process.url}{path}", timeout=30, trust_env=False, **more)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    def publish(self, count: int = 10) -> None:
        """Messages with values that go on counting."""
        messages = [{"key": f"k{n}", "value": n} for n in range(self.sent, self.sent + count)]
        self.ask("POST", f"{TOPIC}/messages", json={"messages": messages})
        self.sent += count

    def pull(self) -> None:
        """All messages that are due, which are acked."""
        while found := self.ask("POST", f"{SUBSCRIPTION}/pull", json={"max_messages": 100, "wait_s": 0})["messages"]:
            self.pulled += [message["value"] for message in found]
            self.ask("POST", f"{SUBSCRIPTION}/ack", json={"ids": [message["id"] for message in found]})

    def level(self) -> int:
        """The cluster's."""
        level: int = self.ask("GET", "/v1/cluster")["level"]
        return level

    def content(self) -> tuple[list[Any], list[tuple[str, bytes]]]:
        """All of coordination, and all objects of the store."""
        with closing(sqlite3.connect(self.process.data_dir / "coordination.db")) as database:
            entries = database.execute("SELECT key, value FROM entries ORDER BY key").fetchall()
        files = [path for path in sorted(self.process.store.rglob("*")) if path.is_file()]
        return entries, [(str(path), path.read_bytes()) for path in files]

    def refuses(self, tree: Path | None, says: str) -> None:
        """That version ends at its start, with one line, and changes nothing."""
        before = self.content()
        self.process.tree = tree
        self.process.start(wait=False)
        assert self.process.wait_gone(60) == 1
        assert says in self.process.log.splitlines()[-1]
        assert self.content() == before


@pytest.fixture
def folder(broker_process: Callable[..., BrokerProcess]) -> Iterator[Folder]:
    return Folder(broker_process("--lease-s", "3", start=False))


@pytest.mark.long
def test_there_and_back_and_there_for_ever(folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    later = tree_with_one_level_more(tmp_path / "after")
    folder.run(None)
    folder.ask("PUT", TOPIC, json={"initial_segments": 2})
    folder.ask("PUT", SUBSCRIPTION, json={"start": "earliest"})
    folder.publish()
    folder.process.kill()  # its journal is left
    folder.run(later)
    assert folder.level() == HIGHEST
    folder.publish()
    folder.pull()
    folder.publish()
    folder.process.kill()
    folder.run(None)
    folder.publish()
    folder.pull()
    folder.process.terminate()
    folder.run(later)
    main_of("cluster", "level", "--url", folder.process.url)
    assert folder.level() == HIGHEST + 1
    main_of("cluster", "--url", folder.process.url)
    assert f"level {HIGHEST + 1}\n" in capsys.readouterr().out
    folder.publish()
    folder.process.terminate()
    folder.refuses(None, f"the cluster has format level {HIGHEST + 1}, but this version of seaweedq")
    folder.run(later)
    folder.pull()
    assert sorted(folder.pulled) == [*range(folder.sent)]
    folder.process.terminate()


@pytest.mark.parametrize("draft", [None, DRAFT + 1])
def test_a_folder_that_an_unreleased_version_made_is_refused(folder: Folder, draft: int | None) -> None:
    folder.run(None)
    folder.ask("PUT", TOPIC, json={})
    folder.publish()
    folder.process.terminate()
    with closing(sqlite3.connect(folder.process.data_dir / "coordination.db")) as database, database:
        ((value,),) = database.execute("SELECT value FROM entries WHERE key = 'cluster'").fetchall()
        record = {name: one for name, one in json.loads(value).items() if name != "draft"}
        record |= {} if draft is None else {"draft": draft}
        database.execute("UPDATE entries SET value = ? WHERE key = 'cluster'", (json.dumps(record).encode(),))
    found = "without a draft number" if draft is None else f"with draft number {draft}"
    folder.refuses(
        None,
        f"the cluster's record in coordination was written in storage formats {found}, but this version of seaweedq "
        f"reads only formats with draft number {DRAFT}; continue with the unreleased version of seaweedq that wrote "
        "the data, or start with an empty data",
    )


def main_of(*arguments: str) -> None:
    """A command, in this process."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert not ended.value.code

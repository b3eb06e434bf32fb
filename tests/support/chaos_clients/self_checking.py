"""Clients that know by themselves what must be there: payloads, imports, and topics that are deleted and made again.

Each has a topic of its own. While faults happen any call may fail; at last all that was acknowledged is there.
"""

import hashlib
import io
import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from seaweedq.client.core.message import Message
from seaweedq.client.sync.client import Client as PythonClient
from seaweedq.errors import SeaweedqError, TopicNotFound
from tests.support.chaos_clients.python_client import PythonClientThread
from tests.support.history.checker import Violation

T = TypeVar("T")
PAGE = 1000


class SelfChecking(PythonClientThread):
    """What it found to be wrong is in `strange`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.strange: list[Violation] = []

    @abstractmethod
    def at_last(self) -> None:
        """Look at everything, once all is healed. May raise SeaweedqError."""

    def look(self) -> None:
        """As `at_last`; what it cannot do is wrong, too. The client has ended before."""
        with PythonClient(self.urls, timeout_s=30) as self.client:
            try:
                self.at_last()
            except (SeaweedqError, OSError) as error:
                self.wrong(f"cannot look at last: {error!r}")

    def wrong(self, text: str) -> None:
        """Notes a violation."""
        self.strange.append(Violation(self.name, text))

    def tried(self, call: Callable[[], T]) -> T | None:
        """What a call returns; None where it fails, as it may now."""
        try:
            return call()
        except (SeaweedqError, OSError):
            self.stopped.wait(0.2)
            return None

    def all_messages(self, topic: str) -> Iterator[Message]:
        """Every message of a topic."""
        for segment in self.client.segments(topic):
            offset = 0
            while True:
                page = self.client.fetch(topic, segment["id"], offset, PAGE)
                yield from page.messages
                if page.next_offset == offset:
                    break
                offset = page.next_offset


class Payloads(SelfChecking):
    """Uploads, publishes by reference, and reads again what was published."""

    topic = "payloads"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._published: dict[str, str] = {}  # digests by id

    def step(self) -> None:
        content = self.rng.randbytes(self.rng.choice([1, 1000, 200_000]))
        upload = self.tried(lambda: self.client.upload(self.topic, content))
        if upload is None:
            return
        found = self.tried(lambda: self.client.publish(self.topic, {"reference": {"upload_id": upload}}))
        if found is not None:
            self._published[found.ids[0]] = hashlib.sha256(content).hexdigest()
        if self._published and self.rng.random() < 0.3:
            id = self.rng.choice([*self._published])
            self.tried(lambda: self._look(id))
        self.stopped.wait(self.rng.uniform(0.2, 1))

    def at_last(self) -> None:
        for id in self._published:
            self._look(id)

    def _look(self, id: str) -> None:
        segment, offset = map(int, id.split("-"))
        messages = self.client.fetch(self.topic, segment, offset, 1).messages
        if not messages or messages[0].id != id:
            return self.wrong(f"{id} was published, and is not there")
        with messages[0].open() as file:
            if hashlib.sha256(file.read()).hexdigest() != self._published[id]:
                self.wrong(f"the payload of {id} is another one")
        return None


class Imports(SelfChecking):
    """Imports files of rows: of one that is done each row is there once, of any other at most once."""

    topic = "imports"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._rows: dict[int, tuple[int, bool]] = {}  # by file: its rows, and whether it was done

    def step(self) -> None:
        number, rows = len(self._rows), self.rng.choice([1, 100, 2000])
        text = "".join(json.dumps({"key": f"k{n % 7}", "value": {"file": number, "n": n}}) + "\n" for n in range(rows))
        self._rows[number] = rows, False
        done = self.tried(lambda: self.client.import_file(self.topic, io.BytesIO(text.encode()), "ndjson"))
        self._rows[number] = rows, done is not None
        self.stopped.wait(self.rng.uniform(1, 4))

    def at_last(self) -> None:
        try:
            found = Counter((one.value["file"], one.value["n"]) for one in self.all_messages(self.topic))
        except TopicNotFound:  # no import has begun
            found = Counter()
        for number, (rows, done) in self._rows.items():
            counts = [found[number, n] for n in range(rows)]
            if max(counts) > 1:
                self.wrong(f"import {number}: a row is there {max(counts)} times")
            if done and min(counts) == 0:
                self.wrong(f"import {number} was done, and {counts.count(0)} of {rows} rows are missing")


class Deletions(SelfChecking):
    """Makes a topic, publishes, deletes it, and makes it again: nothing acknowledged in an earlier life of it is in a
    later one."""

    topic = "deletions"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._next = 0
        self._here: set[int] = set()  # what was acknowledged in this life
        self._gone: set[int] = set()  # and in earlier ones
        self._deleting = False

    def step(self) -> None:
        if self.tried(lambda: self.client.create_topic(self.topic, initial_segments=2)) is None:
            return
        for _ in range(self.rng.randrange(1, 5)):
            numbers = [*range(self._next, self._next + 10)]
            self._next += len(numbers)
            messages = [{"key": f"k{n}", "value": n} for n in numbers]
            if self.tried(partial(self.client.publish, self.topic, messages)) is not None:
                self._here.update(numbers)
        self.tried(self._look)
        self._delete()
        self.stopped.wait(self.rng.uniform(0.5, 3))

    def at_last(self) -> None:
        if not self._deleting:
            with suppress(TopicNotFound):
                self._look()

    def _delete(self) -> None:
        self._deleting = True
        while not self.stopped.is_set():
            try:
                self.client.delete_topic(self.topic)
            except TopicNotFound:
                pass
            except (SeaweedqError, OSError):
                self.stopped.wait(0.2)
                continue
            self._gone |= self._here
            self._here.clear()
            self._deleting = False
            return

    def _look(self) -> None:
        found = {one.value for one in self.all_messages(self.topic)}
        if earlier := found & self._gone:
            self.wrong(f"{len(earlier)} messages of deleted topics are there: {sorted(earlier)[:5]}")
        if missing := self._here - found:
            self.wrong(f"{len(missing)} of {len(self._here)} messages are missing: {sorted(missing)[:5]}")

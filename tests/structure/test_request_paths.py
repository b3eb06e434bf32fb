"""How many files and folders of the package a request enters: budgets that only fall.

A commit that raises one gives the reason in its body. Functions and calls are printed beside (`pytest -s`, on
Python 3.11) and gate nothing. Background tasks add some, on a busy machine to each request: a request enters those of
all its repeats, five at most.
"""

import asyncio
import io
import json
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import httpx
import pyarrow as pa

from tests.support.brokers.in_process import running
from tests.support.brokers.serving import served
from tests.support.paths import ROOT

PACKAGE = f"{ROOT / 'seaweedq'}/"
REPEATS = 5
# The look at embedded coordination comes so often that on a busy machine it is within every repeat of a request.
LOOKS = ("coordination/polling.py", "coordination/memory.py")
MESSAGES = "/v1/topics/t/messages"
SUBSCRIPTION = "/v1/topics/t/subscriptions/s"


class Budget(NamedTuple):
    """The most files and folders that a request may enter."""

    files: int
    folders: int


BUDGETS = {
    "publish of one message": Budget(60, 22),
    "publish of 100 as NDJSON": Budget(62, 23),
    "publish of 100 as Arrow": Budget(63, 23),
    "pull of 5": Budget(66, 24),
    "ack by lease": Budget(65, 23),
    "read of a topic's record": Budget(56, 24),
}


class Entered:
    """Records the functions of the package that are called between `begin` and `end`, in all threads."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self._recording = False

    @asynccontextmanager
    async def recorded(self) -> AsyncIterator[None]:
        """Records what is called within."""
        self.calls = []
        self._recording = True
        try:
            yield
        finally:
            self._recording = False

    def profile(self, frame: FrameType, event: str, _argument: Any) -> None:
        """For `sys.setprofile`."""
        if self._recording and event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            code = frame.f_code
            self.calls.append((code.co_filename.removeprefix(PACKAGE), code.co_qualname))

    @property
    def files(self) -> set[str]:
        """The files entered."""
        return {file for file, _ in self.calls if file not in LOOKS}


def arrow(count: int) -> bytes:
    """A stream of messages with one key."""
    table = pa.table({"_key": pa.array(["a"] * count), "value": pa.array(["1"] * count)})
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, table.schema) as writer:
        writer.write_table(table)
    return buffer.getvalue()


async def requests(http: httpx.AsyncClient) -> dict[str, Callable[[], Awaitable[Awaitable[httpx.Response]]]]:
    """Each prepares what its request needs, and returns the request."""

    def publish(body: bytes, kind: str) -> Callable[[], Awaitable[Awaitable[httpx.Response]]]:
        async def prepared() -> Awaitable[httpx.Response]:
            return http.post(MESSAGES, content=body, headers={"content-type": kind})

        return prepared

    async def pull() -> Awaitable[httpx.Response]:
        return http.post(f"{SUBSCRIPTION}/pull", json={"max_messages": 5})

    async def ack() -> Awaitable[httpx.Response]:
        leased = (await (await pull())).json()
        return http.post(f"{SUBSCRIPTION}/ack", json={"lease": leased["lease"]})

    async def read() -> Awaitable[httpx.Response]:
        return http.get("/v1/topics/t")

    one = {"key": "a", "value": 1}
    lines = b"".join(json.dumps({"key": f"k{n}", "value": n}).encode() + b"\n" for n in range(100))
    return {
        "publish of one message": publish(json.dumps(one).encode(), "application/json"),
        "publish of 100 as NDJSON": publish(lines, "application/x-ndjson"),
        "publish of 100 as Arrow": publish(arrow(100), "application/vnd.apache.arrow.stream"),
        "pull of 5": pull,
        "ack by lease": ack,
        "read of a topic's record": read,
    }


def within(found: Budget, budget: Budget) -> bool:
    """Whether no count is over its budget."""
    return found.files <= budget.files and found.folders <= budget.folders


async def measured(folder: Path, entered: Entered) -> dict[str, Budget]:
    """What each request enters at a warm broker behind a real port."""
    found: dict[str, Budget] = {}
    async with (
        running(folder) as broker,
        served(broker) as server,
        httpx.AsyncClient(base_url=server.url, trust_env=False) as http,
    ):
        await http.put("/v1/topics/t", json={"initial_segments": 1})
        await http.put(SUBSCRIPTION, json={"start": "earliest"})
        for name, prepare in (await requests(http)).items():
            await (await prepare())  # warm
            files: set[str] = set()
            for _ in range(REPEATS):
                request = await prepare()
                await asyncio.sleep(0.1)  # what the one before has left ends
                async with entered.recorded():
                    answer = await request
                assert answer.status_code < 300, answer.text
                files = files & entered.files or entered.files
                found[name] = Budget(len(files), len({str(Path(file).parent) for file in files}))
                if within(found[name], BUDGETS[name]):
                    break
            print(f"{name:25} {found[name]}, functions {len(set(entered.calls))}, calls {len(entered.calls)}")
    return found


def test_a_request_enters_no_more_files_and_folders_than_its_budget(tmp_path: Path) -> None:
    entered = Entered()
    before = sys.getprofile()
    sys.setprofile(entered.profile)
    threading.setprofile(entered.profile)
    try:
        found = asyncio.run(measured(tmp_path, entered))
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    over = {name: (found[name], budget) for name, budget in BUDGETS.items() if not within(found[name], budget)}
    assert not over, "requests enter more than their budgets"
    under = {name: found[name] for name, budget in BUDGETS.items() if found[name].files < budget.files - 2}
    assert not under, "requests enter fewer files: lower their budgets"

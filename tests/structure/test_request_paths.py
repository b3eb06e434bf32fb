"""How many files and folders of the package a request enters: budgets that only fall.

A commit that raises one gives the reason in its body. Functions and calls are printed beside (`pytest -s`, on
Python 3.11) and gate nothing. A request is what its connection parses, the tasks that come of that, what they hand to
threads, and the group commit. Background work has another context, and never counts.
"""

import asyncio
import contextvars
import functools
import io
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import httpx
import pyarrow as pa
import pytest

from seaweedq.api.connections.protocol import BoundedProtocol
from seaweedq.broker.log.group_commit import GroupCommit
from tests.support.brokers.in_process import running
from tests.support.brokers.serving import served
from tests.support.paths import ROOT

PACKAGE = f"{ROOT / 'seaweedq'}/"
OF_REQUEST = contextvars.ContextVar("of_request", default=False)
MESSAGES = "/v1/topics/t/messages"
SUBSCRIPTION = "/v1/topics/t/subscriptions/s"


class Budget(NamedTuple):
    """The most files and folders that a request may enter."""

    files: int
    folders: int


BUDGETS = {
    "publish of one message": Budget(30, 14),
    "publish of 100 as NDJSON": Budget(35, 14),
    "publish of 100 as Arrow": Budget(37, 14),
    "pull of 5": Budget(33, 14),
    "ack by lease": Budget(34, 13),
    "read of a topic's record": Budget(29, 13),
}


class Entered:
    """Records the functions of the package that requests call, in all threads, while one is `recorded`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self._recording = False

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Records what is called within."""
        self.calls = []
        self._recording = True
        try:
            yield
        finally:
            self._recording = False

    def profile(self, frame: FrameType, event: str, _argument: Any) -> None:
        """For `sys.setprofile`."""
        code = frame.f_code
        if self._recording and event == "call" and code.co_filename.startswith(PACKAGE) and OF_REQUEST.get():
            self.calls.append((code.co_filename.removeprefix(PACKAGE), code.co_qualname))

    @property
    def files(self) -> set[str]:
        """The files entered."""
        return {file for file, _ in self.calls}


def mark_requests(patch: pytest.MonkeyPatch) -> None:
    """Gives requests, and the group commit, a context of their own, which goes with them into threads."""
    received, commits = BoundedProtocol.data_received, GroupCommit.run
    in_thread = asyncio.BaseEventLoop.run_in_executor

    def marked_received(protocol: BoundedProtocol, data: bytes) -> None:
        context = contextvars.copy_context()
        context.run(OF_REQUEST.set, True)
        context.run(received, protocol, data)

    async def marked_commits(commit: GroupCommit) -> None:
        OF_REQUEST.set(True)
        await commits(commit)

    def marked_in_thread(loop: Any, pool: Any, work: Callable[..., Any], *arguments: Any) -> Any:
        call = functools.partial(contextvars.copy_context().run, work, *arguments)
        return in_thread(loop, pool, call)

    patch.setattr(BoundedProtocol, "data_received", marked_received)
    patch.setattr(GroupCommit, "run", marked_commits)
    patch.setattr(asyncio.BaseEventLoop, "run_in_executor", marked_in_thread)


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


async def measured(folder: Path, entered: Entered) -> dict[str, Budget]:
    """What each request enters at a warm broker behind a real port."""
    found: dict[str, Budget] = {}
    async with (
        running(folder) as broker,
        served(broker) as server,
        httpx.AsyncClient(base_url=server.url, timeout=30, trust_env=False) as http,
    ):
        await http.put("/v1/topics/t", json={"initial_segments": 1})
        await http.put(SUBSCRIPTION, json={"start": "earliest"})
        for name, prepare in (await requests(http)).items():
            await (await prepare())  # warm
            request = await prepare()
            await asyncio.sleep(0.1)  # what the one before has left ends
            with entered.recorded():
                answer = await request
            assert answer.status_code < 300, answer.text
            assert not {"traces.py", "segments/trace_headers.py"} & entered.files  # without otel_endpoint
            found[name] = Budget(len(entered.files), len({str(Path(file).parent) for file in entered.files}))
            print(f"{name:25} {found[name]}, functions {len(set(entered.calls))}, calls {len(entered.calls)}")
    return found


def test_a_request_enters_no_more_files_and_folders_than_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark_requests(monkeypatch)
    entered = Entered()
    before = sys.getprofile()
    sys.setprofile(entered.profile)
    threading.setprofile(entered.profile)
    try:
        found = asyncio.run(measured(tmp_path, entered))
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    over = {
        name: (found[name], budget)
        for name, budget in BUDGETS.items()
        if found[name].files > budget.files or found[name].folders > budget.folders
    }
    assert not over, "requests enter more than their budgets"
    under = {name: found[name] for name, budget in BUDGETS.items() if found[name].files < budget.files - 2}
    assert not under, "requests enter fewer files: lower their budgets"

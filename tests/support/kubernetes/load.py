"""Publishers and a subscriber of plain HTTP without retries, and the judgement of what the queue holds at the end.

Each publisher has one key, so that its messages are in one segment, and one request in flight: its gap is the time from
one answer to the next. Half of them keep their connection, as pools do, and half open one for each request. The store
is asked meanwhile, too: the longest that it takes is the machine's part of a gap.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

PUBLISHERS = 8
PAUSE_S = 0.05
TIMEOUT_S = 20.0
END_S = 15.0
JSON = dict[str, Any]


@dataclass
class Figures:
    """What a load saw; `lost`, `doubled` and `redelivered` once it is judged."""

    requests: int = 0
    failed: list[str] = field(default_factory=list)
    longest_gap_s: float = 0.0
    slowest_store_s: float = 0.0
    lost: int = 0
    doubled: int = 0
    redelivered: int = 0

    def __str__(self) -> str:
        counts = f"{self.requests} requests, {len(self.failed)} failed, {self.lost} lost, {self.doubled} doubled"
        times = f"longest gap {self.longest_gap_s:.2f} s, slowest answer of the store {self.slowest_store_s:.2f} s"
        return f"{counts}, {self.redelivered} delivered twice, {times}"


class Load:
    """Clients of a topic, by the URLs of the service and of the store."""

    def __init__(self, url: str, store: str, topic: str) -> None:
        self.figures = Figures()
        self.topic = f"/v1/topics/{topic}"
        self._url = url
        self._store = store
        self._began = time.monotonic()
        self._stopped = False
        self._sent: list[str] = []
        self._answered: list[str] = []
        self._pulled: Counter[str] = Counter()
        self._http = self._client()

    async def prepare(self) -> None:
        """Make the topic and its subscription."""
        assert (await self._http.put(self.topic, json={"initial_segments": 6})).status_code == 201
        subscription = {"start": "earliest"}
        assert (await self._http.put(f"{self.topic}/subscriptions/all", json=subscription)).status_code == 201

    async def run(self) -> None:
        """Publish and pull until `stop`, and then pull what is left."""
        publishers = [asyncio.create_task(self._publish(f"p{number}", number % 2 == 0)) for number in range(PUBLISHERS)]
        subscriber, looking = asyncio.create_task(self._subscribe()), asyncio.create_task(self._ask_store())
        await asyncio.gather(*publishers)
        end = time.monotonic() + END_S
        while len(self._pulled) < len(self._answered) and time.monotonic() < end and not subscriber.done():
            await asyncio.sleep(PAUSE_S)
        subscriber.cancel()
        looking.cancel()
        await asyncio.gather(subscriber, looking, return_exceptions=True)

    def stop(self) -> None:
        """Let publishers end with the requests that are in flight."""
        self._stopped = True

    async def judge(self) -> Figures:
        """The figures, with what is lost and what is there twice."""
        stored = Counter([message["value"] async for message in stored_in(self._http, self.topic)])
        await self._http.aclose()
        assert stored.keys() <= set(self._sent)
        self.figures.lost = len(set(self._answered) - stored.keys()) + len(stored.keys() - self._pulled.keys())
        self.figures.doubled = stored.total() - len(stored)
        self.figures.redelivered = self._pulled.total() - len(self._pulled)
        return self.figures

    def _client(self, *, kept: bool = True) -> httpx.AsyncClient:
        limits = httpx.Limits(max_keepalive_connections=None if kept else 0)
        return httpx.AsyncClient(base_url=self._url, timeout=TIMEOUT_S, trust_env=False, verify=False, limits=limits)

    async def _publish(self, name: str, kept: bool) -> None:
        last = time.monotonic()
        async with self._client(kept=kept) as http:
            while not self._stopped:
                value = f"{name}-{len(self._sent)}"
                self._sent.append(value)
                if await self._ask(http, "/messages", {"value": value, "key": name}) is not None:
                    self._answered.append(value)
                    self.figures.longest_gap_s = max(self.figures.longest_gap_s, time.monotonic() - last)
                    last = time.monotonic()
                await asyncio.sleep(PAUSE_S)
            # A publisher that gets no answer any more has a gap, too.
            self.figures.longest_gap_s = max(self.figures.longest_gap_s, time.monotonic() - last)

    async def _subscribe(self) -> None:
        async with self._client() as http:
            while True:
                pulled = await self._ask(http, "/subscriptions/all/pull", {"max_messages": 1000, "wait_s": 1})
                messages = pulled["messages"] if pulled else []
                self._pulled.update(message["value"] for message in messages)
                if messages:
                    await self._ask(http, "/subscriptions/all/ack", {"ids": [message["id"] for message in messages]})
                await asyncio.sleep(PAUSE_S)

    async def _ask_store(self) -> None:
        async with self._client() as http:
            while True:
                began = time.monotonic()
                await asyncio.sleep(PAUSE_S)
                await http.get(self._store)
                took = time.monotonic() - began - PAUSE_S
                self.figures.slowest_store_s = max(self.figures.slowest_store_s, took)

    async def _ask(self, http: httpx.AsyncClient, path: str, body: JSON) -> JSON | None:
        """One request: its answer, or none with a note of the failure."""
        self.figures.requests += 1
        began = time.monotonic()
        try:
            answer = await http.post(f"{self.topic}{path}", json=body)
        except httpx.TransportError as error:
            what = repr(error)
        else:
            if answer.status_code == 200:
                found: JSON = answer.json()
                return found
            what = f"{answer.status_code} {answer.text}"
        at, took = began - self._began, time.monotonic() - began
        self.figures.failed.append(f"at {at:.1f} s, after {took:.2f} s: {path} {body} {what}")
        return None


async def stored_in(http: httpx.AsyncClient, topic: str) -> AsyncIterator[JSON]:
    """Every message of every segment of the topic at a path; those of a key in their order."""
    segments = (await http.get(f"{topic}/segments")).json()["segments"]
    for segment in sorted(segments, key=lambda one: one["id"]):
        offset = segment["start_offset"]
        while True:
            path = f"{topic}/segments/{segment['id']}/messages"
            answer = await http.get(path, params={"offset": offset, "limit": 10_000})
            assert answer.status_code == 200, answer.text
            found = answer.json()
            for message in found["messages"]:
                yield message
            if offset == found["next_offset"]:
                break
            offset = found["next_offset"]


@asynccontextmanager
async def loaded(url: str, store: str, topic: str) -> AsyncIterator[Figures]:
    """A load for as long as the body takes, whose figures are judged after it."""
    load = Load(url, store, topic)
    await load.prepare()
    running = asyncio.create_task(load.run())
    try:
        yield load.figures
    finally:
        load.stop()
        await running
        await load.judge()

"""The Python client itself, under faults: a producer and a subscriber, as a user has them."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from seaweedq.client.core.held_messages import Reject
from seaweedq.client.core.message import Message
from seaweedq.client.sync.client import Client as PythonClient
from seaweedq.errors import SeaweedqError
from tests.support.chaos_clients.roaming import Roaming
from tests.support.history.history import History, digest
from tests.support.history.load import TOPIC, Client, Observer, message
from tests.support.history.load import Message as Sent

SUBSCRIPTION = "l"
DELIVERY_S = 20.0
WORKERS = 4
REJECTED, FAILING = 103, 31  # one in so many messages of a publisher
SESSION_S = 1.0  # without a message, before it looks whether to stop


class PythonClientThread(Client):
    """A thread with a Python client of all brokers."""

    def __init__(self, name: str, urls: Sequence[str], history: History, seed: int) -> None:
        super().__init__(name, urls[0], history, seed)
        self.urls = urls
        self.client = PythonClient(self.rng.sample(urls, len(urls)), timeout_s=10)

    def run(self) -> None:
        try:
            super().run()
        finally:
            try:
                self.client.close()
            except SeaweedqError:  # what it says was told already, or nobody answers at the end
                pass


class PythonProducer(PythonClientThread):
    """Sends in batches by one producer, and looks at each receipt."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._next = 0
        self._producer = self.client.producer(TOPIC, delivery_timeout_s=DELIVERY_S)

    def step(self) -> None:
        messages = [message(self.name, self._next + n, self.rng) for n in range(self.rng.choice([1, 5, 50]))]
        lines = [self._line(one) for one in messages]
        self._next += len(messages)
        call = self.history.invoke(self.name, "publish", lines)
        for one, line in zip(messages, lines, strict=True):
            try:
                line["receipt"] = self._producer.send(one["value"], key=one.get("key"))
            except SeaweedqError:  # of an earlier one; this one was not taken
                line["receipt"] = None
        self._told(call, lines)
        self.stopped.wait(0.05 * self.rng.random())

    def _line(self, one: Sent) -> dict[str, Any]:
        key, value = one.get("key"), one["value"]
        return {"key": key, "producer": self.name, "seq": value["n"], "hash": digest(key, value)}

    def _told(self, call: int, lines: Sequence[dict[str, Any]]) -> None:
        for line in lines:
            receipt = line.pop("receipt")
            try:
                if receipt is None:
                    outcome = "fail"
                else:
                    line["segment"], line["offset"] = map(int, receipt.result(3 * DELIVERY_S).split("-"))
                    outcome = "ok"
            except SeaweedqError:
                outcome = "info"
            self.history.told(self.name, "publish", outcome, call, [line])  # type: ignore[arg-type]


class PythonSubscriber(PythonClientThread):
    """Iterates over a subscription, and acks in the background. Pulls may be lost within, and an ack may come too late:
    the history says of neither that it was answered."""

    def step(self) -> None:
        asked = {"subscription": SUBSCRIPTION}
        lost = self.history.invoke(self.name, "deliver", [asked])
        call = self.history.invoke(self.name, "deliver", [asked])
        try:
            found = self.client.subscribe(TOPIC, SUBSCRIPTION, "earliest", SESSION_S, 200, ack_deadline_s=5)
            for one in found:
                place = {"segment": one.segment, "offset": one.offset, **asked}
                told = {**place, "hash": digest(one.key, one.value)}
                self.history.told(self.name, "deliver", "ok", call, [told])
                self.history.invoke(self.name, "ack", [place])
                one.ack()
                if self.stopped.is_set():
                    break
        except SeaweedqError:
            self.stopped.wait(0.5)
        self.history.told(self.name, "deliver", "info", lost, [asked])


class PythonWorker(PythonClientThread):
    """Handles messages in a pool, as `work` does: some fail, some are rejected, each is acked in the background. The
    history says of no pull and of no ack that it was answered."""

    subscription = "w"
    settling = False

    def step(self) -> None:
        asked = {"subscription": self.subscription}
        lost = self.history.invoke(self.name, "deliver", [asked])
        call = self.history.invoke(self.name, "deliver", [asked])
        handle = partial(self._handle, call)
        try:
            self.client.work(
                *(TOPIC, self.subscription, handle, WORKERS, "earliest", SESSION_S), ack_deadline_s=3, mode="keyed"
            )
        except SeaweedqError:
            self.stopped.wait(0.5)
        self.history.told(self.name, "deliver", "info", lost, [asked])

    def _handle(self, call: int, one: Message) -> None:
        place = {"segment": one.segment, "offset": one.offset, "subscription": self.subscription}
        told = {**place, "hash": digest(one.key, one.value), "attempt": one.attempt}
        self.history.told(self.name, "deliver", "ok", call, [told])
        if one.value["n"] % REJECTED == 9:
            self.history.invoke(self.name, "reject", [place])
            raise Reject("poison")
        if not self.settling and one.value["n"] % FAILING == 4 and one.attempt == 1:
            raise ValueError("it fails once")
        self.history.invoke(self.name, "ack", [place])


class PythonObserver(Roaming, Observer):
    """Looks at its cursors."""

    subscription = SUBSCRIPTION

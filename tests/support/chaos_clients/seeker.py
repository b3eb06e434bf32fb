"""A client that moves a subscription back now and then: what was acked comes again, and is acked again."""

from typing import Any

import httpx

from tests.support.chaos_clients.roaming import Roaming

PAUSE_S = (1.0, 4.0)
BACK = (1, 20, 200)


class Seeker(Roaming):
    """Moves one segment back at a time, by a seek with an id, which it repeats until it is answered."""

    subscription = "z"

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._call = 0
        self._wanted: dict[str, Any] = {}

    def finished(self) -> bool:
        return self.stopped.is_set() and not self._call

    def step(self) -> None:
        if not self._call and not self.stopped.wait(self.rng.uniform(*PAUSE_S)):
            self._choose()
        if self._call:
            self._seek()

    @property
    def _path(self) -> str:
        return f"/subscriptions/{self.subscription}"

    def _choose(self) -> None:
        answer = self._asked("GET", self._path)
        lag = [one for one in answer.json()["lag"] if one["acked_to"]] if answer else []
        if not lag:
            return
        at = self.rng.choice(lag)
        to = max(at["acked_to"] - self.rng.choice(BACK), 0)
        line = {"segment": at["segment"], "offset": to, "subscription": self.subscription}
        self._call = self.history.invoke(self.name, "seek", [line])
        self._wanted = {"to": {"offsets": {str(at["segment"]): to}}, "id": f"{self.rng.getrandbits(64):016x}"}
        self._line = line

    def _seek(self) -> None:
        answer = self._asked("POST", f"{self._path}/seek", json=self._wanted)
        if answer is None:
            return
        found = {one["segment"]: one["from"] for one in answer.json().get("segments") or ()}
        line = {**self._line, "acked_to": found.get(self._line["segment"])}
        self.history.told(self.name, "seek", "ok", self._call, [line])
        self._call = 0

    def _asked(self, method: str, path: str, **more: Any) -> httpx.Response | None:
        if self.failed:
            self.roam()
        try:
            return self.ask(method, path, **more)
        except httpx.ConnectError:
            return None

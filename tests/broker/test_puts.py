"""The objects that each action puts into the store: what backups of coordination cost is one of a few, and a publish, a
split and a move put none."""

from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.reshaped import at, make, opened, records, replace

pytestmark = pytest.mark.brokers
SUB = "/v1/topics/t/subscriptions/s"
Action = Callable[[InLoop], Awaitable[None]]


def kind(name: str) -> str:
    """What an object is."""
    folder, _, rest = name.partition("/")
    if folder == "_coordination":
        return "change" if "/changes/" in rest else "snapshot"
    if folder == "_journals":
        return "done" if rest.endswith("/done") else "slot"
    return {"topics": "file"}.get(folder, folder)


def asked(method: str, path: str, body: object = None) -> Action:
    async def action(together: InLoop) -> None:
        async with at(together, together.brokers[0]) as http:
            answer = await http.request(method, path, json=body)
            assert answer.status_code < 300, answer.text

    return action


PUBLISH = asked("POST", "/v1/topics/t/messages", {"value": 1})
KEYED = [{"key": str(number), "value": 1} for number in range(20)]
PUBLISH_TO_ALL = asked("POST", "/v1/topics/t/messages", {"messages": KEYED})


async def split(together: InLoop) -> None:
    await replace(together, [0], 2)


async def moved(together: InLoop) -> None:
    owner, other = owner_first(together)[:2]
    assert await inside.mover(owner).move(inside.topic(owner, "t"), 0, other.id)


async def stopped(together: InLoop) -> None:
    await PUBLISH_TO_ALL(together)
    owner = owner_first(together)[0]
    together.unlisten(owner)
    together.brokers.remove(owner)
    await owner.stop()


async def recovered(together: InLoop) -> None:
    await PUBLISH_TO_ALL(together)
    owner, other = owner_first(together)[:2]
    await together.crash(owner)
    await until(lambda: owner.id not in other.roster.journals)


def owner_first(together: InLoop) -> list[Broker]:
    """The brokers, the owner of the first open segment before all others."""
    known = together.brokers[0]
    first = opened(known)[0]
    return sorted(together.brokers, key=lambda one: one.id != records(known)[first].owner)


RIGHTS = {"grants": [{"actions": ["read"], "topics": ["*"]}]}
ACTIONS: list[tuple[str, Action, dict[str, int]]] = [
    ("publish", PUBLISH, {"slot": 1}),
    ("flush", asked("POST", "/v1/topics/t/flush"), {"file": 1}),
    ("move", moved, {}),
    ("split", split, {"file": 1}),  # its seal
    ("topic", asked("PUT", "/v1/topics/u", {}), {"file": 1, "change": 1}),
    ("configuration", asked("PATCH", "/v1/topics/t", {"flush": {"max_age_s": 9}}), {"change": 1}),
    ("deletion", asked("DELETE", "/v1/topics/u"), {"change": 1}),
    ("subscription", asked("PUT", SUB, {"start": "latest"}), {"change": 1}),
    ("seek", asked("POST", f"{SUB}/seek", {"to": "earliest", "id": "once"}), {"change": 1}),
    ("its end", asked("DELETE", SUB), {"change": 1}),
    ("principal", asked("PUT", "/v1/principals/p", RIGHTS), {"change": 1}),
    ("token", asked("POST", "/v1/tokens", {"principal": "p"}), {"change": 1}),
    ("stop", stopped, {"done": 1}),
    ("recovery", recovered, {"done": 1}),
]


async def test_an_action_puts_so_many_objects(tmp_path: Path) -> None:
    """Slots count for publishes alone: empty ones, and fences, come when they come. Files do not count at the end of a
    broker, and snapshots nowhere: there is one in `snapshot_s` at most."""
    store, names = MemoryStore(), list[str]()
    store.faults = lambda moment, name: names.append(name) if moment == "after create" else None
    async with in_loop(tmp_path, 3, store=store, journal="object", snapshot_s=3600) as together:
        await make(together.brokers[0])
        found = {}
        for action, act, wanted in ACTIONS:
            names.clear()
            await act(together)
            beside = {"snapshot", "file"} if "done" in wanted else {"snapshot"}
            beside |= set() if "slot" in wanted else {"slot"}
            found[action] = Counter(one for one in map(kind, names) if one not in beside)
        assert found == {action: wanted for action, _, wanted in ACTIONS}

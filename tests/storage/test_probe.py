"""The probe passes honest stores and names what broken ones ignore."""

import asyncio

import pytest

from seaweedq.clock import Ids
from seaweedq.errors import StoreUnavailable, UnfitStore
from seaweedq.storage.counting import Counted
from seaweedq.storage.endpoints import Endpoints
from seaweedq.storage.interface import Data, ObjectStore
from seaweedq.storage.memory import MemoryStore
from seaweedq.storage.probe import ATTEMPTS, probe


class Overwriting(MemoryStore):
    """Ignores the condition: the last one wins, and all are told so."""

    async def create(self, name: str, data: Data) -> bool:
        self._objects[name] = bytes(data)
        return True


class Racing(MemoryStore):
    """Looks, then writes, and in between others do."""

    async def create(self, name: str, data: Data) -> bool:
        taken = name in self._objects
        await asyncio.sleep(0)
        if not taken:
            self._objects[name] = bytes(data)
        return not taken


class Lying(MemoryStore):
    """Refuses, and overwrites nevertheless."""

    async def create(self, name: str, data: Data) -> bool:
        created = name not in self._objects
        self._objects[name] = bytes(data)
        return created


class Refusing(MemoryStore):
    async def create(self, name: str, data: Data) -> bool:
        return False


class Forgetful(MemoryStore):
    """Honest for the race, then ignores the condition."""

    creates = 0

    async def create(self, name: str, data: Data) -> bool:
        self.creates += 1
        return await super().create(name, data) or self.creates > 32


async def test_an_honest_store_passes_and_is_left_as_it_was(store: ObjectStore, ids: Ids) -> None:
    await probe(store, ids)
    assert await store.list("") == []


@pytest.mark.parametrize(
    ("broken", "detail", "winners"),
    [
        (Overwriting, "32 of 32 concurrent creates", 32),
        (Racing, "32 of 32 concurrent creates", 32),
        (Refusing, "none of 32", 0),
        (Lying, "overwrote", None),
        (Forgetful, "created an object that existed already", None),
    ],
)
async def test_a_broken_store_is_unfit(broken: type[MemoryStore], detail: str, winners: int | None, ids: Ids) -> None:
    store = broken()
    with pytest.raises(UnfitStore, match=detail) as caught:
        await probe(store, ids)
    assert caught.value.fields.get("winners") == winners
    assert await store.list("") == []


async def test_answers_lost_after_the_act_do_not_condemn_the_store(ids: Ids) -> None:
    lost = 0

    def lose_first_answers(moment: str, name: str) -> None:
        nonlocal lost
        if moment == "after create" and lost < ATTEMPTS - 1:
            lost += 1
            raise StoreUnavailable("reset")

    await probe(MemoryStore(lose_first_answers), ids)
    assert lost == ATTEMPTS - 1


async def test_a_store_that_does_not_answer_is_unavailable_not_unfit(ids: Ids) -> None:
    calls: list[str] = []

    def never(moment: str, name: str) -> None:
        if moment == "before create":
            calls.append(name)
            raise StoreUnavailable("down")

    with pytest.raises(StoreUnavailable):
        await probe(MemoryStore(never), ids, racers=1)
    assert len(calls) == ATTEMPTS


class Gateway(MemoryStore):
    """One way to objects that others may share; `down` answers nothing."""

    def __init__(self, name: str, objects: dict[str, bytes], down: bool = False) -> None:
        super().__init__(self._answer)
        self.endpoint, self._objects, self.down = name, objects, down

    def _answer(self, moment: str, name: str) -> None:
        if self.down:
            raise StoreUnavailable(f"{self.endpoint} is down")


async def test_every_endpoint_is_probed_and_those_that_do_not_answer_are_left_out(ids: Ids) -> None:
    objects: dict[str, bytes] = {}
    gateways = [Gateway("a", objects, down=True), Gateway("b", objects), Gateway("c", objects)]
    store = Endpoints(gateways)
    await probe(Counted(store), ids)
    assert store.endpoints == tuple(gateways[1:])
    assert objects == {}
    gateways[1].down = gateways[2].down = True
    with pytest.raises(StoreUnavailable, match="is down"):
        await probe(store, ids)


async def test_one_broken_endpoint_condemns_the_store(ids: Ids) -> None:
    class Broken(Gateway, Overwriting):
        pass

    objects: dict[str, bytes] = {}
    with pytest.raises(UnfitStore, match="32 of 32"):
        await probe(Endpoints([Gateway("a", objects), Broken("b", objects)]), ids)


async def test_endpoints_that_do_not_serve_the_same_data_are_unfit(ids: Ids) -> None:
    with pytest.raises(UnfitStore, match="2 of 32") as caught:
        await probe(Endpoints([Gateway("a", {}), Gateway("b", {})]), ids)
    assert caught.value.fields["winners"] == 2

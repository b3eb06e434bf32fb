"""The probe passes honest stores and names what broken ones ignore."""

import asyncio

import pytest

from seaweedq.clock import Ids, SystemClock
from seaweedq.errors import StoreUnavailable, UnfitStore
from seaweedq.storage.endpoints import Endpoints
from seaweedq.storage.instrumented import InstrumentedStore
from seaweedq.storage.interface import Data, ObjectStore
from seaweedq.storage.memory import MemoryStore
from seaweedq.storage.probe import ATTEMPTS, TRIES, probe
from seaweedq.storage.s3 import S3Store
from tests.support.fixtures.services import s3_server


class Overwriting(MemoryStore):
    """Ignores the condition: the last one wins, and all are told so."""

    async def create(self, name: str, data: Data) -> bool:
        self.objects[name] = bytes(data)
        return True


class Racing(MemoryStore):
    """Looks, then writes, and in between others do."""

    async def create(self, name: str, data: Data) -> bool:
        taken = name in self.objects
        await asyncio.sleep(0)
        if not taken:
            self.objects[name] = bytes(data)
        return not taken


class Lying(MemoryStore):
    """Refuses, and overwrites nevertheless."""

    async def create(self, name: str, data: Data) -> bool:
        created = name not in self.objects
        self.objects[name] = bytes(data)
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
        (Forgetful, "overwrote an existing object", None),
    ],
)
async def test_a_broken_store_is_unfit(broken: type[MemoryStore], detail: str, winners: int | None, ids: Ids) -> None:
    store = broken()
    with pytest.raises(UnfitStore, match=detail) as caught:
        await probe(store, ids)
    assert caught.value.fields.get("winners") == winners
    assert await store.list("") == []


class Reduced(MemoryStore):
    """Lists all but one name, as a listing that lags behind."""

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        return (await super().list(prefix, after, limit))[:-1]


class Backward(MemoryStore):
    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        return (await super().list(prefix, after, limit))[::-1]


class Unlimited(MemoryStore):
    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        return await super().list(prefix, after)


class FromTheStart(MemoryStore):
    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        return await super().list(prefix, "", limit)


class AfterNamesAlone(MemoryStore):
    """Goes on after a name that exists, and else begins again."""

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        return await super().list(prefix, after if after in self.objects else "", limit)


class Whole(MemoryStore):
    async def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        return await super().read(name)


class Obliging(MemoryStore):
    async def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        return await super().read(name, start, end) if name in self.objects else b""


class Remembering(MemoryStore):
    """Lists what was deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted: list[str] = []

    async def delete(self, name: str) -> None:
        await super().delete(name)
        self.deleted.append(name)

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        gone = [name for name in self.deleted if prefix and name.startswith(prefix)]
        return gone + await super().list(prefix, after, limit)


class Undying(MemoryStore):
    """Reads what was deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted: dict[str, bytes] = {}

    async def delete(self, name: str) -> None:
        self.deleted[name] = self.objects.pop(name, b"")

    async def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        return self.deleted[name] if name in self.deleted else await super().read(name, start, end)


@pytest.mark.parametrize(
    ("broken", "wrong", "breaks"),
    [
        (Reduced, "immediately after", "recovery"),
        (Backward, "byte order", "last file"),
        (Unlimited, "as the first two names", "more than one page"),
        (FromTheStart, "behind the first", "more than one page"),
        (AfterNamesAlone, "a place between two names", "long segment"),
        (Whole, "other bytes than a range", "Parquet"),
        (Obliging, "never created", "recovery"),
        (Remembering, "after their deletion", "removal"),
        (Undying, "an object after its deletion", "retention"),
    ],
)
async def test_what_a_store_does_wrong_is_named_with_what_it_breaks(
    broken: type[MemoryStore], wrong: str, breaks: str, ids: Ids
) -> None:
    store = broken()
    with pytest.raises(UnfitStore, match=f"{wrong}.*which breaks.*{breaks}") as caught:
        await probe(store, ids)
    assert wrong in caught.value.fields["wrong"]
    assert breaks in caught.value.fields["breaks"]
    assert store.objects == {}


async def test_a_wrong_answer_that_does_not_come_again_condemns_no_store(ids: Ids) -> None:
    class Once(Reduced):
        listings = 0

        async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
            self.listings += 1
            return await (super() if self.listings == 1 else super(Reduced, self)).list(prefix, after, limit)

    store = Once()
    await probe(store, ids)
    assert store.listings > TRIES
    assert store.objects == {}


async def test_what_a_killed_probe_has_left_disturbs_no_later_one(ids: Ids) -> None:
    killed = Gateway("a", objects := {})
    for left in range(1, 60, 7):

        def die(moment: str, name: str, left: list[int] = [left]) -> None:  # noqa: B006
            left[0] -= 1
            if left[0] < 0:
                raise asyncio.CancelledError

        killed.faults = die
        with pytest.raises(asyncio.CancelledError):
            await probe(killed, ids)
    assert objects
    left_over = dict(objects)
    await probe(Gateway("b", objects), ids)
    assert objects == left_over


async def test_a_probe_needs_few_requests(ids: Ids) -> None:
    store = InstrumentedStore(MemoryStore(), SystemClock())
    await probe(store.payloads, ids)
    assert store.requests["create"] == 32 + 1 + 4
    assert store.requests.total() - store.requests["create"] <= 18


@pytest.mark.service
@pytest.mark.usefixtures("moto_as_seaweedfs_server")
async def test_no_bucket_is_made_by_a_mistyped_name(request: pytest.FixtureRequest, ids: Ids) -> None:
    """SeaweedFS makes a bucket for any put."""
    server = s3_server(request, "moto_as_seaweedfs_server")
    there, mistyped = S3Store(f"s3://{server.place()}"), S3Store("s3://no-such-bukket/q", server.endpoint)
    for store in (mistyped, Endpoints([there, mistyped])):
        with pytest.raises(StoreUnavailable, match=f"no-such-bukket at {server.endpoint} does not exist"):
            await probe(store, ids)
    assert "no-such-bukket" not in server.buckets()
    assert await mistyped.create("a", b"")  # the front is what it claims to be
    assert "no-such-bukket" in server.buckets()
    await there.close()
    await mistyped.close()


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
        self.endpoint, self.objects, self.down = name, objects, down

    def _answer(self, moment: str, name: str) -> None:
        if self.down:
            raise StoreUnavailable(f"{self.endpoint} is down")


async def test_every_endpoint_is_probed_and_silent_ones_are_left_out(ids: Ids) -> None:
    objects: dict[str, bytes] = {}
    gateways = [Gateway("a", objects, down=True), Gateway("b", objects), Gateway("c", objects)]
    store = Endpoints(gateways)
    await probe(InstrumentedStore(store, SystemClock()), ids)
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

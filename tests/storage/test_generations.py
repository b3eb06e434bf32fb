"""`_generations/`: objects that are created once; the newest one is found, and a life that is of another one ends."""

import asyncio

import pytest

from seaweedq.errors import Damaged, Fenced
from seaweedq.storage.generations import (
    Generation,
    Generations,
    create_generation,
    generation_name,
    newest_generation,
    newest_number,
)
from seaweedq.storage.interface import ObjectStore
from seaweedq.storage.memory import MemoryStore


async def test_the_newest_generation_is_found_and_strangers_are_passed_over(store: ObjectStore) -> None:
    assert await newest_generation(store) is None
    for number in (1, 2, 10):
        assert await create_generation(store, Generation(number, f"n{number}"))
    await store.create("_generations/notes", b"")
    assert await newest_generation(store) == Generation(10, "n10")
    assert await newest_number(store) == 10


async def test_of_several_at_once_one_begins_a_generation(store: ObjectStore) -> None:
    made = await asyncio.gather(*(create_generation(store, Generation(1, str(n))) for n in range(8)))
    assert sorted(made) == [False] * 7 + [True]
    assert await newest_generation(store) == Generation(1, str(made.index(True)))


@pytest.mark.parametrize("data", [b"", b"{}", b'{"number":2,"nonce":"n"}'])
async def test_a_generation_that_cannot_be_read_is_damage(data: bytes) -> None:
    store = MemoryStore()
    await store.create(generation_name(1), data)
    with pytest.raises(Damaged, match="_generations/0000000001 "):
        await newest_generation(store)


async def test_a_life_of_another_generation_than_the_newest_ends() -> None:
    store, told = MemoryStore(), []
    life = Generations(store, told.append)
    life.begin(Generation(1, "n"))
    await create_generation(store, life.mine)
    await life.check()
    await create_generation(store, Generation(2, "m"))
    with pytest.raises(Fenced, match="generation 2 of coordination, but this broker belongs to generation 1") as fenced:
        await life.check()
    assert told == [str(fenced.value)]
    await store.delete(generation_name(2))
    await store.delete(generation_name(1))
    with pytest.raises(Fenced, match="generation 0"):
        await life.check()


async def test_many_generations_are_listed_by_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seaweedq.storage.generations._PAGE", 2)
    store = MemoryStore()
    for number in range(1, 6):
        await create_generation(store, Generation(number, "n"))
    assert await newest_number(store) == 5

"""The start-up probe: does the store keep the one promise that safety rests on?

Many writers race for one fresh name, and one comes late. Exactly one may win, and its bytes must stay.
"""

import asyncio
from contextlib import suppress

from seaweedq.clock import Ids
from seaweedq.errors import StoreUnavailable, UnfitStore
from seaweedq.storage.interface import ObjectStore

ATTEMPTS = 5  # for each racer: S3 answers 409 while a concurrent put is being resolved


async def probe(store: ObjectStore, ids: Ids, racers: int = 32) -> None:
    """Race `racers` creates of one fresh name below `_probe/`, and remove it again.

    Raises UnfitStore, which says what the store ignores (fields: racers, winners); StoreUnavailable where a racer got
    no answer.
    """
    nonce = ids.nonce()
    name = f"_probe/{nonce}"
    contents = [f"{nonce} racer {number}".encode() for number in range(racers)]
    try:
        won = await asyncio.gather(*(_create(store, name, content) for content in contents))
        winners = [content for content, mine in zip(contents, won, strict=True) if mine]
        if len(winners) != 1:
            raise UnfitStore(_verdict(racers, len(winners)), racers=racers, winners=len(winners))
        if await _create(store, name, f"{nonce} late".encode()):
            raise UnfitStore("the store created an object again that was there: it ignores create-if-absent")
        if await store.read(name) != winners[0]:
            raise UnfitStore("a create that the store refused has overwritten the object nevertheless")
    finally:
        with suppress(StoreUnavailable):
            await store.delete(name)


def _verdict(racers: int, winners: int) -> str:
    if winners == 0:
        return f"none of {racers} creates of a fresh name succeeded: the store says that it exists, but nobody made it"
    return (
        f"{winners} of {racers} concurrent creates of one name succeeded: the store ignores or races create-if-absent"
    )


async def _create(store: ObjectStore, name: str, content: bytes) -> bool:
    """Whether this content won; after an unknown answer 'taken' may mean 'by this very content'."""
    for attempt in range(ATTEMPTS):
        try:
            return await store.create(name, content) or (attempt > 0 and await store.read(name) == content)
        except StoreUnavailable as error:
            last = error
    raise StoreUnavailable(f"{ATTEMPTS} creates of the probe failed, the last one with: {last}")

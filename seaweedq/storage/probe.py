"""The start-up probe: checks that the store is there, and has what safety depends on, first of all create-if-absent.

It asks for the bucket before anything is written. Then many writers race to create one new name, and one comes late:
exactly one may win, and its bytes must stay. `probe_answers` looks at how the store lists, reads and deletes. A store
with several endpoints is probed at each of them, and the race is held at all of them at once, too: each endpoint may be
correct alone, and yet know nothing of the others.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from seaweedq.clock import Ids
from seaweedq.errors import StoreUnavailable, UnfitStore
from seaweedq.storage.interface import NO_BUCKET, UNSUPPORTED, ObjectStore, PayloadStore
from seaweedq.storage.probe_answers import check_answers

logger = logging.getLogger("seaweedq")

ATTEMPTS = 5  # for each racer: S3 answers 409 while a concurrent put is being resolved


async def probe(store: PayloadStore, ids: Ids, racers: int = 32) -> None:
    """Probes each of the store's endpoints with names of its own below `_probe/`, and removes them again.

    An endpoint that does not answer is excluded until the next start, unless none answers. Raises UnfitStore, which
    says what the store does wrong; StoreUnavailable if there is no answer, or no bucket at one of the endpoints.
    """
    if not isinstance(endpoints := getattr(store, "endpoints", None), Sequence):
        await _probe_one(store, ids, racers)
        return
    answering: list[PayloadStore] = []
    for endpoint in endpoints:
        try:
            await _probe_one(endpoint, ids, racers)
        except StoreUnavailable as error:
            if error.fields.get("code") == NO_BUCKET:
                raise
            last = error
            logger.warning("an endpoint of the store does not answer, going on without it: %s", error)
        else:
            answering.append(endpoint)
    if not answering:
        raise last
    if len(answering) > 1:
        await _race(answering, ids, racers)
    for endpoint in endpoints:
        if endpoint not in answering:
            store.leave_out(endpoint)  # type: ignore[attr-defined]


async def _probe_one(store: PayloadStore, ids: Ids, racers: int) -> None:
    await store.check_bucket()
    await _race([store], ids, racers)
    await check_answers(store, ids, _create)


async def _race(stores: Sequence[ObjectStore], ids: Ids, racers: int) -> None:
    nonce = ids.nonce()
    name = f"_probe/{nonce}"
    contents = [f"{nonce} racer {number}".encode() for number in range(racers)]
    lanes = [stores[number % len(stores)] for number in range(racers)]
    try:
        won = await asyncio.gather(
            *(_create(lane, name, content) for lane, content in zip(lanes, contents, strict=True))
        )
        winners = [content for content, mine in zip(contents, won, strict=True) if mine]
        if len(winners) != 1:
            raise UnfitStore(_verdict(racers, len(winners)), racers=racers, winners=len(winners))
        for store in stores:
            if await _create(store, name, f"{nonce} late".encode()):
                raise UnfitStore("the store created an object that existed already: it ignores create-if-absent")
            if await store.read(name) != winners[0]:
                raise UnfitStore("the store refused a create, but overwrote the object nevertheless")
    finally:
        with suppress(StoreUnavailable):
            await stores[0].delete(name)


def _verdict(racers: int, winners: int) -> str:
    if winners == 0:
        return f"none of {racers} creates of a new name succeeded: the store claims that the object existed already"
    return f"{winners} of {racers} concurrent creates of one name succeeded, not one: the store lacks create-if-absent"


async def _create(store: ObjectStore, name: str, content: bytes) -> bool:
    """Tells whether this content won. After an unknown outcome, "exists" may mean "with this very content". Raises
    UnfitStore where the last attempt was not supported."""
    for attempt in range(ATTEMPTS):
        try:
            return await store.create(name, content) or (attempt > 0 and await store.read(name) == content)
        except StoreUnavailable as error:
            last = error
    if last.fields.get("code") == UNSUPPORTED:
        raise UnfitStore(f"the store does not support create-if-absent (If-None-Match: *): {last}")
    raise StoreUnavailable(f"the start-up probe failed to create an object {ATTEMPTS} times; the last error: {last}")

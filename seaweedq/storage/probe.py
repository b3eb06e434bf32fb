"""The start-up probe: checks that the store is there, and has what safety depends on, first of all create-if-absent.

It asks for the bucket before anything is written. Then many writers race to create one new name, and one comes late:
exactly one may win, and its bytes must stay. A store with several endpoints is probed at each of them, and the race is
held at all of them at once, too: each endpoint may be correct alone, and yet know nothing of the others.

Then it looks at how the store lists, reads and deletes a few objects: all that the program needs of it beside
create-if-absent, each with what breaks without it. A wrong answer may be the echo of a request that was slow or
repeated on its way, so a store is judged by several looks at new names. A probe that is killed leaves a few small
objects below `_probe/`, which nobody ever lists.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from seaweedq.clock import Ids
from seaweedq.errors import StoreUnavailable, UnfitStore
from seaweedq.storage.interface import NO_BUCKET, UNSUPPORTED, ObjectStore, PayloadStore

TRIES = 3
IN_FOLDER = ("a", "b.d", "c")
BELOW = "b/c"  # before b.d where names are compared by their parts, behind it where they are compared whole

Create = Callable[[ObjectStore, str, bytes], Awaitable[bool]]
logger = logging.getLogger("seaweedq")
ATTEMPTS = 5  # for each racer: S3 answers 409 while a concurrent put is being resolved


class _WrongAnswer(Exception):
    """The store answers otherwise than it must: (what it does, what that breaks)."""


async def check_answers(store: ObjectStore, ids: Ids, create: Create) -> None:
    """Raises UnfitStore, which says what is wrong and what it breaks (fields: wrong, breaks), if all of TRIES looks
    find something wrong; StoreUnavailable. Sends about 20 requests in four rounds."""
    for look in range(TRIES):
        folder = f"_probe/{ids.nonce()}/"
        try:
            await _check_once(store, folder, create)
        except _WrongAnswer as error:
            wrong, breaks = error.args
            if look == TRIES - 1:
                raise UnfitStore(
                    f"the store does not work as brokers need it: it {wrong}, which breaks {breaks}",
                    wrong=wrong,
                    breaks=breaks,
                ) from None
        else:
            return


async def _check_once(store: ObjectStore, folder: str, create: Create) -> None:
    contents = {folder + name: f"{folder}{name} 0123456789".encode() for name in (*IN_FOLDER, BELOW)}
    try:
        await asyncio.gather(*(create(store, name, content) for name, content in contents.items()))
        await asyncio.gather(_check_lists(store, folder), _check_reads(store, folder + "a", contents[folder + "a"]))
    finally:
        with suppress(StoreUnavailable):
            await asyncio.gather(*map(store.delete, contents))
    await _check_gone(store, folder)


async def _check_lists(store: ObjectStore, folder: str) -> None:
    whole, limited, behind_a, behind_b = await asyncio.gather(
        store.list(folder),
        store.list(folder, limit=2),
        store.list(folder, after=f"{folder}a"),
        store.list(folder, after=f"{folder}b~"),
    )
    beside = [folder + name for name in IN_FOLDER]
    _expect(
        sorted(whole) == sorted([*beside, folder + BELOW]),
        f"lists {_short(whole, folder)} immediately after {[*IN_FOLDER, BELOW]} were created",
        "recovery and every search for the end of a segment, which ask the store for what exists",
    )
    _expect(
        [name for name in whole if name != folder + BELOW] == beside,
        f"lists {_short(whole, folder)}, not the names in one folder in byte order",
        "the search for a segment's last file",
    )
    _expect(
        limited == whole[:2] and behind_a == whole[1:],
        f"lists {_short(limited, folder)} as the first two names, and {_short(behind_a, folder)} behind the first",
        "all listings of more than one page",
    )
    _expect(
        behind_b == [f"{folder}c"],
        f"lists {_short(behind_b, folder)} behind a place between two names",
        "the search for the last file of a long segment",
    )


async def _check_reads(store: ObjectStore, name: str, content: bytes) -> None:
    middle, rest, size, opened = await asyncio.gather(
        store.read(name, 2, 9), store.read(name, 5), store.size(name), store.readers.run(_open, store, name)
    )
    _expect(
        (middle, rest, size, opened) == (content[2:9], content[5:], len(content), content[-4:]),
        "returns other bytes than a range asks for",
        "reading headers and Parquet files, of which only ranges are read",
    )
    _expect(
        await _is_missing(store, f"{name}.missing"),
        "answers for an object that was never created",
        "recovery, which must tell what is missing",
    )


async def _check_gone(store: ObjectStore, folder: str) -> None:
    left, missing = await asyncio.gather(store.list(folder), _is_missing(store, f"{folder}a"))
    _expect(
        left == [],
        f"lists {_short(left, folder)} after their deletion",
        "recovery and the removal of topics, which list until nothing is left",
    )
    _expect(missing, "returns an object after its deletion", "retention, and whoever relies on a removal")


async def _is_missing(store: ObjectStore, name: str) -> bool:
    try:
        await store.read(name)
    except FileNotFoundError:
        return True
    return False


def _open(store: ObjectStore, name: str) -> bytes:
    with store.open(name) as reader:
        reader.seek(-4, 2)
        return reader.read()


def _short(names: Sequence[str], folder: str) -> list[str]:
    return [name.removeprefix(folder) for name in names]


def _expect(held: bool, wrong: str, breaks: str) -> None:
    if not held:
        raise _WrongAnswer(wrong, breaks)


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
            logger.warning("an endpoint of the store does not answer (%s); continuing with the other endpoints", error)
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
            wrong = (
                f"none of {racers} creates of a new name succeeded: the store claims that the object already existed"
            )
            if winners:
                count = f"{len(winners)} of {racers} concurrent creates of one name succeeded, not one"
                wrong = f"{count}: the store lacks create-if-absent"
            raise UnfitStore(wrong, racers=racers, winners=len(winners))
        for store in stores:
            if await _create(store, name, f"{nonce} late".encode()):
                raise UnfitStore(
                    "the store overwrote an existing object, because it ignores create-if-absent (If-None-Match: *)"
                )
            if await store.read(name) != winners[0]:
                raise UnfitStore(
                    "the store refused to create an object that exists, but overwrote the object nevertheless"
                )
    finally:
        with suppress(StoreUnavailable):
            await stores[0].delete(name)


async def _create(store: ObjectStore, name: str, content: bytes) -> bool:
    """Tells whether this content won. After an unknown outcome, "exists" may mean "with this very content". Raises
    UnfitStore if the last attempt was not supported."""
    for attempt in range(ATTEMPTS):
        try:
            return await store.create(name, content) or (attempt > 0 and await store.read(name) == content)
        except StoreUnavailable as error:
            last = error
    if last.fields.get("code") == UNSUPPORTED:
        raise UnfitStore(f"the store does not support create-if-absent (If-None-Match: *): {last}")
    raise StoreUnavailable(f"the start-up probe failed {ATTEMPTS} times to create an object; the last error: {last}")

"""What every PayloadStore promises, over all backends, and which of it moto does not keep."""

import asyncio
import hashlib

import pytest

from seaweedq.errors import InvalidUpload
from seaweedq.storage.interface import PayloadStore
from seaweedq.storage.s3 import S3Store
from tests.support.storage.clients_put import bring, once

NAME = "_payloads/t/20260102/1"
DATA = b"payload " * 40_000
DIGEST = hashlib.sha256(DATA).hexdigest()
OTHER = hashlib.sha256(b"other").hexdigest()


async def refused(store: PayloadStore, **announced: object) -> bool:
    try:
        return not await bring(store, NAME, DATA, **announced)  # type: ignore[arg-type]
    except InvalidUpload:
        return True


@pytest.mark.parametrize("sha256", [None, DIGEST])
@pytest.mark.parametrize("data", [b"", DATA])
async def test_a_payload_is_an_object(store: PayloadStore, data: bytes, sha256: str | None) -> None:
    stated = sha256 and hashlib.sha256(data).hexdigest()
    assert await bring(store, NAME, data, sha256=stated)
    assert await store.read(NAME) == data
    assert await store.size(NAME) == len(data)
    size, found = await store.digest(NAME)
    assert size == len(data)
    assert found in (None, hashlib.sha256(data).hexdigest())
    assert await store.list("_payloads/t/") == [NAME]
    with store.open(NAME) as reader:
        assert reader.read() == data
    await store.delete(NAME)
    assert await store.list("") == []


@pytest.mark.parametrize("sha256", [None, DIGEST])
async def test_what_is_there_is_not_replaced(store: PayloadStore, sha256: str | None) -> None:
    assert await store.create(NAME, b"first")
    assert not await bring(store, NAME, DATA, sha256=sha256)
    assert await store.read(NAME) == b"first"


async def test_a_copy_outlives_what_it_was_made_of(store: PayloadStore) -> None:
    to = "_payloads/dead/20260102/2"
    assert await bring(store, NAME, DATA)
    await store.copy(NAME, to)
    await store.copy(NAME, to)
    await store.delete(NAME)
    assert await store.read(to) == DATA
    with pytest.raises(FileNotFoundError):
        await store.copy(NAME, "_payloads/dead/20260102/3")
    assert await store.list("_payloads/") == [to]


async def test_of_many_for_one_name_one_is_taken(store: PayloadStore) -> None:
    contents = [bytes([number]) * 50_000 for number in range(8)]
    taken = await asyncio.gather(*(bring(store, NAME, content) for content in contents))
    assert sum(taken) == 1
    assert await store.read(NAME) == contents[taken.index(True)]


@pytest.mark.parametrize(
    "announced", [{"size": len(DATA) - 1}, {"sha256": OTHER}, {"size": len(DATA) - 1, "sha256": DIGEST}]
)
async def test_another_size_or_digest_is_refused_and_leaves_nothing(
    store: PayloadStore, announced: dict[str, object], request: pytest.FixtureRequest
) -> None:
    was_refused = await refused(store, **announced)
    if "moto" in request.node.name:  # it looks at neither: so size and digest are asked for before a publish
        assert not was_refused
        assert await store.digest(NAME) == (len(DATA), None)
    else:
        assert was_refused
        assert await store.list("") == []
        assert await bring(store, NAME, DATA, sha256=DIGEST)


async def test_the_digest_of_what_is_not_there_is_not_found(store: PayloadStore) -> None:
    await store.create("a/b", b"")
    for name in ("a", "missing", "a/b/c"):
        with pytest.raises(FileNotFoundError):
            await store.digest(name)


async def test_a_digest_is_the_stores_own_or_none(store: PayloadStore, request: pytest.FixtureRequest) -> None:
    await store.create("by a broker", DATA)
    assert await store.digest("by a broker") == (len(DATA), None)
    await bring(store, "unknown before", DATA)
    assert await store.digest("unknown before") == (len(DATA), None)
    await bring(store, "stated", DATA, sha256=DIGEST)
    own = {"minio": (DIGEST,), "yours": (DIGEST, None)}
    known = next((digests for name, digests in own.items() if name in request.node.name), (None,))
    size, digest = await store.digest("stated")
    assert size == len(DATA)
    assert digest in known


async def test_a_uri_names_one_object(store: PayloadStore) -> None:
    assert store.uri(NAME).endswith(f"/{NAME}")
    assert store.uri(NAME).split("://")[0] in ("file", "memory", "s3")
    assert store.uri("a") != store.uri("b")


@pytest.mark.parametrize("name", ["", "/a", "../a", "a//b", "a/../b", "_tmp/a", "a\0b"])
async def test_illegal_names_are_programming_errors(store: PayloadStore, name: str) -> None:
    with pytest.raises(ValueError, match="not a valid object name"):
        store.uri(name)
    with pytest.raises(ValueError, match="not a valid object name"):
        await store.digest(name)
    acts = (
        [
            store.presign_put(name, 60, 1, "text/plain", None),
            store.presign_get(name, 60),
            store.presign_part(name, "p", 1, 60, 1),
            store.begin_parts(name, "text/plain"),
            store.list_parts(name, "p"),
            store.end_parts(name, "p", []),
            store.abort_parts(name, "p"),
        ]
        if store.presigns
        else [store.receive(name, once(b"1"), 1, None)]
    )
    for act in acts:
        with pytest.raises(ValueError, match="not a valid object name"):
            await act


async def test_a_store_has_one_way_to_take_payloads(store: PayloadStore) -> None:
    assert store.presigns == isinstance(store, S3Store)
    with pytest.raises(NotImplementedError):
        await (
            store.receive(NAME, once(b"1"), 1, None)
            if store.presigns
            else store.presign_put(NAME, 60, 1, "text/plain", None)
        )

"""Records of uploads and imports, and the secret of their links."""

from typing import Any

from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.records import (
    ImportRecord,
    SecretRecord,
    WriteRecord,
)
from seaweedq.coordination.versioned import Versioned
from tests.support import privates
from tests.support.brokers import inside
from tests.support.unreadable.world import Case, T, World

IMPORT = ImportRecord("arrow", False, "n", 1, "s", 0, 2**60, 1, 1, None, state="failed")


WRITE = WriteRecord(7, "arrow", False, 1, "s", None, False, 0, 1, 1, "n", 0, None, state="failed", ended_us=2**60)


async def upload_broken(world: World) -> None:
    await world.refuses("GET", f"{T}/uploads/{world.upload}", topic="t", upload_id=world.upload)
    await world.refuses("DELETE", f"{T}/uploads/{world.upload}", topic="t", upload_id=world.upload)


async def upload_whole(world: World) -> None:
    async with world.http() as http:
        assert (await world.ask(http, "GET", f"{T}/uploads/{world.upload}", 200))["state"] == "open"


async def import_broken(world: World) -> None:
    await world.refuses("GET", f"{T}/imports/{world.upload}", topic="t", upload_id=world.upload)
    for one in world.living:
        await inside.imports(one).adopt()


async def import_whole(world: World) -> None:
    async with world.http() as http:
        assert (await world.ask(http, "GET", f"{T}/imports/{world.upload}", 200))["state"] == "failed"


async def write_broken(world: World) -> None:
    await world.refuses("GET", f"{T}/writes/w", topic="t", writer="w")
    await world.refuses("PUT", f"{T}/writes/w/8", {"uploads": ["u"], "format": "arrow"}, topic="t", writer="w")
    for one in world.living:
        await inside.writes(one).adopt()


async def write_whole(world: World) -> None:
    async with world.http() as http:
        found = await world.ask(http, "GET", f"{T}/writes/w", 200)
        assert (found["state"], found["number"]) == ("failed", 7)


async def write_there(world: World) -> None:
    for state in ("checking", "failed"):
        value = keys.WRITES.encode(Versioned.new(WRITE).replace(state=state))
        await world.coordination.commit([], [Put(keys.WRITES.key("t", 0, "w"), value)])


async def secret_broken(world: World) -> None:
    for one in world.living:
        privates.keys(inside.uploads(one).own_urls)._roots = tuple  # as where the cluster has no secret
        privates.keys(inside.uploads(one).own_urls)._known = None
    await world.refuses("POST", f"{T}/uploads", {"size": 3, "content_type": "a/b"})


async def secret_whole(world: World) -> None:
    async with world.http() as http:
        await world.ask(http, "POST", f"{T}/uploads", 201, {"size": 3, "content_type": "a/b"})


async def import_there(world: World) -> None:
    for state in ("checking", "failed"):
        value = keys.IMPORTS.encode(Versioned.new(IMPORT).replace(state=state))
        await world.coordination.commit([], [Put(keys.IMPORTS.key("t", 0, world.upload), value)])


CASES: dict[keys.KeyKind[Any], Case] = {
    keys.UPLOADS: Case(lambda world: keys.UPLOADS.key("t", 0, world.upload), upload_broken, upload_whole),
    keys.IMPORTS: Case(
        lambda world: keys.IMPORTS.key("t", 0, world.upload), import_broken, import_whole, IMPORT, prepare=import_there
    ),
    keys.WRITES: Case(
        lambda world: keys.WRITES.key("t", 0, "w"), write_broken, write_whole, WRITE, prepare=write_there
    ),
    keys.URL_SECRET: Case(lambda _: "url-secret", secret_broken, secret_whole, SecretRecord("00" * 32)),
}

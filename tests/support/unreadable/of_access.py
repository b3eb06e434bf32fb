"""Records of principals and their tokens."""

from typing import Any

from seaweedq.access.tokens import digest_of, name_of_denied
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.records import DenialRecord, PrincipalRecord, TokenRecord
from seaweedq.coordination.versioned import Versioned
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import until
from tests.support.unreadable.world import Case, World

PRINCIPAL, TOKEN = PrincipalRecord("u", (), 1), b"sq1_some"


async def principal_broken(world: World) -> None:
    await world.refuses("PUT", "/v1/principals/p", {"grants": []})


async def principal_whole(world: World) -> None:
    async with world.http() as http:
        await world.ask(http, "PUT", "/v1/principals/p", 200, {"grants": []})


async def token_broken(world: World) -> None:
    """What cannot be read gives no right."""
    await until(lambda: all(inside.callers(one).find(digest_of(TOKEN)) is None for one in world.living))


async def token_whole(world: World) -> None:
    await until(lambda: all(inside.callers(one).find(digest_of(TOKEN)) for one in world.living))


async def token_there(world: World) -> None:
    value = keys.PRINCIPALS.encode(Versioned.new(PRINCIPAL))
    await world.coordination.commit([], [Put(keys.PRINCIPALS.key("p"), value)])


async def denial_broken(world: World) -> None:
    """What cannot be read is denied."""
    await until(lambda: all(inside.callers(one).view.is_denied("sub", "alice", 2) for one in world.living))
    await world.refuses("POST", "/v1/denials", {"kind": "sub", "value": "alice"})


async def denial_whole(world: World) -> None:
    async with world.http() as http:
        await world.ask(http, "POST", "/v1/denials", 201, {"kind": "sub", "value": "alice"})


CASES: dict[keys.KeyKind[Any], Case] = {
    keys.PRINCIPALS: Case(lambda _: keys.PRINCIPALS.key("p"), principal_broken, principal_whole, PRINCIPAL),
    keys.TOKENS: Case(
        lambda _: keys.TOKENS.key("0" * 16),
        token_broken,
        token_whole,
        TokenRecord(digest_of(TOKEN).hex(), "p", PRINCIPAL.uid, 1),
        prepare=token_there,
    ),
    keys.DENIALS: Case(
        lambda _: keys.DENIALS.key(name_of_denied("sub", "alice")),
        denial_broken,
        denial_whole,
        DenialRecord("sub", "alice", 1),
    ),
}

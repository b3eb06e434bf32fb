"""Records of subscriptions."""

from typing import Any

from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.versioned import Versioned
from tests.support.brokers import inside
from tests.support.unreadable.world import Case, T, World, pulled_until_refused


async def subscription_broken(world: World) -> None:
    for number, one in enumerate(world.living):
        if inside.dispatcher(one).has(inside.topic(one, "t"), "u"):  # its next checkpoint finds it
            async with world.http(number) as http:
                await world.publish(http, "t")
                found = await world.ask(http, "POST", f"{T}/subscriptions/u/pull", 200, {"wait_s": 2})
                ids = [each["id"] for each in found["messages"]]
                await world.ask(http, "POST", f"{T}/subscriptions/u/ack", 200, {"ids": ids})
            await inside.dispatcher(one).checkpoint()
            assert inside.dispatcher(one).pin is not None, "the acks stay in the journal"
    for method, path, body in (
        ("GET", "", None),
        ("PUT", "", {}),
        ("DELETE", "", None),
        ("POST", "/pull", {"wait_s": 0}),
        ("POST", "/ack", {"ids": ["0-0"]}),
    ):
        await world.refuses(method, f"{T}/subscriptions/u{path}", body, topic="t", subscription="u")
    async with world.http() as http:
        listed = await world.ask(http, "GET", f"{T}/subscriptions", 200)
        assert ([one["name"] for one in listed["subscriptions"]], listed["unreadable"]) == (["s"], ["u"])
        everywhere = await world.ask(http, "GET", "/v1/subscriptions", 200)
        assert everywhere["unreadable"] == [{"topic": "t", "name": "u"}]
        assert {"topic": "t", "name": "s"} in everywhere["subscriptions"]


async def subscription_whole(world: World) -> None:
    for one in world.living:
        await inside.dispatcher(one).checkpoint()
        assert inside.dispatcher(one).pin is None, "what was acked meanwhile is written"
    async with world.http() as http:
        await world.publish(http, "t")
        body = {"max_messages": 1000, "wait_s": 2}
        assert (await world.ask(http, "POST", f"{T}/subscriptions/u/pull", 200, body))["messages"]
        listed = await world.ask(http, "GET", f"{T}/subscriptions", 200)
        assert [one["name"] for one in listed["subscriptions"]] == ["s", "u"]


async def rewind_broken(world: World) -> None:
    """No subscription is created or sought: retention could not hear of it."""
    await world.refuses("PUT", f"{T}/subscriptions/v", {}, topic="t")
    await world.refuses("POST", f"{T}/subscriptions/s/seek", {"to": "latest"}, topic="t")


async def rewind_whole(world: World) -> None:
    async with world.http() as http:
        await world.ask(http, "PUT", f"{T}/subscriptions/v", 201, {})
        await world.ask(http, "DELETE", f"{T}/subscriptions/v", 204)


async def cursor_broken(world: World) -> None:
    for one in world.living:
        inside.dispatcher(one).forget(inside.topic(one, "t"))
    before = await world.coordination.get(keys.CURSORS.key("t", 0, "s", 0))
    async with world.http() as http:
        found = await pulled_until_refused(world, http)
        assert {one["segment"] for one in found} <= {1}
        assert 0 not in {one["segment"] for one in (await world.ask(http, "GET", f"{T}/subscriptions/s", 200))["lag"]}
    await world.refuses("POST", f"{T}/subscriptions/s/ack", {"ids": ["0-0"]}, topic="t", subscription="s")
    for one in world.living:
        await inside.dispatcher(one).checkpoint()
    assert await world.coordination.get(keys.CURSORS.key("t", 0, "s", 0)) == before


async def cursor_whole(world: World) -> None:
    for one in world.living:
        for subscription in inside.dispatcher(one).subscriptions():
            subscription.reread_s = 0.0  # a second later
    async with world.http() as http:
        assert 0 in {one["segment"] for one in await world.pull(http, "t", ahead=True)}


async def subscription_there(world: World) -> None:
    one = world.living[0]
    record = (await inside.subscription_admin(one).find(inside.topic(one, "t"), "s")) or None
    assert record
    for state in ("creating", "active"):
        value = keys.SUBSCRIPTIONS.encode(Versioned.new(record).replace(dispatcher=None, state=state))
        await world.coordination.commit([], [Put(keys.SUBSCRIPTIONS.key("t", 0, "u"), value)])


CASES: dict[keys.KeyKind[Any], Case] = {
    keys.SUBSCRIPTIONS: Case(
        lambda _: keys.SUBSCRIPTIONS.key("t", 0, "u"),
        subscription_broken,
        subscription_whole,
        prepare=subscription_there,
    ),
    keys.REWINDS: Case(lambda _: keys.REWINDS.key("t", 0), rewind_broken, rewind_whole),
    keys.CURSORS: Case(lambda _: keys.CURSORS.key("t", 0, "s", 0), cursor_broken, cursor_whole),
}

"""A subscription that nobody uses for `expires_after_s` is deleted; no clock and no restore deletes one in use."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from seaweedq.broker.retention.subscription_expiry import SubscriptionExpiry
from seaweedq.checks import using
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put, read_all
from seaweedq.coordination.records import Counter
from seaweedq.coordination.versioned import Versioned
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.reshaped import TOPIC
from tests.support.brokers.retained import RetainedWorld, retained
from tests.support.brokers.subscribing import SUBSCRIPTION
from tests.support.tiers import later

pytestmark = pytest.mark.brokers

EXPIRES_S, STEP_S = 3_600, 600


class Passing:
    """The clock of a world, and monotonic seconds that pass as the test says. They begin at the machine's, by which
    leases are taken."""

    def __init__(self, world: RetainedWorld) -> None:
        self.monotonic = world.clock.monotonic_s()
        self._world = world

    def now_us(self) -> int:
        return self._world.clock.now_us()

    def monotonic_s(self) -> float:
        return self.monotonic


class Resting:
    """A broker with the subscription `s`, which looks for what has expired, in time that passes."""

    def __init__(self, world: RetainedWorld, http: httpx.AsyncClient) -> None:
        self.world, self.http, self.clock = world, http, Passing(world)
        self.rounds = inside.retention(world.broker).rounds
        self.dispatcher = inside.dispatcher(world.broker)
        privates.use_clock(self.dispatcher, self.clock)
        privates.use_clock(privates.opened(self.dispatcher), self.clock)
        self.coordination = world.together.coordination
        catalog = inside.catalog(world.broker)
        admin = inside.subscription_admin(world.broker)
        self.expiry = SubscriptionExpiry(catalog, self.coordination, admin, self.rounds, self.clock, STEP_S)

    async def pass_time(self, seconds: float) -> None:
        """Time goes on, with a checkpoint and a look of the leader each STEP_S."""
        for _ in range(int(seconds / STEP_S)):
            self.world.pass_time(STEP_S)
            self.clock.monotonic += STEP_S
            await self.dispatcher.checkpoint()
            await self.expiry.delete_expired()

    async def is_there(self) -> bool:
        return (await self.http.get(SUBSCRIPTION)).status_code == 200

    async def pull(self) -> int:
        return (await self.http.post(f"{SUBSCRIPTION}/pull", json={"max_messages": 1})).status_code

    async def forget(self) -> None:
        """Restores the number of rounds that an older coordination had."""
        await self.know(0)

    async def know(self, number: int) -> None:
        """Has coordination know a number of rounds."""
        put = Put(keys.RETENTION.key(), keys.RETENTION.encode(Versioned.new(Counter(number))))
        await self.coordination.commit([], [put])


@asynccontextmanager
async def resting(folder: Path) -> AsyncIterator[Resting]:
    async with retained(folder, checkpoint_s=600) as world, world.http() as http:
        answer = await http.put(SUBSCRIPTION, json={"start": "earliest", "expires_after_s": EXPIRES_S})
        assert answer.json()["expires_after_s"] == EXPIRES_S, answer.text
        yield Resting(world, http)


async def test_it_goes_once_nobody_has_used_it_for_that_long(tmp_path: Path) -> None:
    async with resting(tmp_path) as here:
        for _ in range(4):  # pulls, acks, changes are uses
            await here.pass_time(4_800)
            assert await here.pull() == 200
            await here.pass_time(4_800)
            assert (await here.http.post(f"{SUBSCRIPTION}/ack", json={"ids": ["0-0"]})).status_code == 200
            await here.pass_time(4_800)
            assert (await here.http.patch(SUBSCRIPTION, json={"ack_deadline_s": 5})).status_code == 200
        assert await here.pull() == 200
        revision = (await here.coordination.get(keys.SUBSCRIPTIONS.key("t", 0, "s"))).revision
        assert await here.pull() == 200  # no write a pull
        assert (await here.coordination.get(keys.SUBSCRIPTIONS.key("t", 0, "s"))).revision == revision
        rounds = here.rounds.begun
        await here.pass_time(4_800)
        assert await here.is_there()  # to look is no use
        assert here.rounds.begun == rounds  # nor a request to the store
        await here.pass_time(4_800)
        assert not await here.is_there()
        assert await here.pull() == 404
        assert (await read_all(here.coordination, keys.CURSORS.prefix()))[0] == []


async def test_it_stays_while_somebody_works_on_what_it_got(tmp_path: Path) -> None:
    """A handler may take longer than `expires_after_s`: its ack found no subscription any more."""
    async with resting(tmp_path) as here:
        await here.http.post(f"{TOPIC}/messages", json={"messages": [{"value": 1}]})
        assert (await here.http.patch(SUBSCRIPTION, json={"ack_deadline_s": 40_000})).status_code == 200
        privates.use_clock(privates.leasing(privates.pulling(here.dispatcher)), here.clock)
        assert await here.pull() == 200
        await here.pass_time(39_600)
        assert await here.is_there()
        await here.pass_time(15_000)
        assert not await here.is_there()


@pytest.mark.parametrize("ahead_s", [3 * 86_400, later(-3 * 86_400)])
async def test_a_wrong_clock_deletes_nothing_that_is_used(tmp_path: Path, ahead_s: float) -> None:
    """First that of the leader, against the store's; then that of the dispatcher which writes of uses."""
    async with resting(tmp_path) as here:
        here.world.clock.shift_s += ahead_s
        await here.pass_time(20_000)
        assert await here.is_there()
        assert here.rounds.held == ("clock" if ahead_s > 0 else "")  # behind, it finds nothing due
        for _ in range(40):
            assert await here.pull() == 200
            await here.dispatcher.checkpoint()
            here.world.clock.shift_s -= ahead_s
            await here.pass_time(600)
            here.world.clock.shift_s += ahead_s
        assert await here.is_there()


async def test_a_restored_coordination_deletes_nothing_until_it_is_rebuilt(tmp_path: Path) -> None:
    async with resting(tmp_path) as here:
        await here.rounds.begin()
        await here.rounds.begin()
        await here.forget()
        await here.pass_time(20_000)
        assert (await here.is_there(), here.rounds.held) == (True, "restored")
        await here.know(2)  # as a rebuild leaves it
        await here.pass_time(600)
        assert not await here.is_there()


async def test_a_use_at_the_last_moment_comes_first_or_finds_it_gone(tmp_path: Path) -> None:
    """The leader has decided; the dispatcher has had it open for long."""
    async with resting(tmp_path) as here:
        assert await here.pull() == 200
        topic = inside.topic(here.world.broker, "t")
        admin, subscription = inside.subscription_admin(here.world.broker), await here.dispatcher.open(topic, "s")
        there = subscription.held
        here.clock.monotonic += 2 * EXPIRES_S
        assert await here.pull() == 200  # notes the use, before it answers
        with pytest.raises(Exception, match="changed by another request"):
            await admin.expire(topic, "s", there, here.rounds.leader_compare())
        here.clock.monotonic += 2 * EXPIRES_S
        with using(_dying), pytest.raises(ZeroDivisionError):
            await admin.expire(topic, "s", subscription.held, here.rounds.leader_compare())
        assert await here.pull() == 404
        answer = await here.http.put(SUBSCRIPTION, json={"start": "latest"})  # what was left goes first
        assert (answer.status_code, answer.json()["lag_total"]["messages"]) == (201, 0)


def _dying(place: str) -> None:
    if place == "expire.cursors":
        raise ZeroDivisionError

"""The state that a rebuild takes, whatever has become of the backups: damaged, cut off, forged, missing, of a newer
broker, of another generation or secret. Messages that were acknowledged are in none of them, and are never lost."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from seaweedq.broker.backups import Backups
from seaweedq.broker.rebuild import Report, Wish
from seaweedq.broker.rebuild.journals import JournalSearch
from seaweedq.broker.rebuild.rebuilding import Rebuilding
from seaweedq.cli.server.journals import journal_setup
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.coordination import backup, keys
from seaweedq.coordination.backup import Sealer, State, change_name, snapshot_name
from seaweedq.coordination.interface import read_all
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.records import JournalRecord, PrincipalRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import NeedsNewerBroker, RebuildConflict
from seaweedq.formats import Format
from seaweedq.levels import HIGHEST
from seaweedq.settings import Settings
from seaweedq.storage.generations import Generation, Generations, create_generation, newest_number
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers import inside
from tests.support.brokers.in_process import make_topic, publish, running
from tests.support.brokers.sealers import BARE, OWN_FOLDER, sealer
from tests.support.journal.mirrors import MemoryMirrors

ONE, TWO = sealer("one"), sealer("two")
FIRST = Generation(1, "n" * 32)
PRINCIPAL = keys.PRINCIPALS.key("ann")
OLD, NEW, FORGED = (snapshot_name(1, number) for number in (1, 2, 3))
CHANGE = change_name(1, 30)
Keys = dict[str, bytes]


@dataclass
class Past:
    """What brokers left that have stopped: the store without backups, and what coordination had. The topic `u` came
    behind the snapshots."""

    objects: dict[str, bytes]
    before: Keys
    after: Keys

    def world(self, of: Sealer = ONE) -> "World":
        """A world with two snapshots of generation 1, and the change that made `u`, protected by these secrets."""
        world = World(MemoryStore(), self.before)
        world.store.objects = dict(self.objects)
        added = {key: value for key, value in self.after.items() if "/u" in key}
        for number in (1, 2):
            world.snapshot(number, of)
        change = backup.AdminChange(1, 30, tuple(added.items()))
        world.store.objects[CHANGE] = backup.encode_change(change, of, HIGHEST)
        return world


@dataclass
class World:
    """A store, and an empty coordination into which it is rebuilt."""

    store: MemoryStore
    before: Keys
    coordination: MemoryCoordination = field(default_factory=lambda: MemoryCoordination(SystemClock()))

    def snapshot(self, number: int, of: Sealer, generation: int = 1, **more: bytes) -> None:
        """Puts a snapshot of the time before `u`."""
        state = State(generation, number, 10 * number, {**self.before, **more})
        self.store.objects[snapshot_name(generation, number)] = backup.encode_state(state, of, HIGHEST)

    async def rebuild(self, folder: Path, of: Sealer = ONE, wish: Wish | None = None, is_dry: bool = False) -> Report:
        """Rebuilds, as a broker with these secrets does."""
        setup = journal_setup(Settings(data_dir=folder, journal="object"), SystemClock(), SystemIds(), {})
        setup.home.lock()
        search = JournalSearch(
            setup.open(self.store, lambda: HIGHEST, lambda: (1, 0), MemoryMirrors()), self.coordination
        )
        backups = Backups(self.store, of, Generations(self.store), lambda: HIGHEST)
        clock, ids = SystemClock(), SystemIds()
        made = Rebuilding(self.coordination, self.store, self.store, backups, search, clock, ids, 0.01, "")
        try:
            return await (made.propose if is_dry else made.rebuild)(wish or Wish())
        finally:
            setup.home.release()

    async def content(self) -> Keys:
        """What coordination has."""
        return {entry.key: entry.value for entry in (await read_all(self.coordination, ""))[0]}


async def _past(folder: Path) -> Past:
    async def state(broker: Any) -> Keys:
        found, _ = await read_all(broker.process.coordination, "")
        kept = {one.key: one.value for one in found if not one.lease and not keys.JOURNALS.matches(one.key)}
        return kept | {PRINCIPAL: keys.PRINCIPALS.encode(Versioned.new(PrincipalRecord("uid", (), 1)))}

    store = MemoryStore()
    async with running(folder, store, journal="object") as broker:
        await publish(broker, await make_topic(broker, "t"), "1", "2")
        before = await state(broker)
        topic = await make_topic(broker, "u")
        await publish(broker, topic, "3")
        after = await state(broker)
        assert inside.catalog(broker).get("u")
    for name in [one for one in store.objects if one.startswith(("_coordination/", "_generations/"))]:
        del store.objects[name]
    await create_generation(store, FIRST)
    return Past(store.objects, before, after)


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Past:
    return asyncio.run(_past(tmp_path_factory.mktemp("past")))


def nothing(world: World) -> None:
    pass


def changed(*names: str, to: Callable[[bytes], bytes]) -> Callable[[World], None]:
    def change(world: World) -> None:
        for name in names:
            world.store.objects[name] = to(world.store.objects[name])

    return change


def flipped(data: bytes) -> bytes:
    return data[:60] + bytes([data[60] ^ 1]) + data[61:]


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def gone(*names: str) -> Callable[[World], None]:
    def remove(world: World) -> None:
        for name in names:
            del world.store.objects[name]

    return remove


def forged(world: World) -> None:
    """By somebody who can write the bucket: with rights of his own, and a number above all others."""
    world.snapshot(3, TWO, **{keys.PRINCIPALS.key("eve"): world.before[PRINCIPAL]})


def forged_change(world: World) -> None:
    change = backup.AdminChange(1, 31, ((keys.PRINCIPALS.key("eve"), world.before[PRINCIPAL]), (PRINCIPAL, None)))
    world.store.objects[change_name(1, 31)] = backup.encode_change(change, TWO, HIGHEST)


def unsigned(world: World) -> None:
    world.snapshot(3, OWN_FOLDER, **{keys.PRINCIPALS.key("eve"): world.before[PRINCIPAL]})


def renamed(world: World) -> None:
    """An old snapshot under a later name."""
    world.store.objects[FORGED] = world.store.objects[OLD]


@pytest.mark.parametrize(
    ("what", "number", "damaged", "unverified"),
    [
        (nothing, 2, (), ()),
        (changed(NEW, to=flipped), 1, (NEW,), ()),
        (changed(NEW, to=cut), 1, (NEW,), ()),
        (changed(NEW, to=lambda data: b""), 1, (NEW,), ()),
        (changed(NEW, to=lambda data: data + b"!"), 1, (NEW,), ()),
        (gone(NEW), 1, (), ()),
        (renamed, 2, (FORGED,), ()),
        (forged, 2, (), (FORGED,)),
        (unsigned, 2, (), (FORGED,)),
        (forged_change, 2, (), (change_name(1, 31),)),
    ],
)
async def test_the_newest_whole_state_is_taken(
    past: Past,
    tmp_path: Path,
    what: Callable[[World], None],
    number: int,
    damaged: tuple[str, ...],
    unverified: tuple[str, ...],
) -> None:
    world = past.world()
    what(world)
    report = await world.rebuild(tmp_path)
    assert (report.source, report.state.number, report.state.revision) == ("snapshot", number, 30)
    assert (report.damaged, report.unverified) == (damaged, unverified)
    found = await world.content()
    assert found[PRINCIPAL] == past.before[PRINCIPAL]
    assert not any(key.endswith("eve") for key in found)
    assert {"topics/t", "topics/u"} <= found.keys()


@pytest.mark.parametrize("what", [changed(CHANGE, to=flipped), gone(CHANGE)])
async def test_a_topic_whose_change_is_gone_is_found_in_its_first_entry(
    past: Past, tmp_path: Path, what: Callable[[World], None]
) -> None:
    world = past.world()
    what(world)
    await world.rebuild(tmp_path)
    found = await world.content()
    assert keys.TOPICS.require(await world.coordination.get("topics/u")).record.state == "active"
    assert any(key.startswith("segments/u/") for key in found)


@pytest.mark.parametrize(
    ("what", "damaged"),
    [
        (gone(OLD, NEW), ()),
        (changed(OLD, NEW, to=cut), (NEW, OLD)),
        (gone(OLD, NEW, CHANGE), ()),
        (changed(OLD, NEW, CHANGE, to=flipped), (NEW, OLD, CHANGE)),
    ],
)
async def test_without_any_snapshot_the_store_tells_the_topics(
    past: Past, tmp_path: Path, what: Callable[[World], None], damaged: tuple[str, ...]
) -> None:
    """Both have files behind their first. Rights and subscriptions are in no file."""
    world = past.world()
    what(world)
    report = await world.rebuild(tmp_path)
    assert report.damaged == damaged
    found = await world.content()
    assert {"topics/t", "topics/u"} <= found.keys()
    assert PRINCIPAL not in found


@pytest.mark.parametrize(
    ("written", "read", "is_kept"),
    [
        (ONE, ONE, True),
        (ONE, sealer("two", "one"), True),  # the secret is being changed
        (ONE, TWO, False),
        (ONE, BARE, False),
        (BARE, BARE, False),  # left out of a store that others may read
        (OWN_FOLDER, OWN_FOLDER, True),
        (OWN_FOLDER, ONE, False),  # anybody may have written it
    ],
)
async def test_rights_come_back_by_the_secret_alone(
    past: Past, tmp_path: Path, written: Sealer, read: Sealer, is_kept: bool
) -> None:
    world = past.world(written)
    report = await world.rebuild(tmp_path, read)
    found = await world.content()
    assert (PRINCIPAL in found) == is_kept
    assert {"topics/t", "topics/u"} <= found.keys()
    assert report.source == "snapshot"


async def test_without_tokens_nobody_has_rights(past: Past, tmp_path: Path) -> None:
    world = past.world()
    await world.rebuild(tmp_path, wish=Wish(without_tokens=True))
    found = await world.content()
    assert not any(keys.PRINCIPALS.matches(key) or keys.TOKENS.matches(key) for key in found)


async def test_a_snapshot_of_a_newer_broker_ends_the_rebuild(
    past: Past, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = past.world()
    with monkeypatch.context() as later:
        later.setattr(backup, "BACKUPS", Format("backups of coordination", {1: 1, HIGHEST: 2}))
        world.snapshot(3, ONE)
    with pytest.raises(NeedsNewerBroker, match=FORGED):
        await world.rebuild(tmp_path)
    assert not await world.content()
    del world.store.objects[FORGED]
    assert (await world.rebuild(tmp_path)).generation == 2


async def test_a_generation_that_backups_alone_know_counts(past: Past, tmp_path: Path) -> None:
    world = past.world()
    world.snapshot(9, ONE, generation=7)
    report = await world.rebuild(tmp_path)
    assert (report.generation, report.state.generation, report.state.number) == (8, 7, 9)


async def test_the_state_of_a_rebuild_that_was_killed_is_taken(past: Past, tmp_path: Path) -> None:
    """It is whole, and of a generation above that of the snapshots; one without a state is passed over."""
    world = past.world()
    for number in (2, 3):
        await create_generation(world.store, Generation(number, "m" * 32))
    world.snapshot(0, ONE, generation=2)
    report = await world.rebuild(tmp_path)
    assert (report.generation, report.state.generation, report.state.number) == (4, 2, 0)


@pytest.mark.parametrize("is_dry", [True, False])
async def test_a_file_journal_of_an_absent_machine_hinders_until_it_may_be_lost(
    past: Past, tmp_path: Path, is_dry: bool
) -> None:
    """Its broker joined behind the newest snapshot: the change of its key tells."""
    world = past.world()
    record = JournalRecord("file", "a folder elsewhere", "/nowhere")
    writes = ((keys.JOURNALS.key("b9"), keys.JOURNALS.encode(Versioned.new(record))),)
    name, change = change_name(1, 40), backup.AdminChange(1, 40, writes)
    world.store.objects[name] = backup.encode_change(change, ONE, HIGHEST)
    if is_dry:
        assert (await world.rebuild(tmp_path, is_dry=True)).hindered.keys() == {"b9"}
        assert await newest_number(world.store) == 1
        return
    with pytest.raises(RebuildConflict, match="--without-journal b9"):
        await world.rebuild(tmp_path)
    report = await world.rebuild(tmp_path, wish=Wish(frozenset({"b9"})))
    assert (report.plan.left_out, report.generation) == (("b9",), 2)
    assert keys.JOURNALS.key("b9") not in await world.content()

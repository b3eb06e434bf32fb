"""The cluster's level, as this broker knows it: a watched view of the cluster's record, so possibly behind.

To be behind is safe, since the level never falls: this broker then writes an older form, and each broker reads those.

The members `level`, `written`, `draft`, `generation`, `nonce` and `state` of the cluster's record, `lowest` and
`highest` of the records of brokers and journals have the same meaning in every version, so they are read before
anything else of a record is.
"""

from collections.abc import Callable, Mapping

import msgspec

from seaweedq import levels
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change, Compare, Coordination, Entry
from seaweedq.coordination.records import ClusterRecord
from seaweedq.coordination.roster import Roster
from seaweedq.coordination.versioned import Versioned
from seaweedq.coordination.view import View
from seaweedq.errors import LevelMismatch, UnfitStore
from seaweedq.formats import check_draft


class Levels(msgspec.Struct, frozen=True):
    """The cluster's levels in its record, the draft number of its forms; its generation, and whether brokers may be of
    it (`state`)."""

    level: int = 1
    written: int = 1
    draft: int = 0
    generation: int = 1
    nonce: str = ""
    state: str = "serving"


class Reads(msgspec.Struct, frozen=True):
    """The levels that a broker reads, in its record or that of its journal."""

    lowest: int = 1
    highest: int = 1
    starting: bool = False
    recovered: bool = False

    def reads(self, level: int) -> bool:
        """Tells whether the broker reads a level."""
        return self.lowest <= level <= self.highest


_LEVELS, _READS = msgspec.json.Decoder(Levels), msgspec.json.Decoder(Reads)


def levels_of(value: bytes) -> Levels:
    """Returns the levels in the value of the cluster's key, whatever else that holds."""
    try:
        return _LEVELS.decode(value)
    except msgspec.DecodeError:
        return Levels(draft=levels.DRAFT)  # the reader of the record says why it cannot be read


def reads_of(value: bytes) -> Reads | None:
    """Returns the levels in the value of a broker's or a journal's key, whatever else that holds. None: they cannot be
    read."""
    try:
        return _READS.decode(value)
    except msgspec.DecodeError:
        return None


def check_level(level: int) -> None:
    """Raises LevelMismatch unless this version reads the level."""
    if not levels.LOWEST <= level <= levels.HIGHEST:
        raise LevelMismatch(
            f"the cluster has format level {level}, but this version of seaweedq, "
            f"{levels.VERSION}, can read only levels {levels.LOWEST} to {levels.HIGHEST}; start a "
            f"version that can read level {level} (docs/operate/upgrading.md)",
            level=level,
            lowest=levels.LOWEST,
            highest=levels.HIGHEST,
        )


def read_cluster(entry: Entry) -> Versioned[ClusterRecord]:
    """Returns the cluster's record. Raises LevelMismatch if this version does not read its level or draft, and
    NeedsNewerBroker."""
    found = levels_of(entry.value)
    check_draft(found.draft, "the cluster's record in coordination")
    check_level(found.level)
    return keys.CLUSTER.require(entry)


def _nothing() -> None:
    pass


class ClusterLevel:
    """The level that each broker must read, and that at which forms are written now. `changed` is called after a
    change."""

    def __init__(self, coordination: Coordination, roster: Roster, changed: Callable[[], None] = _nothing) -> None:
        self._coordination = coordination
        self._roster = roster
        self._changed = changed
        self._levels = Levels()
        view = View(coordination, [keys.CLUSTER.key()], self._apply)
        self.load = view.load
        self.follow = view.follow

    @property
    def level(self) -> int:
        """Returns the level that a broker must read. It never falls."""
        return self._levels.level

    @property
    def written(self) -> int:
        """Returns the level at which forms are written now. It never falls."""
        return self._levels.written

    @property
    def possible(self) -> int:
        """Returns the highest level that all living brokers read, and the brokers of all journals that are to be
        recovered."""
        return max(self.level, min(self._highest().values(), default=self.level))

    @property
    def newest(self) -> int:
        """Returns the highest level that some of them read."""
        return max(self.level, *self._highest().values(), self.level)

    def serves(self, generation: int, nonce: str) -> bool:
        """Tells whether a broker that joined in a generation may still serve, as far as this view knows."""
        found = self._levels
        is_same = not found.nonce or (found.generation, found.nonce) == (generation, nonce)  # or it cannot be read
        return is_same and found.state == "serving"

    def too_old_for(self, level: int) -> list[str]:
        """Returns the ids of the brokers that do not read a level, or whose journals wait to be recovered and are of
        such a broker."""
        return sorted(broker for broker, highest in self._highest().items() if highest < level)

    async def admit(self, generation: int, nonce: str) -> list[Compare]:
        """Reads the cluster's record again. Returns the comparison under which this broker, which has compared its
        generation with the store's, may join. Raises LevelMismatch, UnfitStore if there is no record, or one of another
        generation, or which does not serve."""
        there = await self._coordination.get(keys.CLUSTER.key())
        if there is None:
            raise UnfitStore("the cluster's record disappeared from coordination while this broker was starting")
        known = read_cluster(there)
        if (known.record.generation, known.record.nonce, known.record.state) != (generation, nonce, "serving"):
            raise UnfitStore(
                f"this broker started in generation {generation} of coordination, but now coordination's generation is "
                f"{known.record.generation}, and coordination's state is {known.record.state}"
            )
        return [Compare(there.key, known.revision)]

    def _highest(self) -> Mapping[str, int]:
        living = {broker: known.record.highest for broker, known in self._roster.readable.items()}
        journals = {
            broker: known.record.highest
            for broker, known in self._roster.journals.items()
            if not known.record.recovered
        }
        return {**journals, **living}

    def _apply(self, change: Change) -> None:
        if change.value is not None:
            found = levels_of(change.value)
            level, written = max(self.level, found.level), max(self.written, found.written)
            self._levels = msgspec.structs.replace(found, level=level, written=written)
            self._changed()

"""The versions of stored formats: which one each level of the cluster writes, and which ones this program reads.

Each format has one `Format`, beside its encoder: a table from the level to the version that is written there. A version
is read from the first on, by a decoder for each. Bytes of a later version were written whole by a later program: they
are never taken as damaged, and never as missing. They need a broker that reads them (NeedsNewerBroker).

Headers of journals hold a version and the draft number (levels.DRAFT) in one number of 32 bits, of 16 bits each.

How a reader tells a later version from damage: magic, version and a CRC over the header keep their positions in every
version. Bytes without a version of their own, such as a frame, have a CRC: if it matches and they cannot be decoded, a
later version wrote them. New fields go to the end of an array, or into an object under a new name, and older programs
ignore them. A change that older programs would misread needs a new version, and a new version needs a new level.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from seaweedq import levels
from seaweedq.errors import LevelMismatch, NeedsNewerBroker

Level: TypeAlias = Callable[[], int]
"""Returns the level of the cluster at which formats are written now."""


@dataclass(frozen=True)
class Format:
    """One format. `written` has the version of each level that changed it; other levels write that of the level
    below."""

    name: str
    written: Mapping[int, int]

    @property
    def newest(self) -> int:
        """Returns the highest version that this program reads."""
        return max(self.written.values())

    def at(self, level: int) -> int:
        """Returns the version that is written at a level of the cluster."""
        return self.written[max(changed for changed in self.written if changed <= level)]

    def check(self, version: int, where: str) -> None:
        """Raises NeedsNewerBroker for a version that is later than all that are read. `where` begins the sentence."""
        if version > self.newest:
            raise needs_newer(f"{where} is in version {version} of the format of {self.name}; {_read(self.newest)}")


def needs_newer(what: str) -> NeedsNewerBroker:
    """Returns the error for bytes of a later program."""
    return NeedsNewerBroker(f"{what}; a newer broker is needed")


def _read(newest: int) -> str:
    return "this broker reads version 1" if newest == 1 else f"this broker reads versions up to {newest}"


def drafted(version: int) -> int:
    """Returns a version and the draft number in one."""
    return version | levels.DRAFT << 16


def undrafted(stamped: int) -> tuple[int, int]:
    """Returns the version and the draft number in the one number that `drafted` returned."""
    return stamped & 0xFFFF, stamped >> 16


def check_draft(draft: int, where: str) -> None:
    """Raises LevelMismatch for another draft number than that of this version; 0 is none. `where` begins the
    sentence."""
    if draft != levels.DRAFT:
        found = f"with draft number {draft}" if draft else "without a draft number"
        raise LevelMismatch(
            f"{where} was written in storage formats {found}, but this version of seaweedq reads only formats with "
            f"draft number {levels.DRAFT}; continue with the unreleased version of seaweedq that wrote the data, or "
            "start with an empty data folder, coordination and store (docs/operate/upgrading.md)",
            draft=draft,
            reads=levels.DRAFT,
        )

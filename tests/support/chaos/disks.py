"""Small disks of brokers, and what happens when they are full."""

from pathlib import Path
from random import Random

from tests.support.chaos.cluster import Cluster
from tests.support.chaos.fault import Begun

FILLER = "filler"
PIECE = bytes(65_536)


def disk_full(cluster: Cluster, rng: Random) -> Begun | None:
    """A broker's disk takes nothing more. None where brokers have no disks of their own."""
    member = rng.choice(cluster.members)
    folder = member.process.data_dir
    if not folder.is_mount():
        return None
    fill(folder)
    return Begun(lambda: (folder / FILLER).unlink(missing_ok=True), member.name)


def fill(folder: Path) -> None:
    """Take all that is left."""
    for piece in (PIECE, PIECE[:4096]):
        try:
            with (folder / FILLER).open("ab", buffering=0) as filler:
                while filler.write(piece):
                    pass
        except OSError:
            continue

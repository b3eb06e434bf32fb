"""Small disks: tmpfs mounts of a few megabytes that a test can fill. They need root; in CI a missing mount is a
failure."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bounded_client import Publisher
from broker_process import BrokerProcess

MIB = 1024 * 1024


class SmallDisk:
    """A mounted folder, with a ballast file that can be thrown out to make room."""

    def __init__(self, path: Path, ballast_bytes: int) -> None:
        self.path = path
        self._ballast = path / "ballast"
        self._ballast.write_bytes(bytes(ballast_bytes))

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self) -> None:
        """Take all that is left."""
        try:
            with (self.path / "filler").open("ab", buffering=0) as filler:
                while True:
                    filler.write(bytes(4096))
        except OSError:
            assert self.free_bytes < 4096

    def leave(self, size_mib: int) -> None:
        """Take all but so much: less than the ballast."""
        self.fill()
        os.truncate(self._ballast, self._ballast.stat().st_size - size_mib * MIB)

    def make_room(self, size_mib: int | None = None) -> None:
        """Throw the ballast out, and make the disk larger where it is said how large."""
        if size_mib:
            subprocess.run(["mount", "-o", f"remount,size={size_mib}m", str(self.path)], check=True)
        self._ballast.unlink()
        (self.path / "filler").unlink(missing_ok=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int, int], SmallDisk]]:
    """Mounts disks: `small_disk(size_mib, ballast_mib)`. Ask for it before the broker that uses them."""
    mounted: list[Path] = []

    def mount(size_mib: int, ballast_mib: int) -> SmallDisk:
        path = tmp_path / f"disk-{len(mounted)}"
        path.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(path)], capture_output=True, text=True
        )
        if done.returncode:
            refuse = pytest.fail if os.environ.get("CI") else pytest.skip
            refuse(f"a small disk cannot be mounted here: {done.stderr.strip()}")
        mounted.append(path)
        return SmallDisk(path, ballast_mib * MIB)

    yield mount
    for path in mounted:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture
def broker_on(
    small_disk: Callable[[int, int], SmallDisk], broker_process: Callable[..., BrokerProcess], tmp_path: Path
) -> Callable[..., BrokerProcess]:
    """Starts a broker on a data folder; its log is elsewhere, since it must not need the disk."""

    def start(data_dir: Path, *arguments: str) -> BrokerProcess:
        broker = broker_process(*arguments, data_dir=data_dir, start=False)
        broker.log_file = tmp_path / "broker.log"
        broker.start()
        return broker

    return start


@pytest.fixture
def publisher_to() -> Iterator[Callable[..., Publisher]]:
    """Makes publishers to a broker's topic: `publisher_to(broker, size=50_000)`."""
    made: list[Publisher] = []

    def make(broker: BrokerProcess, size: int = 50_000) -> Publisher:
        made.append(Publisher(broker.url, "events", size))
        return made[-1]

    yield make
    for publisher in made:
        publisher.http.close()

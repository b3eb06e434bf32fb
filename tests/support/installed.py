"""Environments of their own, with the project's wheel and what it asks for, and nothing of the checkout. What a wheel
asks for is copied from the environment that runs the tests, so that none of this needs a network."""

import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(sysconfig.get_path("purelib"))


@dataclass(frozen=True)
class Installed:
    """An environment."""

    folder: Path

    @property
    def packages(self) -> Path:
        """Where its packages are."""
        return self.folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"

    @property
    def bytes(self) -> int:
        """The size of its packages."""
        return sum(path.stat().st_size for path in self.packages.rglob("*") if path.is_file())

    def environment(self, url: str = "") -> dict[str, str]:
        """The variables of a process in it: none of this process's."""
        return {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "HOME": str(self.folder), "SEAWEEDQ_URL": url}

    def run(self, *command: str, url: str = "", stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a program of it, in its folder."""
        given = [str(self.folder / "bin" / command[0]), *command[1:]]
        environment = self.environment(url)
        return subprocess.run(
            given, cwd=self.folder, env=environment, input=stdin, capture_output=True, text=True, timeout=120
        )


def with_base(wheel: Path, folder: Path) -> Installed:
    """An environment with what `pip install` of a wheel brings, without extras."""
    made = _made(wheel, folder)
    [found] = metadata.distributions(name="seaweedq", path=[str(made.packages)])
    for name in sorted(_closure(found.requires or [])):
        for file in metadata.files(name) or []:
            source = Path(str(file.locate()))
            if source.is_file() and source.resolve().is_relative_to(HERE.resolve()):
                target = made.packages / source.resolve().relative_to(HERE.resolve())
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
    return made


def with_everything(wheel: Path, folder: Path) -> Installed:
    """An environment with a wheel, and all packages that the tests have; an editable install is none of them."""
    made = _made(wheel, folder)
    (made.packages / "everything.pth").write_text(f"{HERE}\n")
    return made


def _made(wheel: Path, folder: Path) -> Installed:
    venv.create(folder, with_pip=False, symlinks=True)
    python = str(folder / "bin" / "python")
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps", wheel]
    subprocess.run(command, check=True, capture_output=True)
    return Installed(folder)


def _closure(requirements: list[str]) -> set[str]:
    """The names of all packages that these need."""
    found: set[str] = set()
    todo = [(line, "") for line in requirements]
    while todo:
        line, extra = todo.pop()
        one = Requirement(line)
        name = canonicalize_name(one.name)
        if one.marker and not one.marker.evaluate({"extra": extra}):
            continue
        if name not in found or one.extras:
            found.add(name)
            todo += [(needed, extra) for extra in ("", *one.extras) for needed in _needed(name)]
    return found


def _needed(name: str) -> Iterator[str]:
    yield from metadata.requires(name) or []

"""Environments of their own, with the project's wheel and what it asks for, and nothing of the checkout. What a wheel
asks for comes from the environment that runs the tests, so that none of this needs a network: its files are linked."""

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
MB = 1_000_000
PIP = """#!{python}
from pip._internal.cli.main import main

raise SystemExit(main())
"""


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
    _link(_closure(found.requires or []), made.packages)
    return made


def for_pip(extras: str, folder: Path) -> tuple[Installed, dict[str, str]]:
    """An environment in which `pip install .[extras]` finds all that it needs installed, and the variables with which
    pip asks no index for it: of what builds the wheel only pip knows."""
    venv.create(folder, with_pip=False, symlinks=True)
    made, builds = Installed(folder), folder / "builds"
    _link(_closure(["pip", f"seaweedq[{extras}]"]) - {"seaweedq"}, made.packages)
    _link(_closure(["hatchling"]), builds)
    pip = folder / "bin" / "pip"
    pip.write_text(PIP.format(python=folder / "bin" / "python"))
    pip.chmod(0o755)
    # pip reads this 0 as `--no-build-isolation`.
    return made, {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PYTHONPATH": str(builds)}


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


def _link(names: set[str], packages: Path) -> None:
    """Links the files of packages that the tests have, but for their programs."""
    for file in [file for name in names for file in metadata.files(name) or [] if ".." not in file.parts]:
        target = packages / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(HERE / file)


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

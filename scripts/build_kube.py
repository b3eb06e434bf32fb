"""Build what tests of the deployment use into .venv/bin: Kubernetes' API server, controllers, scheduler; compose-load.

Each module is built in a scratch module that requires it at one version. k8s.io/kubernetes replaces its staging modules
(k8s.io/api and others) by folders that its own module does not hold, so the scratch module replaces them by their
releases, v0.N.P for v1.N.P. A file beside the programs holds the version that they were built from: what is there at
that version is not built again. It takes Go 1.25 or newer, ten minutes of CPU, 270 MB for the programs and 3 GB for
Go's caches, which `go clean -cache -modcache` empties. `--look` builds nothing and says what there is.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
KUBERNETES = "v1.35.4"
COMPOSE = "v2.16.2"
COMPOSE_LOAD = Path(__file__).with_name("compose_load.go")
VERSION_SYMBOL = "k8s.io/component-base/version.git"


@dataclass(frozen=True)
class Build:
    """One module at one version, and the programs from it: their names in .venv/bin, and their packages."""

    module: str
    version: str
    programs: dict[str, str]
    main: Path | None = None  # a program of this project that uses the module: the package `.`
    link: tuple[str, ...] = ()

    @property
    def stamp(self) -> Path:
        """The file that holds the version that the programs were built from."""
        return BIN / f".{next(iter(self.programs))}.version"

    @property
    def built(self) -> bool:
        """Whether the programs are there at this version."""
        there = all((BIN / name).exists() for name in self.programs)
        return there and self.stamp.exists() and self.stamp.read_text() == self.version


def builds() -> tuple[Build, ...]:
    """All there is to build, what is quick first. The API server tells the version that it was linked with."""
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    told = {"Version": KUBERNETES, "Major": major, "Minor": minor, "TreeState": "clean"}
    link = tuple(f"-X={VERSION_SYMBOL}{name}={value}" for name, value in told.items())
    names = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
    return (
        Build("github.com/compose-spec/compose-go/v2", COMPOSE, {"compose-load": "."}, main=COMPOSE_LOAD),
        Build("k8s.io/kubernetes", KUBERNETES, {name: f"k8s.io/kubernetes/cmd/{name}" for name in names}, link=link),
    )


def go(*arguments: str, at: Path, flags: str = "-mod=mod") -> str:
    """Run Go in a scratch module and return what it printed. Raises CalledProcessError."""
    environment = {**os.environ, "GOFLAGS": flags, "GOWORK": "off", "CGO_ENABLED": "0"}
    done = subprocess.run(["go", *arguments], cwd=at, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def scratch_module(build: Build, at: Path) -> None:
    """Write a module that requires another one, at its version of Go, with releases for what it replaces by folders."""
    at.joinpath("go.mod").write_text("module scratch\n")
    found = json.loads(go("mod", "download", "-json", f"{build.module}@{build.version}", at=at, flags=""))
    theirs: dict[str, Any] = json.loads(go("mod", "edit", "-json", found["GoMod"], at=at, flags=""))
    folders = [one["Old"]["Path"] for one in theirs.get("Replace") or [] if one["New"]["Path"].startswith("./")]
    released = "v0." + build.version.split(".", 1)[1]
    replaced = [f"-replace={path}={path}@{released}" for path in folders]
    required = f"-require={build.module}@{build.version}"
    go("mod", "edit", f"-go={theirs['Go']}", required, *replaced, at=at, flags="")
    shutil.copy(Path(found["Dir"], "go.sum"), at / "go.sum")
    if build.main is not None:
        shutil.copy(build.main, at / "main.go")


def make(build: Build) -> None:
    """Build the programs of one module, put each into its place whole, and write down their version last."""
    with tempfile.TemporaryDirectory(dir=BIN) as folder:
        at = Path(folder)
        scratch_module(build, at)
        build.stamp.unlink(missing_ok=True)
        for name, package in build.programs.items():
            print(f"building {name} from {build.module} {build.version}", flush=True)
            link = " ".join(("-s", "-w", *build.link))
            go("build", "-trimpath", f"-ldflags={link}", "-o", name, package, at=at)
            at.joinpath(name).replace(BIN / name)
        build.stamp.write_text(build.version)


def main() -> int:
    """Build what is missing, or say what there is."""
    if "--look" in sys.argv:
        for build in builds():
            how = "built" if build.built else "not built here, its tests are skipped; make kube"
            print(f"{', '.join(build.programs)} {build.version}: {how}")
        return 0
    if shutil.which("go") is None:
        print("there is no Go to build with", file=sys.stderr)
        return 1
    for build in builds():
        if not build.built:
            make(build)
    return 0


if __name__ == "__main__":
    sys.exit(main())

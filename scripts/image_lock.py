"""Write what the image is made of: deploy/requirements.lock and deploy/build.lock, and the digests of its base and of
the images that run beside it.

    python scripts/image_lock.py            # both locks, by uv from pyproject.toml; versions that fit are kept
    python scripts/image_lock.py --upgrade  # the newest versions that fit
    python scripts/image_lock.py --digests  # of the Dockerfile's base and of compose's images, by skopeo or docker
    python scripts/image_lock.py --check    # compares, and needs no network

requirements.lock has every package of the extras `cluster` and `otel`, thus of the image, but seaweedq itself;
build.lock has the tools that make wheels of sources. Each has the hashes of all files of its version, for every
platform.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
IMAGES = (ROOT / "Dockerfile", ROOT / "docker-compose.yml")
DEPLOY = ROOT / "deploy"
EXTRAS = ("cluster", "otel")
TOOLS = ("hatchling", "setuptools", "wheel")
TARGET = ("--python-version", "3.11", "--python-platform", "linux")
PINNED = re.compile(r"^([a-z0-9][a-z0-9._-]*)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)
# Images of registries, with their tags; the project's own is built, and named without a registry.
IMAGE = re.compile(r"^(ARG BASE=| +image: )([a-z0-9.-]+\.[a-z]+/[^@\s]+:[^@\s]+)(@sha256:[0-9a-f]{64})?$", re.MULTILINE)


def pinned(lock: Path) -> dict[str, str]:
    """Returns the version of each package of a lock, all of which have hashes."""
    text = lock.read_text()
    rest = PINNED.sub("", text).strip()
    if rest:
        raise ValueError(f"{lock.name} has a line without a version or a hash: {rest.splitlines()[0]}")
    return {canonicalize_name(name): version for name, version, _ in PINNED.findall(text)}


def wanted() -> dict[str, list[Requirement]]:
    """Returns what each lock must satisfy at the least."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    runtime = [Requirement(line) for line in project["project"]["dependencies"]]
    tools = [*project["build-system"]["requires"], *TOOLS]
    return {
        "requirements.lock": runtime + [one for extra in EXTRAS for one in of_extra(extra, project["project"])],
        "build.lock": [Requirement(line) for line in tools],
    }


def of_extra(extra: str, project: dict[str, Any]) -> list[Requirement]:
    """Returns the packages of an extra, and of those that it includes."""
    found: dict[str, Requirement] = {}
    for line in project["optional-dependencies"][extra]:
        one = Requirement(line)
        of_line = [one]
        if canonicalize_name(one.name) == project["name"]:
            of_line = [each for name in sorted(one.extras) for each in of_extra(name, project)]
        found |= {str(each): each for each in of_line}
    return list(found.values())


def complaints() -> Iterator[str]:
    """Yields every requirement of the project that a lock does not satisfy."""
    for name, requirements in wanted().items():
        versions = pinned(DEPLOY / name)
        for requirement in requirements:
            version = versions.get(canonicalize_name(requirement.name))
            if version is None or not requirement.specifier.contains(version):
                yield f"{name}: {requirement} is wanted, {version} is locked: run python scripts/image_lock.py"


def write_locks(upgrade: bool) -> None:
    """Writes both locks. Raises CalledProcessError; OSError if uv is missing."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        raise OSError("uv is missing: pip install uv")
    DEPLOY.mkdir(exist_ok=True)
    options = ["--generate-hashes", "--no-header", "--no-annotate", "--quiet", *TARGET]
    for name, requirements in wanted().items():
        command = [uv, "pip", "compile", *options, *(["--upgrade"] if upgrade else []), "-o", str(DEPLOY / name), "-"]
        given = "\n".join(map(str, requirements))
        subprocess.run(command, input=given, text=True, check=True, stdout=subprocess.DEVNULL)


def write_digests() -> list[str]:
    """Writes behind each image's tag the digest that it has in its registry, over all platforms. Returns the images.
    Writes nothing if one is missing. Raises CalledProcessError if a registry cannot be reached; OSError if
    there is no tool, or a file names no image."""
    texts = {file: file.read_text() for file in IMAGES}
    if missing := next((file for file, text in texts.items() if not IMAGE.search(text)), None):
        raise OSError(f"{missing.name} names no image of a registry")
    tags = {found[2] for text in texts.values() for found in IMAGE.finditer(text)}
    digests = {tag: _digest(tag) for tag in sorted(tags)}
    for file, text in texts.items():
        file.write_text(IMAGE.sub(lambda found: f"{found[1]}{found[2]}@{digests[found[2]]}", text))
    return [f"{tag}@{found}" for tag, found in digests.items()]


def _digest(image: str) -> str:
    for tool, command in (
        ("skopeo", ["skopeo", "inspect", "--format", "{{.Digest}}", f"docker://{image}"]),
        ("docker", ["docker", "buildx", "imagetools", "inspect", "--format", "{{json .Manifest}}", image]),
    ):
        if shutil.which(tool):
            printed = subprocess.run(command, text=True, check=True, stdout=subprocess.PIPE).stdout.strip()
            digest = json.loads(printed)["digest"] if printed.startswith("{") else printed
            if not re.fullmatch("sha256:[0-9a-f]{64}", digest):
                raise OSError(f"{tool} gives no digest of {image}: {printed[:200]}")
            return str(digest)
    raise OSError("neither skopeo nor docker is there to ask the registry")


def main(arguments: list[str]) -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("--upgrade", "--digests", "--check"):
        parser.add_argument(option, action="store_true")
    given = parser.parse_args(arguments)
    try:
        if given.digests:
            print(*write_digests(), sep="\n")
        elif not given.check:
            write_locks(given.upgrade)
        found = list(complaints())
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        found = [str(error)]
    for line in found:
        print(line, file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

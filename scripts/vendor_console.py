"""Fetches the console's libraries from npm's registry and puts them below seaweedq/api/console/static/vendor.

`python scripts/vendor_console.py` needs npm. Each package has a version and the digest of its archive here; to upgrade
one, change both (`npm view NAME@VERSION dist.integrity`), run the script, and look at the console. The files stay as
they were published, but for two things: a module imports another one by its path, since a browser knows no names of
packages, and no file names a source map, which is not shipped.
"""

import base64
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

VENDOR = Path(__file__).parent.parent / "seaweedq/api/console/static/vendor"
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Package:
    """A package: the `files` to keep are paths in the archive, by their name here."""

    name: str
    version: str
    integrity: str
    license: str
    files: dict[str, str]


PACKAGES = (
    Package(
        "preact",
        "11.2.0",
        "sha512-/HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg==",
        "MIT",
        {"preact.js": "dist/preact.mjs", "hooks.js": "hooks/dist/hooks.mjs", "preact.LICENSE": "LICENSE"},
    ),
    Package(
        "htm",
        "3.1.1",
        "sha512-983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==",
        "Apache-2.0",
        {"htm.js": "dist/htm.module.js", "htm.LICENSE": "LICENSE"},
    ),
    Package(
        "@picocss/pico",
        "2.1.1",
        "sha512-kIDugA7Ps4U+2BHxiNHmvgPIQDWPDU4IeU6TNRdvXQM1uZX+FibqDQT2xUOnnO2yq/LUHcwnGlu1hvf4KfXnMg==",
        "MIT",
        {"pico.css": "css/pico.min.css", "pico.LICENSE": "LICENSE.md"},
    ),
    Package(
        "uplot",
        "1.6.32",
        "sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
        "MIT",
        {"uplot.js": "dist/uPlot.iife.min.js", "uplot.css": "dist/uPlot.min.css", "uplot.LICENSE": "LICENSE"},
    ),
)


def main() -> int:
    """Replaces all vendored files; returns 1 if an archive is not the one that is pinned."""
    found: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        for package in PACKAGES:
            archive = _fetch(package, Path(folder))
            if _integrity(archive) != package.integrity:
                print(f"{package.name} {package.version} has the digest {_integrity(archive)}", file=sys.stderr)
                return 1
            with tarfile.open(archive) as members:
                for name, path in package.files.items():
                    member = members.extractfile(f"package/{path}")
                    assert member is not None, path
                    found[name] = adapted(member.read())
    VENDOR.mkdir(parents=True, exist_ok=True)
    for old in VENDOR.iterdir():
        old.unlink()
    for name, content in found.items():
        (VENDOR / name).write_bytes(content)
    (VENDOR / MANIFEST).write_text(json.dumps(_manifest(found), indent=2) + "\n")
    return 0


def adapted(content: bytes) -> bytes:
    """Returns a file that a browser can load as it is."""
    content = re.sub(rb'from"preact"', b'from"./preact.js"', content)
    return re.sub(rb"\n?//# sourceMappingURL=\S+\n?", b"\n", content)


def _fetch(package: Package, folder: Path) -> Path:
    named = f"{package.name}@{package.version}"
    packed = subprocess.run(["npm", "pack", "--silent", named], cwd=folder, check=True, capture_output=True, text=True)
    return folder / packed.stdout.strip()


def _integrity(archive: Path) -> str:
    return "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()


def _manifest(found: dict[str, bytes]) -> list[dict[str, object]]:
    return [
        {
            "name": package.name,
            "version": package.version,
            "license": package.license,
            "files": {name: hashlib.sha256(found[name]).hexdigest() for name in package.files},
        }
        for package in PACKAGES
    ]


if __name__ == "__main__":
    sys.exit(main())

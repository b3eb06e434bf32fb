"""Write the bill of materials of the image, in CycloneDX 1.5: each package of deploy/requirements.lock with its hashes.

It reads the lock and nothing else, so it runs without a network, and says the same each time: the serial number is made
of the content.
"""

import hashlib
import json
import re
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any

from image_lock import PINNED

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "deploy" / "requirements.lock"


def document(lock: str, version: str) -> dict[str, Any]:
    """Returns the bill of materials of a lock's packages."""
    components = [_component(name, pinned, hashes) for name, pinned, hashes in PINNED.findall(lock)]
    of_image = f"pkg:pypi/seaweedq@{version}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.UUID(hashlib.sha256(lock.encode()).hexdigest()[:32], version=4)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": of_image,
                "name": "seaweedq",
                "version": version,
                "purl": of_image,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": components,
        "dependencies": [{"ref": of_image, "dependsOn": [one["bom-ref"] for one in components]}],
    }


def _component(name: str, version: str, hashes: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{version}"
    files = [{"type": "distribution", "url": f"https://pypi.org/project/{name}/{version}/", "hashes": _hashes(hashes)}]
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "externalReferences": files,
    }


def _hashes(text: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": found} for found in re.findall("sha256:([0-9a-f]{64})", text)]


def main() -> int:
    """Write the document to standard output."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    json.dump(document(LOCK.read_text(), version), sys.stdout, indent=1)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())

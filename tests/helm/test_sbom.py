"""The bill of materials of the image names what the image has."""

import json
from typing import Any

import pytest

from tests.support.paths import ROOT


@pytest.fixture
def sbom(monkeypatch: pytest.MonkeyPatch) -> Any:
    """scripts/sbom.py as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import sbom

    return sbom


def test_each_package_of_the_lock_is_there_with_its_hashes(sbom: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert sbom.main() == 0
    text = capsys.readouterr().out
    found = json.loads(text)
    lock = (ROOT / "deploy" / "requirements.lock").read_text()
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.5")
    pinned = {line.split(" ")[0] for line in lock.splitlines() if "==" in line}
    assert {f"{one['name']}=={one['version']}" for one in found["components"]} == pinned
    digests = [h["content"] for one in found["components"] for h in one["externalReferences"][0]["hashes"]]
    assert len(digests) == lock.count("--hash=sha256:")
    references = [one["bom-ref"] for one in found["components"]]
    assert found["dependencies"][0]["dependsOn"] == references
    assert len(set(references)) == len(references)
    assert sbom.main() == 0
    assert capsys.readouterr().out == text

"""scripts/build_kube.py knows what is built at the wanted version."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT


@pytest.fixture
def build_kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, whose programs go to an empty folder."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import build_kube

    monkeypatch.setattr(build_kube, "BIN", tmp_path)
    return build_kube


def test_programs_are_built_once_in_the_wanted_version(build_kube: Any, tmp_path: Path) -> None:
    build = build_kube.Build("example.org/m", "v1.2.3", {"one": ".", "other": "."})
    for name in ("one", ".one.version", "other"):
        assert not build.built
        (tmp_path / name).write_text("v1.2.3")
    assert build.built
    (tmp_path / ".one.version").write_text("v1.2.2")
    assert not build.built


def test_a_look_says_what_is_skipped_and_how_to_have_it(
    build_kube: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["build_kube.py", "--look"])
    assert build_kube.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0].strip(",") for line in lines] == ["compose-load", "kube-apiserver"]
    assert all(line.endswith("not built here, its tests are skipped; make kube") for line in lines)

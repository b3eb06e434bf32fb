"""The version stands in pyproject.toml, and wherever it cannot be read from there."""

import tomllib

import yaml

import seaweedq
from tests.support.paths import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_package_and_chart_have_the_version() -> None:
    chart = yaml.safe_load((ROOT / "helm/seaweedq/Chart.yaml").read_text())
    assert (seaweedq.__version__, chart["appVersion"]) == (VERSION, VERSION)


def test_the_release_takes_a_tag_of_the_version_alone_and_is_untried() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text()
    workflow = yaml.safe_load(text)
    assert text.startswith("# UNTRIED")
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # `on` is a truth value of YAML
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert any('tag != f"v{version}"' in step.get("run", "") for step in build["steps"])
    assert publish["needs"] == "build"
    assert publish["permissions"] == {"id-token": "write"}
    assert "password" not in text


def test_the_changelog_fits_on_a_page() -> None:
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= 40

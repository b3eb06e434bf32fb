"""values.yaml, its schema, the templates and the settings name the same things, and every value is explained."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from seaweedq.settings import Settings
from tests.support.paths import ROOT

# What the chart sets from values of its own, and what is for one machine alone.
CHART_SETS = {
    *("advertise_url", "cluster_secret", "coordination", "data_dir", "host", "journal", "name", "port", "zone"),
    *("etcd_ca_file", "etcd_cert_file", "etcd_key_file", "etcd_password", "etcd_prefix", "etcd_user"),
    *("s3_addressing", "s3_endpoints", "store"),
    *("allowed_hosts", "brokers", "member"),
}


@pytest.fixture
def values(chart: Path) -> dict[str, Any]:
    return yaml.safe_load((chart / "values.yaml").read_text())


@pytest.fixture
def schema(chart: Path) -> dict[str, Any]:
    return json.loads((chart / "values.schema.json").read_text())


def templates(chart: Path) -> str:
    return "\n".join(path.read_text() for path in sorted((chart / "templates").rglob("*")) if path.is_file())


def leaves(values: dict[str, Any], path: str = "") -> Iterator[str]:
    """Dotted paths of all values that are no mapping with something in it."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}"


def schema_leaves(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """The same of the schema, where an object without properties is a leaf."""
    for key, value in schema["properties"].items():
        if "properties" in value:
            yield from schema_leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}"


def below(path: str, other: str) -> bool:
    return path == other or path.startswith(f"{other}.")


def test_every_value_is_used_and_every_used_value_is_there(chart: Path, values: dict[str, Any]) -> None:
    used, there = set(re.findall(r"\.Values\.([A-Za-z0-9.]+)", templates(chart))), set(leaves(values))
    assert {leaf for leaf in there if not any(below(leaf, path) for path in used)} == set()
    assert {path for path in used if not any(below(leaf, path) for leaf in there)} == set()


def test_the_schema_knows_exactly_the_values(values: dict[str, Any], schema: dict[str, Any]) -> None:
    in_schema = set(schema_leaves(schema)) - {"global"}
    assert {leaf for leaf in leaves(values) if not any(below(leaf, known) for known in in_schema)} == set()
    assert {known for known in in_schema if not any(below(leaf, known) for leaf in leaves(values))} == set()


def test_every_value_is_explained(chart: Path) -> None:
    lines = (chart / "values.yaml").read_text().splitlines()
    given = [number for number, line in enumerate(lines) if re.match(r" *[A-Za-z]\w*: ", line)]
    assert len(given) > 40
    assert [lines[number] for number in given if not lines[number - 1].strip().startswith("# ")] == []


def test_config_takes_every_setting_that_the_chart_does_not_set_itself(schema: dict[str, Any]) -> None:
    names = schema["properties"]["config"]["propertyNames"]["enum"]
    assert set(names) == Settings.model_fields.keys() - CHART_SETS
    assert len(names) == len(set(names))


def test_the_templates_name_settings_alone(chart: Path) -> None:
    named = {name.lower() for name in re.findall(r"SEAWEEDQ_([A-Z0-9_]+)\b(?!=)", templates(chart))}
    assert named - {"url"} == CHART_SETS - {"brokers", "member"}


def test_the_chart_is_of_this_version(chart: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    described = yaml.safe_load((chart / "Chart.yaml").read_text())
    assert (described["appVersion"], described["version"]) == (project["version"],) * 2

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
    """The same of the schema, where an object without properties is a leaf, and so is `config`: it has no defaults."""
    for key, value in schema["properties"].items():
        if "properties" in value and key != "config":
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


def test_config_takes_every_setting_that_the_chart_does_not_set_itself(
    schema: dict[str, Any], chart_schema: Any
) -> None:
    config = schema["properties"]["config"]
    assert config["properties"].keys() == Settings.model_fields.keys() - chart_schema.CHART_SETS
    assert config["additionalProperties"] is False


def test_config_has_the_types_and_bounds_of_the_settings(chart_schema: Any, chart: Path) -> None:
    assert chart_schema.text() == (chart / "values.schema.json").read_text()
    config = chart_schema.config()["properties"]
    assert config["lease_s"] == {"type": "number", "minimum": 1, "maximum": 60}
    assert config["request_timeout_s"] == {"type": "number", "exclusiveMinimum": 0, "maximum": 3600}
    assert config["journal_window"] == {"type": "integer", "minimum": 1, "maximum": 64}
    assert config["auto_create_topics"] == {"type": "boolean"}


def test_the_templates_name_settings_alone(chart: Path, chart_schema: Any) -> None:
    named = {name.lower() for name in re.findall(r"SEAWEEDQ_([A-Z0-9_]+)\b(?!=)", templates(chart))}
    assert named - {"url"} == chart_schema.CHART_SETS - {"brokers", "member"}


def test_the_chart_is_of_this_version(chart: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    described = yaml.safe_load((chart / "Chart.yaml").read_text())
    assert (described["appVersion"], described["version"]) == (project["version"],) * 2

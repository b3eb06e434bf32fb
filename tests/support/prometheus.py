"""Prometheus and promtool, where there are any, and the queries of the rules and the dashboard that are deployed."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.support.paths import ROOT

RULES = ROOT / "deploy" / "prometheus"
DASHBOARD = ROOT / "deploy" / "grafana" / "seaweedq.json"
VARIABLES = {"$__rate_interval": "10s", "$instance": ".*", "$job": "seaweedq"}
_SELECTOR = re.compile(r"\b((?:seaweedq|process)_\w+|up)\b(\{[^}]*\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')


def program(name: str) -> str:
    """The program of that name; a skip where there is none, a failure in CI."""
    beside = ROOT / ".venv" / "bin" / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        refuse = pytest.fail if os.environ.get("CI") else pytest.skip
        refuse(f"there is no {name} binary: `make prometheus` gets it")
    return found


@dataclass(frozen=True)
class Query:
    """An expression, and where it stands."""

    place: str
    text: str

    def selectors(self) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
        """Each name in it, with its matchers: label, operator, value."""
        for name, matchers in _SELECTOR.findall(self.text):
            yield name, _MATCHER.findall(matchers)


def alerts() -> list[Query]:
    """The expressions of all rules."""
    groups = yaml.safe_load((RULES / "rules.yml").read_text())["groups"]
    return [Query(rule["alert"], rule["expr"]) for group in groups for rule in group["rules"]]


def panels() -> list[Query]:
    """The expressions of the dashboard, with values for its variables."""
    found = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"]
            for variable, value in VARIABLES.items():
                text = text.replace(variable, value)
            found.append(Query(panel["title"], text))
    return found


def matches(labels: dict[str, str], matchers: list[tuple[str, str, str]]) -> bool:
    """Whether a series has what a selector asks for."""
    for name, operator, value in matchers:
        is_there = (
            labels.get(name, "") == value if "~" not in operator else bool(re.fullmatch(value, labels.get(name, "")))
        )
        if is_there == operator.startswith("!"):
            return False
    return True


def config(folder: Path, target: str) -> Path:
    """A configuration that scrapes a broker each second, with the rules that are deployed."""
    text = (RULES / "prometheus.yml").read_text()
    told = yaml.safe_load(text)
    told["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    told["rule_files"] = [str(RULES / "rules.yml")]
    told["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(told))
    return file

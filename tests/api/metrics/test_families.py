"""Families write what Prometheus' own parser reads, whatever is in a label, and name and explain themselves as it
asks."""

import re

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from seaweedq.api.metrics.catalogue import GROUPS
from seaweedq.api.metrics.families import Family, counter, gauge, histogram, render
from seaweedq.clock import BOUNDS_S, Durations, by_outcome

FAMILIES = [family for group in GROUPS.values() for family in group]


def parsed(family: Metric) -> dict[tuple[str, tuple[str, ...]], float]:
    families = text_string_to_metric_families(render([family]).decode())
    samples = [sample for family in families for sample in family.samples]
    return {(sample.name, tuple(sample.labels.values())): sample.value for sample in samples}


def test_values_are_read_back() -> None:
    assert parsed(gauge("a", "help").of(True)) == {("a", ()): 1}
    assert parsed(counter("a_total", "help", "x").by({"one": 1, "two": 1e300})) == {
        ("a_total", ("one",)): 1,
        ("a_total", ("two",)): 1e300,
    }
    assert parsed(gauge("a", "help", "x", "y").each([(("1", "2"), 0.1)])) == {("a", ("1", "2")): 0.1}
    assert parsed(counter("a_total", "help", "x").by({})) == {}


@pytest.mark.parametrize("value", ['"', "\\", "\n", '\\n"}', "é☃", "{}", ""])
def test_no_label_breaks_out_of_its_quotes(value: str) -> None:
    assert parsed(gauge("a", "help", "x").by({value: 3})) == {("a", (value,)): 3}


def test_a_histogram_adds_up() -> None:
    one = Durations((0.1, 2.0))
    for duration_s in (0.05, 0.1, 0.5, 7.0):
        one.add(duration_s)
    found = parsed(histogram("a_seconds", "help", "x").durations([(("ok",), one), (("no",), Durations())]))
    assert [found["a_seconds_bucket", (bound, "ok")] for bound in ("0.1", "2.0", "+Inf")] == [2, 3, 4]
    assert found["a_seconds_count", ("ok",)] == 4
    assert found["a_seconds_sum", ("ok",)] == pytest.approx(7.65)
    assert sum(name == "a_seconds_bucket" for name, _ in found) == 3 + len(BOUNDS_S) + 1
    assert found["a_seconds_sum", ("no",)] == 0


def test_durations_are_separate_by_outcome() -> None:
    found = by_outcome("ok", "failed")
    found["ok"].add(0.001)
    assert (sum(found["ok"].counts), sum(found["failed"].counts)) == (1, 0)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_each_is_named_and_explained_as_prometheus_asks(family: Family) -> None:
    assert re.fullmatch(r"(seaweedq|process)_[a-z_]+", family.name)
    assert family.name.endswith("_total") == (family.kind == "counter")
    assert family.kind != "histogram" or family.name.endswith("_seconds")
    assert family.help[0].isupper() or family.help[0].isdigit()
    assert "\n" not in family.help
    assert "`" not in family.help
    assert "](" not in family.help


def test_each_stands_in_the_catalogue_once() -> None:
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)

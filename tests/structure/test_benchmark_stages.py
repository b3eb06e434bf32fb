"""The benchmark of stages names functions of the package by text, so that it can measure older trees as well."""

from pathlib import Path

import pytest

from benchmarks import stage_times


def test_each_stage_of_this_tree_is_found_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_times, "LEAST_S", 0.0)
    found = stage_times.Stages(10, tmp_path).times()
    stages = ("receive", "decode", "hash", "take", "serialize", "CRC", "write", "encode")
    assert list(found) == [f"{stage} of 10" for stage in stages]

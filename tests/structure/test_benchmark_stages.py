"""Benchmarks lose no result; that of stages names functions of the package by text, so that it can measure older trees
as well."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import stage_times
from benchmarks.__main__ import main
from benchmarks.result import Result


def test_each_stage_of_this_tree_is_found_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_times, "LEAST_S", 0.0)
    found = stage_times.Stages(10, tmp_path).times()
    stages = ("receive", "decode", "hash", "take", "serialize", "CRC", "write", "encode", "write_table")
    assert list(found) == [f"{stage} of 10" for stage in stages]


def test_what_was_measured_before_a_failure_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(folder: Path) -> Iterator[Result]:
        yield Result(name="the first", figure=7, unit="s")
        raise OSError("a server is gone")

    monkeypatch.setitem(sys.modules, "benchmarks.topics", SimpleNamespace(measure=measure))
    monkeypatch.setattr(sys, "argv", ["benchmarks", "topics", "--folder", str(tmp_path)])
    monkeypatch.setattr(signal, "signal", lambda *given: None)
    with pytest.raises(OSError, match="a server is gone"):
        main()
    assert capsys.readouterr().out.splitlines()[1].split() == ["the", "first", "7", "s"]

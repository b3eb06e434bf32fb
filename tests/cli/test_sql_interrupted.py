"""Ctrl-C while DuckDB runs a statement."""

import os
import signal
import threading
from pathlib import Path

import pytest

from seaweedq.cli.sql import interruptible, write

duckdb = pytest.importorskip("duckdb")

ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE hash(a.range, b.range) % 7 = 3"


def test_a_long_statement_is_ended_and_leaves_no_file(tmp_path: Path) -> None:
    connection = duckdb.connect()
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        interruptible(connection, lambda: write(connection, ENDLESS, "csv", tmp_path / "out.csv"))
    assert not [*tmp_path.iterdir()]

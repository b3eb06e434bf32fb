"""What commands import: time is won by what is not imported, and a test of that does not depend on the machine."""

import json
import subprocess
import sys

import pytest

from seaweedq import Client
from tests.support.processes.broker_process import BrokerProcess

pytestmark = pytest.mark.process

PROGRAM = """
import contextlib, io, json, sys
sys.argv = ["seaweedq", *{arguments!r}]
from seaweedq.__main__ import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    try:
        main()
    except SystemExit:
        pass
print(json.dumps(sorted(name for name in sys.modules if sys.modules[name])))
"""
CLIENT = {"httpx", "msgspec"}
HEAVY = {
    "pyarrow",
    "numpy",
    "pandas",
    "duckdb",
    "fastapi",
    "uvicorn",
    "seaweedq.broker",
    "seaweedq.api",
}


def imported(*arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(arguments=list(arguments))], check=True, capture_output=True, text=True
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("arguments", "left_out"),
    [
        (["--help"], HEAVY | CLIENT | {"asyncio", "seaweedq.cli.topic", "seaweedq.cli.server"}),
        (["serve", "--help"], HEAVY | CLIENT),
        (
            ["topic", "list", "--url", "http://127.0.0.1:9"],
            HEAVY | {"seaweedq.client.aio", "httpx._main", "rich.markdown"},
        ),
        (["doctor", "--url", "http://127.0.0.1:9"], HEAVY | {"seaweedq.storage", "seaweedq.coordination"}),
        (["doctor", "--data-dir", ".", "--url", "http://127.0.0.1:9"], HEAVY - {"numpy"}),
        (["topic", "tail", "--help"], HEAVY | CLIENT | {"asyncio"}),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_commands_import_nothing_that_they_do_not_need(arguments: list[str], left_out: set[str]) -> None:
    assert not left_out & imported(*arguments)


def test_sql_imports_neither_numpy_nor_pandas(real_broker: BrokerProcess) -> None:
    with Client(real_broker.url) as client:
        client.create_topic("sql-imports")
        client.publish("sql-imports", {"value": 1})
    found = imported("sql", 'SELECT * FROM "sql-imports"', "--url", real_broker.url)
    assert {"pyarrow", "duckdb"} <= found
    assert found & {"numpy", "pandas", "pyarrow.compute", "fastapi", "seaweedq.broker"} == set()

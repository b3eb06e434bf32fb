"""Streams that a shell has closed, and an output that is not UTF-8."""

import os
import subprocess
import sys

import pytest

from tests.support.processes.broker_process import BrokerProcess

pytestmark = pytest.mark.process

SHELL = 'exec "$0" -m seaweedq "$@" '


def run(arguments: list[str], redirected: str, **variables: str) -> tuple[int, str, str]:
    """The exit code, and what stdout and stderr have."""
    ended = subprocess.run(
        ["sh", "-c", SHELL + redirected, sys.executable, *arguments],
        capture_output=True,
        env=os.environ | variables,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("arguments", "redirected", "expected"),
    [
        (["sql", "-"], "<&-", (1, "", "seaweedq: the SQL text has 0 statements; give exactly one statement\n")),
        (["--version"], ">&-", (0, "", "")),
        (["topic", "list", "--url", "http://127.0.0.1:9"], "2>&-", (1, "", "")),
    ],
    ids=["stdin", "stdout", "stderr"],
)
def test_a_closed_stream_is_an_empty_one(arguments: list[str], redirected: str, expected: tuple[int, str, str]) -> None:
    assert run(arguments, redirected) == expected


def test_characters_that_the_output_lacks_are_escapes(real_broker: BrokerProcess) -> None:
    assert run(["topic", "create", "streams", "--url", real_broker.url], "")[0] == 0
    watched = ["topic", "watch", "streams", "--once", "--url", real_broker.url]
    code, shown, complaint = run(watched, "", PYTHONIOENCODING="ascii")
    assert (code, complaint) == (0, "")
    assert "\\u" in shown or "\\x" in shown


def test_a_bench_of_no_url_is_a_usage_error() -> None:
    code, _, complaint = run(["bench", "--url", "ftp://there"], "")
    assert (code, "--url" in complaint, "Traceback" in complaint) == (2, True, False)

"""The examples in the help of commands, which docs/reference/cli.md shows, run as they are written against a real
broker."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.cli_doc import commands_in
from seaweedq.cli import main
from tests.support.docs.page import SERVE, Block, Page
from tests.support.processes.broker_process import BrokerProcess

BEFORE = Path(__file__).with_name("before_command_examples.sh")  # makes what the examples speak of
ENDS = ("seaweedq subscription delete", "seaweedq principal remove", "seaweedq topic delete")  # run last, in this order
ELSEWHERE = {
    "seaweedq serve": "tests/cli/server",
    "seaweedq demo": "tests/cli/test_demo_run.py",
    "seaweedq bench": "tests/cli/test_cli_real_broker.py",
    "seaweedq context": "tests/cli/test_context.py",
    "seaweedq spark": "tests/spark/jobs",
    "seaweedq cluster rebuild": "tests/docs/test_drill.py",
    "seaweedq journal": "tests/journal/test_mirrored_processes.py",
}
LEFT_OUT = {
    "SEAWEEDQ_FLUSH_MAX_AGE_S=10s seaweedq serve": "as serve",
    "EDITOR='code --wait' seaweedq topic edit flights": "needs an editor",
    "seaweedq cluster level 2": "there is no such level yet",
    "seaweedq doctor --url http://broker-1:8080,http://broker-2:8080": "needs these brokers",
    "seaweedq verify flights --store file:///mnt/store --url http://b:8080": "needs this broker",
    "seaweedq import flights --upload 20260131-0-9f86d081884c7d659a2feaa0c55ad015 --format parquet": "needs it",
    "seaweedq token revoke 5f2b8a6c90d1e2f3": "needs this token",
    "seaweedq denial remove sub-0f3e8a12c4b5d6e7f8091a2b3c4d5e6f": "needs this denial",
    "SEAWEEDQ_TOKEN_FILE=seaweedq-data/admin-token seaweedq whoami": "needs a broker with tokens",
    "seaweedq topic watch flights": "does not end",
    "seaweedq topic tail flights -n 0 --follow": "does not end",
    "seaweedq top": "does not end",
    "seaweedq top --every-s 10 | tee busy.txt": "does not end",
    "seaweedq subscription watch flights billing --every-s 5": "does not end",
    "seaweedq pull events -s tail --follow | jq .value": "does not end",
    "seaweedq pull events -s workers --mode shared --follow": "does not end",
    "seaweedq sql \"SELECT value->>'carrier' AS carrier, count(*) FROM flights GROUP BY 1 ORDER BY 2 DESC\" --watch": (
        "does not end"
    ),
}


def examples(command: Any) -> Iterator[str]:
    """All examples of a command and its subcommands."""
    yield from commands_in(command.epilog)
    for inner in getattr(command, "commands", {}).values():
        yield from examples(inner)


def all_examples() -> list[str]:
    """Those of all commands, in the order of the page."""
    return [example for name in main.LISTED for example in examples(main.load_command(name))]


def in_order() -> list[str]:
    """Those that are run: what deletes comes last."""
    todo = [one for one in all_examples() if one not in LEFT_OUT and not one.startswith((*ELSEWHERE,))]
    return sorted(todo, key=lambda one: next((n for n, end in enumerate(ENDS, 1) if one.startswith(end)), 0))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, broker_processes: Callable[..., BrokerProcess]) -> Page:
    """A folder and a broker for all examples, with what they speak of."""
    folder = tmp_path_factory.mktemp("examples")
    page = Page(folder, broker_processes(data_dir=folder / "seaweedq-data", start=False))
    page.process["EDITOR"] = "true"
    page.serve(SERVE)
    page.run(Block("sh", BEFORE.read_text(), ""))
    return page


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("example", in_order())
def test_every_example_runs_as_written(page: Page, example: str) -> None:
    if "jq" in example and not shutil.which("jq"):
        pytest.skip("jq is not installed")
    page.run(Block("sh", example, ""))


def test_what_is_left_out_is_there() -> None:
    there = all_examples()
    assert LEFT_OUT.keys() <= {*there}
    assert all(any(one.startswith(start) for one in there) for start in ELSEWHERE)

"""What the shell completes: commands, options of commands that are not loaded yet, and the names of topics."""

import pytest
from typer.testing import CliRunner

from seaweedq import Client
from seaweedq.cli.main import app
from tests.support.processes.broker_process import BrokerProcess


def completed(words: str, url: str = "http://127.0.0.1:9") -> list[str]:
    """What bash would offer for the last word."""
    given = words.split(" ")
    env = {
        "_SEAWEEDQ_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(given) - 1),
        "SEAWEEDQ_URL": url,
    }
    return CliRunner().invoke(app, [], prog_name="seaweedq", env=env).stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("seaweedq pu", ["publish", "pull"]),
        ("seaweedq topic ta", ["tail"]),
        ("seaweedq serve --s3-e", ["--s3-endpoints"]),
        ("seaweedq topic show ", []),  # no broker answers
    ],
)
def test_commands_and_options(words: str, offered: list[str]) -> None:
    assert completed(words) == offered


@pytest.mark.process
def test_names_of_topics(real_broker: BrokerProcess, real_client: Client) -> None:
    for name in ("completed_one", "completed_two"):
        real_client.create_topic(name)
    assert completed("seaweedq topic show completed_", real_broker.url) == ["completed_one", "completed_two"]
    assert completed("seaweedq publish completed_t", real_broker.url) == ["completed_two"]
    for name in ("completed_one", "completed_two"):
        real_client.delete_topic(name)

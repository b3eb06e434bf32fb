"""A broker for all tests of a module, and the command over the files of a test's `topic`."""

from collections.abc import Callable
from typing import Any

import pytest

from seaweedq.cli.main import main
from tests.support.fixtures.module_broker import broker, http, topic  # noqa: F401


@pytest.fixture
def verify(topic: Any, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:  # noqa: F811
    """Runs the command, and returns its exit code and all that it prints."""

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["verify", "flights", "--store", f"file://{topic.root}", *arguments])
        printed = capsys.readouterr()
        return ended.value.code, printed.out + printed.err

    return run

"""Jobs in the tests' session."""

from collections.abc import Callable
from typing import Any

import pytest

from seaweedq.cli.main import main

Printed = tuple[int, str, str]


@pytest.fixture
def command(spark: Any, capfd: pytest.CaptureFixture[str]) -> Callable[..., Printed]:
    """Runs `seaweedq spark` in the session: its exit code, stdout and stderr."""

    def run(*arguments: str) -> Printed:
        with pytest.raises(SystemExit) as ended:
            main(["spark", *arguments])
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return run

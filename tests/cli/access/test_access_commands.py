"""`seaweedq principal`, `token` and `whoami` against a broker that needs tokens."""

import re
from collections.abc import Callable

import pytest
import typer
from typer.testing import CliRunner

from seaweedq.cli.access.requests import grant_of, seconds_of, words_of
from seaweedq.cli.main import app
from seaweedq.errors import Forbidden, Unauthenticated
from tests.support.processes.broker_process import BrokerProcess


@pytest.mark.parametrize("text", ["describe,publish:flights*", "consume:a,b:mine-*", "metrics"])
def test_grants_as_words(text: str) -> None:
    assert words_of([grant_of(text)]) == text


@pytest.mark.parametrize("text", ["", ":a", "a:b:c:d"])
def test_grants_that_are_none(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        grant_of(text)


def test_times_as_words() -> None:
    assert [seconds_of(text) for text in ("90s", "15m", "12h", "30d")] == [90, 900, 43_200, 2_592_000]
    for wrong in ("", "30", "-1d", "1.5h", "1w"):
        with pytest.raises(typer.BadParameter):
            seconds_of(wrong)


def test_from_the_first_token_to_a_revoked_one(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process("--auth", "required")
    drawn = broker.data_dir / "admin-token"
    assert drawn.stat().st_mode & 0o777 == 0o600

    def run(*arguments: str, **environment: str) -> str:
        ended = CliRunner().invoke(app, [*arguments, "--url", broker.url], env={"COLUMNS": "200", **environment})
        if ended.exception:
            raise ended.exception
        return ended.stdout

    admin = {"SEAWEEDQ_TOKEN_FILE": str(drawn)}
    assert "principal admin" in run("whoami", **admin)
    with pytest.raises(Unauthenticated):
        run("whoami")
    assert run("principal", "put", "p", "--grant", "describe:a*", **admin) == "p may describe:a*:*\n"
    mine = {"SEAWEEDQ_TOKEN": run("token", "create", "p", "--expires", "1h", "--note", "mine", **admin).strip()}
    assert "principal p" in run("whoami", **mine)
    assert "p  describe:a*" in run("principal", "list", **admin)
    assert '"name": "p"' in run("principal", "show", "p", **admin)
    with pytest.raises(Forbidden):
        run("principal", "list", **mine)
    (token,) = re.findall(r"^([0-9a-f]{16})  p  until .*  mine$", run("token", "list", **mine), re.MULTILINE)
    assert run("token", "revoke", token, **mine) == f"revoked {token}\n"
    with pytest.raises(Unauthenticated):
        run("whoami", **mine)
    assert "removed p" in run("principal", "remove", "p", **admin)
    assert mine["SEAWEEDQ_TOKEN"].split("_")[2] not in broker.log

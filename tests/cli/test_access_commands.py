"""`seaweedq principal`, `token` and `whoami` against a broker that needs tokens."""

import re
from collections.abc import Callable

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from seaweedq import Client
from seaweedq.cli import access
from seaweedq.cli.access import grant_of, limit_of, limits_in_words, words_of
from seaweedq.cli.main import app
from seaweedq.cli.shared.common import complain
from seaweedq.cli.topic import tail
from seaweedq.client.core.calls import access_path
from seaweedq.errors import Forbidden, Unauthenticated
from tests.support import privates
from tests.support.processes.broker_process import BrokerProcess


@pytest.mark.parametrize("text", ["describe,publish:flights*", "consume:a,b:mine-*", "metrics"])
def test_grants_as_words(text: str) -> None:
    assert words_of([grant_of(text)]) == text


@pytest.mark.parametrize("text", ["", ":a", "a:b:c:d"])
def test_grants_that_are_none(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        grant_of(text)


@pytest.mark.parametrize("text", ["requests=0.5", "bytes_in=1000000000000000", "topics=3"])
def test_limits_as_words(text: str) -> None:
    assert limits_in_words(dict([limit_of(text)])) == text


def test_limits_in_bytes_have_units() -> None:
    assert [limit_of(text) for text in ("bytes_in=10MB", "bytes_out=1KiB")] == [("bytes_in", 10e6), ("bytes_out", 1024)]
    with pytest.raises(typer.BadParameter, match=r"bytes_in must be .*GB is 10\^9.*, not '10M'"):
        limit_of("bytes_in=10M")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "requests",
        "requests=1kB",
        "fly=1",
        "requests=",
        "requests=nan",
        "requests=-1",
        "requests=1e400",
        "topics=1.5",
    ],
)
def test_limits_that_are_none(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        limit_of(text)


def test_an_action_that_is_none_is_told_with_all_that_are() -> None:
    with pytest.raises(
        typer.BadParameter, match=r"'fly' is not an action; the actions are describe, create, .*, access"
    ):
        grant_of("describe,fly:a")


def test_a_token_of_the_environment_that_is_none_is_not_blamed_on_the_url() -> None:
    for command in (["whoami"], ["cluster"], ["topic", "list"], ["topic", "split", "t", "0"]):
        ended = CliRunner().invoke(app, command, env={"SEAWEEDQ_TOKEN": "a b", "COLUMNS": "200"})
        assert ended.exit_code == 2
        assert "SEAWEEDQ_TOKEN contains a blank" in ended.output
        assert "--url" not in ended.output


def test_texts_of_brokers_are_shown_without_what_a_terminal_obeys(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [
        {"id": "0", "principal": "p", "expires_at": None, "counts": True, "note": "a\x1b[2Jb\nc\x9b\u202ed é\u2066 "},
        {"id": "1", "principal": "p", "expires_at": None, "counts": True, "note": ""},
    ]
    monkeypatch.setattr(access, "run", lambda url, steps: listed)
    ended = CliRunner().invoke(app, ["token", "list"])
    assert ended.stdout.split("\n") == [
        "id  principal  state  until    note",
        "0   p          valid  revoked  a\\u001b[2Jb\\u000ac\\u009b\\u202ed é\\u2066",
        "1   p          valid  revoked",
        "",
    ]
    monkeypatch.setattr(access, "run", lambda url, steps: {"name": "a\x9b\x1b", "grants": []})
    ended = CliRunner().invoke(app, ["principal", "show", "p", "-o", "json"])
    assert msgspec.json.decode(ended.stdout) == {"name": "a\x9b\x1b", "grants": []}
    assert ended.stdout.replace("\n", "").isprintable()


def test_errors_of_brokers_are_shown_without_what_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    complain("a\x1b[2J")
    assert capsys.readouterr().err == "seaweedq: a\\u001b[2J\n"


@pytest.mark.process
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
    assert "principal  admin" in run("whoami", **admin)
    with pytest.raises(Unauthenticated):
        run("whoami")
    assert run("principal", "put", "p", "--grant", "describe:a*", **admin) == "p may describe:a*:*\n"
    mine = {"SEAWEEDQ_TOKEN": run("token", "create", "p", "--expires", "1h", "--note", "mine", **admin).strip()}
    assert "principal  p" in run("whoami", **mine)
    assert "p     enabled  describe:a*" in run("principal", "list", **admin)
    assert "grants  describe:a*" in run("principal", "show", "p", **admin)
    with pytest.raises(Forbidden):
        run("principal", "list", **mine)
    (token,) = re.findall(r"^([0-9a-f]{16})  p  .*  mine$", run("token", "list", **mine), re.MULTILINE)
    run("topic", "create", "a1", **admin)
    put = ("principal", "put", "p")
    assert run(*put, "--limit", "requests=500", "--limit", "topics=7", **admin) == (
        "p may describe:a*:*, at most requests=500 topics=7\n"
    )
    assert run(*put, "--grant", "describe,read:a*", "--limit", "topics=none", "--disabled", **admin) == (
        "p may describe,read:a*:*, at most requests=500\n"
    )
    assert run(*put, **admin) == "p may describe,read:a*:*, at most requests=500\n"
    assert "p     disabled  describe,read:a*:*  requests=500\n" in run("principal", "list", **admin)
    run(*put, "--enabled", **admin)
    assert run("principal", "put", "*", "--limit", "changes=50", **admin) == "* may do nothing, at most changes=50\n"
    with pytest.MonkeyPatch.context() as patched:
        with pytest.raises(Unauthenticated):
            next(privates.coming(tail)(broker.url, "a1", "0-0", None))
        patched.setenv("SEAWEEDQ_TOKEN", mine["SEAWEEDQ_TOKEN"])
        with Client(broker.url, token_file=drawn) as client:
            client.publish("a1", {"value": 7})
        assert msgspec.json.decode(next(privates.coming(tail)(broker.url, "a1", "0-0", None)))["value"] == 7
    assert run("token", "revoke", mine["SEAWEEDQ_TOKEN"], **mine) == f"revoked {token}\n"
    with pytest.raises(Unauthenticated):
        run("whoami", **mine)
    assert "removed p" in run("principal", "remove", "p", **admin)
    assert mine["SEAWEEDQ_TOKEN"].split("_")[2] not in broker.log


def test_names_of_principals_and_tokens_stay_one_part_of_a_path() -> None:
    assert access_path("principals", "*") == "/v1/principals/%2A"
    assert access_path("tokens", "5f?a#b c") == "/v1/tokens/5f%3Fa%23b%20c"
    for command in (["principal", "show", "../topics"], ["principal", "remove", ".."], ["token", "revoke", "a/b"]):
        ended = CliRunner().invoke(app, [*command, "--url", "http://127.0.0.1:1"], env={"COLUMNS": "200"})
        assert ended.exit_code != 0
        assert "invalid" in ended.output + str(ended.exception), command

"""`seaweedq context`: names for brokers, which commands use unless --url or a variable names others."""

import asyncio
import json
import os
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from seaweedq import Client
from seaweedq.cli.main import app, main
from seaweedq.cli.server.broker_process import uvicorn_loop
from seaweedq.cli.server.credentials import draw_admin_token
from seaweedq.cli.shared.common import header_of, lines
from seaweedq.cli.shared.contexts import ContextUrl, current_url, export_files, read_contexts
from seaweedq.client.http import DEFAULT_URL
from seaweedq.settings import Settings
from tests.support.brokers.in_process import running
from tests.support.brokers.serving import served
from tests.support.http.certificates import Authority
from tests.support.processes.broker_process import BrokerProcess, free_port

NOBODY = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("SEAWEEDQ_URL", "SEAWEEDQ_TOKEN", "SEAWEEDQ_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "config" / "seaweedq"


def run(*words: str) -> Result:
    return CliRunner().invoke(app, words, prog_name="seaweedq")


def done(*words: str) -> str:
    result = run(*words)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(str(end.value.code)), capsys.readouterr().err


def test_contexts_are_added_chosen_listed_and_removed(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("sq1_x")
    assert done("context", "list") == ""
    assert done("context", "add", "dev", "--url", "http://d:1,http://d:2") == "added and chose context dev\n"
    added = done("context", "add", "prod", "--url", "https://p", "--token-file", str(token), "-o", "json")
    assert json.loads(added) == {"name": "prod", "current": False, "url": "https://p", "token_file": str(token)}
    assert done("context", "use", "prod") == "commands use context prod (https://p)\n"
    listed = [line.split() for line in done("context", "list").splitlines()]
    assert listed == [
        ["current", "name", "url", "token", "file", "CA"],
        ["dev", "http://d:1,http://d:2"],
        ["*", "prod", "https://p", str(token)],
    ]
    assert [json.loads(line)["current"] for line in done("context", "list", "-o", "json").splitlines()] == [False, True]
    assert done("context", "show").splitlines()[:4] == [
        "name        prod",
        "current     True",
        "url         https://p",
        f"token file  {token}",
    ]
    assert done("context", "remove", "prod") == "removed context prod; there is no current context now\n"
    assert current_url(DEFAULT_URL) == DEFAULT_URL
    assert token.exists()


def test_the_file_is_the_users_alone_and_replaced_as_a_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0)
    try:
        done("context", "add", "dev", "--url", "http://d:1")
    finally:
        os.umask(before)
    file = folder / "contexts.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    text = file.read_text()

    def no_replace(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_replace)
    assert "No space left on device" in str(run("context", "add", "two", "--url", "http://d:2").exception)
    assert file.read_text() == text
    assert [path.name for path in folder.iterdir()] == ["contexts.json"]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("add", "my prod", "--url", "http://d:1"), 2, "invalid context name 'my prod': use at most 64 letters"),
        (("add", "../prod", "--url", "http://d:1"), 2, "invalid context name '../prod'"),
        (("add", "prod"), 2, "--url is missing"),
        (("add", "prod", "--url", "d:1"), 2, "url must be a URL such as http://127.0.0.1:8080"),
        (("add", "prod", "--url", "http://ann:secret@d:1"), 2, "a context must not contain a secret"),
        (
            ("add", "prod", "--url", "http://d:1", "--token-file", "sq1_abc"),
            2,
            "this is a token, not a file; write the token to a file",
        ),
        (("add", "prod", "--url", "http://d:1", "--token-file", "/none"), 2, "'/none' cannot be read: No such file"),
        (("add", "prod", "--url", "http://d:1", "--ca-file", __file__), 2, "contains no PEM certificate"),
        (("add", "dev", "--url", "http://d:1"), 1, "context dev already exists; use --replace to replace it"),
        (("use", "dve"), 1, "there is no context 'dve'; the nearest is dev"),
        (("use", "elsewhere"), 1, "there is no context 'elsewhere'"),
        (("show", "dve"), 1, "there is no context 'dve'; the nearest is dev"),
        (("remove", "dve"), 1, "there is no context 'dve'; the nearest is dev"),
    ],
)
def test_wrong_input_is_one_line(
    words: tuple[str, ...], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done("context", "add", "dev", "--url", "http://d:1")
    ended, text = refused(capsys, "context", *words)
    assert (ended, text.count("\n")) == (code, 1), text
    assert told in text
    assert "secret@" not in text
    assert [*read_contexts()[1]] == ["dev"]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"current": null, "contexts": {"a": {"uri": "http://b"}}}', "\xff"])
def test_a_file_of_something_else_is_named(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder.mkdir(parents=True)
    (folder / "contexts.json").write_text(text, "latin-1")
    code, told = refused(capsys, "topic", "list")
    assert (code, told) == (
        1,
        f"seaweedq: {folder / 'contexts.json'} is not a valid file of contexts; correct the file, or remove it\n",
    )


def test_a_connection_that_fails_names_the_context(capsys: pytest.CaptureFixture[str]) -> None:
    done("context", "add", "prod", "--url", NOBODY)
    assert f"seaweedq: context prod ({NOBODY}): no answer from {NOBODY}" in refused(capsys, "topic", "list")[1]
    other = f"http://127.0.0.1:{free_port()}"
    assert refused(capsys, "topic", "list", "--url", other)[1].startswith(f"seaweedq: no answer from {other}")


def test_an_option_wins_over_a_variable_and_that_over_a_context(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done("context", "add", "prod", "--url", "http://127.0.0.1:1")
    monkeypatch.setenv("SEAWEEDQ_URL", "http://127.0.0.1:2")
    assert "SEAWEEDQ_URL is set and overrides every context" in run("context", "list").stderr
    assert "no answer from http://127.0.0.1:2" in refused(capsys, "cluster")[1]
    assert "no answer from http://127.0.0.1:3" in refused(capsys, "cluster", "--url", "http://127.0.0.1:3")[1]


def test_the_client_ignores_contexts() -> None:
    done("context", "add", "prod", "--url", NOBODY)
    with Client() as client:
        assert repr(client) == f"Client({DEFAULT_URL!r})"


def test_spark_gets_a_contexts_files_unless_the_environment_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEAWEEDQ_TOKEN_FILE", "/given")
    monkeypatch.setenv("SEAWEEDQ_CA_FILE", "/given-ca")
    prod = ContextUrl.of("prod", {"url": "https://p", "token_file": "/of-prod", "ca_file": "/ca-of-prod"})
    export_files(prod)
    assert (os.environ["SEAWEEDQ_TOKEN_FILE"], os.environ["SEAWEEDQ_CA_FILE"]) == ("/given", "/given-ca")
    monkeypatch.setenv("SEAWEEDQ_TOKEN_FILE", "")
    monkeypatch.setenv("SEAWEEDQ_CA_FILE", "")
    export_files("https://p")
    assert os.environ["SEAWEEDQ_TOKEN_FILE"] == ""
    export_files(prod)
    assert (os.environ["SEAWEEDQ_TOKEN_FILE"], os.environ["SEAWEEDQ_CA_FILE"]) == ("/of-prod", "/ca-of-prod")


def test_names_are_completed() -> None:
    done("context", "add", "prod", "--url", NOBODY)
    done("context", "add", "dev", "--url", NOBODY)
    for words, offered in (("context use p", ["prod"]), ("context remove ", ["dev", "prod"]), ("context sh", ["show"])):
        whole = f"seaweedq {words}"
        env = {"_SEAWEEDQ_COMPLETE": "complete_bash", "COMP_WORDS": whole, "COMP_CWORD": str(whole.count(" "))}
        assert CliRunner().invoke(app, [], prog_name="seaweedq", env=env).stdout.split() == offered


def test_what_is_shown_to_paste_takes_the_context() -> None:
    url = ContextUrl.of("prod", {"url": "https://p", "token_file": "/a b", "ca_file": "/ca"})
    curl, _, pull, sql, _ = lines(url, "t", "file:///x", header=header_of({}, url))
    assert curl.startswith("sed 's/^/Authorization: Bearer /' '/a b' | curl -H @- --cacert /ca https://p/v1/")
    assert "--url" not in pull + sql


@pytest.mark.process
def test_commands_use_the_current_context(real_broker: BrokerProcess, real_client: Client) -> None:
    done("context", "add", "other", "--url", NOBODY)
    done("context", "add", "here", "--url", real_broker.url, "--use")
    assert done("publish", "by_context", '{"n": 1}').startswith("published 1 message")
    assert done("sql", "SELECT count(*) AS n FROM by_context", "-o", "csv") == "n\n1\n"
    assert '"n":1' in done("topic", "tail", "by_context").replace(" ", "")
    assert "ok" in done("doctor")
    real_client.delete_topic("by_context")


@pytest.mark.process
def test_token_and_ca_of_a_context_are_for_its_brokers_alone(tmp_path: Path) -> None:
    authority, ca_file = Authority(), tmp_path / "ca.pem"
    ca_file.write_bytes(authority.pem)
    named = authority.issue("127.0.0.1").write(tmp_path / "tls")

    async def test() -> None:
        settings = Settings(data_dir=tmp_path / "data", auth="required")
        draw_admin_token(settings)
        async with running(tmp_path / "data", auth="required", **named) as broker, served(broker) as serving:
            files = ("--token-file", str(settings.admin_token_path), "--ca-file", str(ca_file))
            await asyncio.to_thread(done, "context", "add", "prod", "--url", serving.url, *files)
            assert "admin" in await asyncio.to_thread(done, "whoami")
            assert (await asyncio.to_thread(done, "publish", "t", "1")).startswith("published 1 message")
            assert '"value":1' in (await asyncio.to_thread(done, "topic", "tail", "t")).replace(" ", "")
            assert await asyncio.to_thread(done, "sql", "SELECT count(*) AS n FROM t", "-o", "csv") == "n\n1\n"
            elsewhere = await asyncio.to_thread(run, "whoami", "--url", serving.url)
            assert "CERTIFICATE_VERIFY_FAILED" in str(elsewhere.exception).upper()
            assert "name the brokers' authority with ca_file, or in SEAWEEDQ_CA_FILE" in str(elsewhere.exception)
            plain = await asyncio.to_thread(run, "whoami", "--url", serving.url.replace("https:", "http:"))
            assert "a broker with TLS has a URL that begins with https://" in str(plain.exception)
            with pytest.MonkeyPatch.context() as environment:
                environment.setenv("SEAWEEDQ_CA_FILE", str(ca_file))
                environment.setenv("SEAWEEDQ_TOKEN_FILE", str(settings.admin_token_path))
                assert "admin" in await asyncio.to_thread(done, "whoami", "--url", serving.url)
                environment.setenv("SEAWEEDQ_CA_FILE", str(tmp_path / "none.pem"))
                missing = await asyncio.to_thread(run, "whoami", "--url", serving.url)
                assert "none.pem' cannot be read: No such file or directory" in str(missing.exception)
            await asyncio.to_thread(done, "context", "add", "prod", "--replace", "--url", serving.url, *files[2:])
            without = await asyncio.to_thread(run, "topic", "list")
            assert str(without.exception).startswith(f"context prod ({serving.url}): ")
            assert "no token is set: SEAWEEDQ_TOKEN_FILE names the file of one" in str(without.exception)

    with uvicorn_loop() as runner:
        runner.run(test())

"""Errors have one form, one line on stderr, in words of this program, and name options, not the fields of a request;
help begins with what is used most."""

import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from seaweedq.cli import main
from seaweedq.cli.main import app
from seaweedq.cli.shared.common import one_line
from seaweedq.cli.shared.usage import in_options, option_of
from seaweedq.errors import InvalidRequest
from tests.support.processes.command import seaweedq

NOBODY = ("--url", "http://127.0.0.1:9")


@pytest.mark.parametrize(("given", "told"), [
    ("topic create", "TOPIC is missing; see seaweedq topic create --help"),
    ("pull t", "--subscription is missing; see seaweedq pull --help"),
    ("topic create t --segments x",
     "--segments: the value must be a whole number, not 'x'; see seaweedq topic create --help"),
    ("bench --producers 1.5", "--producers: the value must be a whole number, not '1.5'; see seaweedq bench --help"),
    ("bench --rate much", "--rate: the value must be a number, not 'much'; see seaweedq bench --help"),
    ("topic tail t -n 99999", "--number: the value must be at most 1,000, not '99999'; see seaweedq topic tail --help"),
    ("pull t -s s --max 0", "--max: the value must be at least 1, not '0'; see seaweedq pull --help"),
    ("topic list -o yaml",
     "--output: the format must be one of table, wide, json, not 'yaml'; see seaweedq topic list --help"),
    ("topic list --outptu x", "there is no option --outptu; the nearest is --output; see seaweedq topic list --help"),
    ("topcs", "there is no command topcs; the nearest is topic; see seaweedq --help"),
    ("topic lsit", "there is no command lsit; the nearest is list; see seaweedq topic --help"),
    ("topic show t --url ftp://x", "--url: url must be a URL such as http://127.0.0.1:8080, not 'ftp://x'"),
    ("topic list --url http://127.0.0.1:there",
     "--url: url must be a URL such as http://127.0.0.1:8080, not 'http://127.0.0.1:there'"),
    ("topic list --url http://127.0.0.1:65536",
     "--url: url must be a URL such as http://127.0.0.1:8080, not 'http://127.0.0.1:65536'"),
    ("publish t --file /dev/zero", "--file: '/dev/zero' is a device, not a regular file"),
    ("import t /dev/zero --format ndjson", "FILE: '/dev/zero' is a device, not a regular file"),
    ("sql FROM --memory lots", "--memory: 'lots': Parser Error: Memory must have a number (e.g. 1GB)"),
    ("topic create t --schema /none", "--schema: file '/none' does not exist; see seaweedq topic create --help"),
    ("topic list a", "got unexpected extra argument(s) (a); see seaweedq topic list --help"),
    ("serve --port abc", "--port: the value must be a whole number, not 'abc'; see seaweedq serve --help"),
    ("serve --port 99999", "setting port must be at most 65,535, not 99999 (given by --port)"),
    ("serve --coordination 127.0.0.1:2379", "setting coordination must be a value such as embedded or "
     "etcd://10.0.0.1:2379,10.0.0.2:2379, not '127.0.0.1:2379' (given by --coordination)"),
    ("serve --config /none", "--config /none: the file does not exist"),
])  # fmt: skip
def test_a_usage_error_is_one_line_and_exit_code_2(given: str, told: str) -> None:
    ended = CliRunner().invoke(app, given.split())
    assert (ended.exit_code, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"seaweedq: {told}")


def test_a_statement_that_is_not_utf_8_is_a_usage_error() -> None:
    ended = CliRunner().invoke(app, ["sql", "-"], input=b"select \xff")
    assert (ended.exit_code, ended.stdout) == (2, "")
    told = "seaweedq: STATEMENT: stdin is not UTF-8: byte 0xff at position 7; see seaweedq sql --help\n"
    assert ended.stderr == told


def test_a_pipe_is_no_file_for_an_upload(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for arguments in (["publish", "t", "--file"], ["import", "t", "--format", "ndjson"]):
        ended = CliRunner().invoke(app, [*arguments, str(tmp_path / "pipe")])
        assert (ended.exit_code, "is a pipe, not a regular file" in ended.stderr) == (2, True)


@pytest.mark.process
def test_no_broker_is_a_failure_that_names_serve() -> None:
    done = seaweedq("topic", "list", *NOBODY)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "no answer from http://127.0.0.1:9: Connection refused; start a broker with seaweedq serve" in line
    assert "Errno" not in line


@pytest.mark.process
def test_a_question_that_is_not_answered_ends_as_a_failure(real_broker) -> None:
    url = ("--url", real_broker.url)
    seaweedq("topic", "create", "kept", *url)
    done = seaweedq("topic", "delete", "kept", *url, stdin="n\n")
    assert (done.returncode, done.stdout.strip()) == (1, "")
    assert done.stderr.endswith("seaweedq: aborted; without a terminal, confirm with --yes\n")
    again = seaweedq("topic", "create", "kept", "--segments", "2", *url)
    assert again.returncode == 1
    assert "2" in again.stderr
    assert "1" in again.stderr
    wrong = seaweedq("topic", "set", "kept", "--retention-max-age-s", "0", *url)
    assert wrong.returncode == 1
    assert "--retention-max-age-s must be a number of at least 1, not 0" in wrong.stderr


@pytest.mark.process
def test_the_caret_of_sql_is_below_its_place(real_broker) -> None:
    seaweedq("topic", "create", "caret", "--url", real_broker.url)
    for statement in ("SELECT _key, nothing FROM caret", "SELECT _key FROM caret WHER nothing"):
        done = seaweedq("sql", statement, "--url", real_broker.url)
        assert done.returncode == 1
        told, line, caret = done.stderr.splitlines()
        assert told.startswith("seaweedq: ")
        assert "LINE" not in told
        assert line == f"LINE 1: {statement}"
        assert set(caret) == {" ", "^"}
        assert line[caret.index("^") :].startswith("nothing")


@pytest.mark.process
def test_help_begins_with_the_start_and_shows_no_types_of_flags() -> None:
    shown = seaweedq("--help").stdout
    panels = [line.split()[1:-1] for line in shown.splitlines() if line.startswith("╭─")]
    assert [" ".join(word for word in panel if "─" not in word) for panel in panels][:3] == [
        "Options",
        "Advanced options",
        "Start here",
    ]
    assert "<bool>" not in shown
    one = CliRunner().invoke(app, ["topic", "create", "--help"], env={"COLUMNS": "100"}).stdout
    assert "Usage: seaweedq topic create [OPTIONS] TOPIC" in one
    assert "{" not in one
    assert "<bool>" not in one
    common, advanced = one.split("Advanced options")
    assert "--segments" in common
    assert "--cool-down-s" in advanced


OPTIONS = frozenset(
    ("--segments", "--min-segments", "--max-segments", "--flush-max-age-s", "--start", "--format", "--to")
)


@pytest.mark.parametrize(
    ("field", "option"),
    [
        ("initial_segments", "--segments"),
        ("flush.max_age_s", "--flush-max-age-s"),
        ("scaling.min_segments", "--min-segments"),
        ("start.timestamp", "--start"),
        ("retention.max_age_s", None),
    ],
)
def test_a_field_is_found_by_its_path_its_end_or_its_beginning(field: str, option: str | None) -> None:
    assert option_of(field, OPTIONS) == option


@pytest.mark.parametrize(
    ("text", "field", "told"),
    [
        ("initial_segments is 0: at least 1", "initial_segments", "--segments is 0: at least 1"),
        ("scaling.min_segments is 5: at most max_segments", "", "--min-segments is 5: at most --max-segments"),
        ('format is "x": one of json, bytes', "format", '--format is "x": one of json, bytes'),
        ('start.timestamp is "x": no time', "start", '--start is "x": no time'),
        ("topic 'min_segments' is none; min_segments=3", "", "topic 'min_segments' is none; --min-segments=3"),
        ("no answer from http://to/format: max_bytes", "format", "no answer from http://to/format: max_bytes"),
    ],
)
def test_words_that_are_fields_become_options_and_names_stay(text: str, field: str, told: str) -> None:
    assert in_options(text, field, OPTIONS) == told


def test_every_command_names_options_in_its_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(to: str = typer.Option("x")) -> None:
        raise InvalidRequest("to.timestamp is 'x': no time; max_bytes is none of its own", field="to.timestamp")

    command = main.load_command("whoami")
    assert command.name == "whoami"
    app = typer.Typer()
    app.command()(refuse)
    ended = CliRunner().invoke(app, [])
    assert str(ended.exception).startswith("to.timestamp")
    loaded = main.naming_options(typer.main.get_command(app))
    with pytest.raises(InvalidRequest) as caught:
        loaded([], standalone_mode=False)
    assert one_line(caught.value) == "--to is 'x': no time; max_bytes is none of its own"

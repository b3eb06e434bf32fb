"""`-o table|wide|json`: every command takes it, its JSON parses, and its tables keep numbers whole."""

import json
import os
import pty
import subprocess
import sys

import pytest

from seaweedq import Client
from seaweedq.cli.main import LISTED, load_command
from seaweedq.cli.shared.output import Column, columns, cut, layout
from tests.support.processes.command import seaweedq

# Without -o, and the reason.
WITHOUT = {
    "serve": "it runs until it is stopped; --log-format json is for programs",
    "help": "it shows a page",
    "demo": "it tells a story, and ends with a picture",
}


def _commands():
    """Yields the words of every command, with its options."""
    for name in LISTED:
        command = load_command(name)
        inner = getattr(command, "commands", None)
        if inner is None or command.invoke_without_command:
            yield (name,), command
        for word, one in (inner or {}).items():
            yield (name, word), one


COMMANDS = dict(_commands())


def test_every_command_takes_o_or_has_a_reason():
    without = {words[0] for words, command in COMMANDS.items() if not _takes(command)}
    assert without == WITHOUT.keys()
    assert len(COMMANDS) > 40
    assert not [words for words, command in COMMANDS.items() if "--json" in _options(command)]


def _options(command):
    return {option for param in command.params for option in param.opts}


def _takes(command):
    return {"-o", "--output"} <= _options(command)


# What each command is called with, in this order: so that each succeeds, on one topic.
CALLS = [
    ("topic create t --segments 2",),
    ("topic create t --segments 2",),
    ("topic set t --no-scaling",),
    ("topic edit t --yes",),
    ("topic set t --retention-max-age-s 9 --dry-run",),
    ("topic set t --max-segments 9",),
    ("subscription create t s --start earliest",),
    ("publish t", '{"n": 1}\n{"n": 2}\n'),
    ("publish t --file {file}",),
    ("import t {file}",),
    ("topic list",),
    ("topic show t",),
    ("topic tail t",),
    ("topic flush t",),
    ("topic files t",),
    ("topic create v --format typed --schema {schema}",),
    ("schema show v",),
    ("schema check v {wider}",),
    ("schema evolve v {wider} --if-version 0",),
    ("schema diff v 0",),
    ("topic split t 0 --parts 2",),
    ("topic merge t 2 3",),
    ("topic roll t 1",),
    ("topic move t 5 --to {broker}",),
    ("topic history t",),
    ("topic watch t --once",),
    ("top --once",),
    ("subscription list t",),
    ("subscription show t s",),
    ("subscription watch t s --once",),
    ("subscription pause t s",),
    ("subscription resume t s",),
    ("subscription seek t s --to earliest",),
    ("pull t --subscription s --max 2",),
    ("dead-letters list t",),
    ("dead-letters redrive t --max 1",),
    ("sql SHOW%TABLES",),
    ("verify t",),
    ("cluster",),
    ("cluster level",),
    ("doctor",),
    ("principal put p --grant describe:t",),
    ("principal show p",),
    ("principal list",),
    ("token create p",),
    ("token list",),
    ("token revoke {token}",),
    ("principal remove p",),
    ("denial create --sub alice",),
    ("denial list",),
    ("denial remove {denial}",),
    ("whoami",),
    ("bench --messages 10 --consumers 0",),
    ("debug bundle --file {bundle}",),
    ("context add c --replace",),
    ("context use c",),
    ("context list",),
    ("context show c",),
    ("context remove c",),
    ("subscription delete t s --yes",),
    ("topic delete t --yes",),
]


@pytest.mark.process
@pytest.mark.long
def test_the_json_of_every_command_parses(real_broker, tmp_path):
    file = tmp_path / "rows.ndjson"
    file.write_text('{"n": 3}\n')
    schemas = {"schema": "int", "wider": "long"}
    for name, kind in schemas.items():
        (tmp_path / name).write_text(json.dumps({"fields": [{"name": "n", "type": kind}]}))
    names = {
        **{name: str(tmp_path / name) for name in schemas},
        "file": str(file),
        "bundle": str(tmp_path / "help.tar.gz"),
        "broker": "",
        "token": "",
        "denial": "",
    }
    called = set()
    for line, *stdin in CALLS:
        words = [word.replace("%", " ").format(**names) for word in line.split()]
        env = {"VISUAL": "true"} if words[:2] == ["topic", "edit"] else {}
        at = () if words[0] == "context" and words[1] != "add" else ("--url", real_broker.url)
        env["XDG_CONFIG_HOME"] = str(tmp_path)
        done = seaweedq(*words, "-o", "json", *at, stdin="".join(stdin), env=env)
        assert done.returncode == 0, (line, done.stderr)
        found = [json.loads(one) for one in done.stdout.splitlines()]
        assert all(isinstance(one, dict) for one in found), (line, found)
        assert found or line.startswith(("dead-letters list", "token list")), line
        called.add(tuple(words[:2]) if tuple(words[:2]) in COMMANDS else tuple(words[:1]))
        if line == "cluster":
            assert found[0]["brokers"]
        if line == "topic show t":
            names["broker"] = found[0]["segments"][0]["owner"]
        if line == "token create p":
            names["token"] = found[0]["id"]
        if line.startswith("denial create"):
            names["denial"] = found[0]["id"]
    refused = {("cluster", "rebuild"), ("journal", "accept-loss")}  # by a broker that serves, and has lost nothing
    refused |= {words for words in COMMANDS if words[0] == "spark"}  # tests/spark/jobs call them, in one session
    assert {words for words, command in COMMANDS.items() if _takes(command)} == called | refused


@pytest.mark.process
def test_another_format_is_a_usage_error():
    done = seaweedq("topic", "list", "-o", "yaml")
    assert done.returncode == 2
    assert "the format must be one of table, wide, json, not 'yaml'" in " ".join(done.stderr.split())


HEAD = columns("name, messages, note, more", numbers="messages", wide="more")


def test_a_table_without_a_terminal_is_whole():
    rows = [("n" * 300, "1,234,567", "x" * 500, "hidden")]
    first, line = layout(HEAD, rows, None)
    assert line == f"{'n' * 300}  1,234,567  {'x' * 500}"
    assert first.split() == ["name", "messages", "note"]
    assert layout(HEAD, rows, None, wide=True)[1].endswith("  hidden")


@pytest.mark.parametrize("width", [20, 40, 60, 100])
def test_a_narrow_table_cuts_names_in_the_middle_and_never_numbers(width):
    rows = [("begin" + "n" * 300 + "end", "1,234,567,890", "no\x1bte", ""), ("a", "1", "b", "")]
    lines = layout(HEAD, rows, width)
    assert all("1,234,567,890" in line for line in lines[1:2])
    assert "\x1b" not in "".join(lines)
    if width >= 40:
        assert max(map(len, lines)) <= width
        name = lines[1].split()[0]
        assert name.startswith("begin")
        assert name.endswith("end")
        assert "…" in name


@pytest.mark.parametrize(("text", "room", "expected"), [
    ("short", 5, "short"), ("abcdefghij", 7, "abcd…ij"), ("日本語日本語", 7, "日本…語"),
])  # fmt: skip
def test_a_cut_text_has_its_two_ends(text, room, expected):
    assert cut(text, room) == expected


def test_only_as_much_is_cut_as_must_be():
    head = (Column("a"), Column("b"))
    assert layout(head, [("x" * 30, "y" * 12)], 40)[1].endswith("  " + "y" * 12)


def _at_terminal(*arguments, columns):
    """Returns what a command prints to a terminal that has so many columns."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    command = [sys.executable, "-m", "seaweedq", *arguments]
    with subprocess.Popen(command, stdout=follower, stderr=follower, env=environment) as process:
        os.close(follower)
        text = b""
        while True:
            try:
                piece = os.read(leader, 65_536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            text += piece
        os.close(leader)
        assert process.wait() == 0, text
    return text.decode()


@pytest.mark.process
def test_a_long_name_is_cut_at_a_terminal_alone(real_broker):
    name = "begin-" + "n" * 100 + "-end"
    with Client(real_broker.url) as client:
        client.create_topic(name)
    arguments = ("topic", "list", "--url", real_broker.url)
    shown = _at_terminal(*arguments, columns=80)
    assert name not in shown
    assert "begin-" in shown
    assert "-end" in shown
    assert name in _at_terminal(*arguments, "-o", "wide", columns=80)
    assert name in seaweedq(*arguments).stdout  # which is no terminal


@pytest.mark.process
def test_the_list_of_topics_has_their_figures(run, real_client):
    real_client.create_topic("figures", initial_segments=2)
    real_client.create_subscription("figures", "near")
    real_client.create_subscription("figures", "far", start="earliest")
    real_client.publish("figures", [{"value": n} for n in range(1_500)])
    real_client.flush("figures")
    (facts,) = (one for one in map(json.loads, run("topic", "list", "-o", "json")) if one["name"] == "figures")
    assert (facts["messages"], facts["segments"], facts["tail_bytes"]) == (1_500, 2, 0)
    assert facts["bytes"] > 0
    assert facts["messages_per_s"] >= 0
    assert facts["behind"]["messages"] == 1_500
    head, *rows = run("topic", "list")
    assert head.split() == ["name", "messages", "size", "unflushed", "messages/s", "segments", "behind"]
    (row,) = (line.split("  ") for line in rows if line.startswith("figures"))
    assert "1,500" in row
    assert row[-1].strip() == "1,500"
    wide = next(line for line in run("topic", "list", "-o", "wide") if line.startswith("figures"))
    assert " far " in wide or " near " in wide


@pytest.mark.process
def test_a_topics_page_has_rates_segments_lag_and_configuration_apart(run, real_client):
    real_client.create_topic("page", key_field="k", flush={"max_age_s": 7})
    real_client.create_subscription("page", "lagging", start="earliest")
    real_client.publish("page", [{"value": {"k": "a"}}] * 3)
    seaweedq("topic", "roll", "page", "0", "--url", run.url)
    page = run("topic", "show", "page")
    assert any(line.startswith("rate ") and "messages/s" in line for line in page)
    assert "-o wide also shows 1 sealed segment; topic history shows what replaced sealed segments" in page
    (lag,) = (line.split() for line in page if line.startswith("lagging "))
    assert lag[3] == "3"
    assert not [line for line in page if "max_age_s" in line]
    assert [line.split()[1] for line in run("topic", "show", "page", "-o", "wide") if line.startswith("      ")] == [
        "sealed",
        "open",
    ]
    config = dict(line.split(maxsplit=1) for line in run("topic", "show", "page", "--config"))
    assert (config["flush.max_age_s"], config["key_field"]) == ("7", "k")


@pytest.mark.process
def test_empty_lists_say_so(run, real_client):
    real_client.create_topic("bare")
    for words, told in (
        ("subscription list bare", "topic bare has no subscription"),
        ("dead-letters list bare", "topic bare has no dead letters"),
        ("topic files bare", "topic bare has no files yet"),
        ("principal list", "no principals yet; to create one: seaweedq principal put NAME"),
        ("token list", "no token"),
    ):
        done = seaweedq(*words.split(), "--url", run.url)
        assert done.stderr == f"{told}\n", words


@pytest.mark.process
def test_pictures_are_whole_where_stdout_is_no_terminal(run, real_client):
    name = "pictured-" + "n" * 110
    real_client.publish(name, {"value": 1})
    assert any(line.startswith(name) for line in run("top", "--once"))
    assert any("broker." in line and line.rstrip()[-1] != "…" for line in run("topic", "watch", name, "--once"))


@pytest.fixture
def run(real_broker):
    def command(*arguments):
        done = seaweedq(*arguments, "--url", real_broker.url)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    command.url = real_broker.url
    return command

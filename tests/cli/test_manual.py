"""`seaweedq help`: its pages, and that each command in them is there with its options."""

import re
import shlex

import pytest
from typer.testing import CliRunner

from seaweedq.cli import main
from seaweedq.cli.main import manual_pages

SECTIONS = ["Examples", "See also"]
PAGES = manual_pages()


def test_the_list_has_every_page_and_what_it_is_about() -> None:
    shown = CliRunner().invoke(main.app, ["help"]).stdout
    assert re.findall(r"^  (\S+) +\S", shown, re.MULTILINE) == list(PAGES)
    assert {"topics", "messages", "ndjson", "sql"} <= PAGES.keys()


def test_a_page_and_the_help_of_a_command() -> None:
    assert CliRunner().invoke(main.app, ["help", "topics"]).stdout.startswith("# seaweedq-topics: ")
    assert "Usage: seaweedq topic tail" in CliRunner().invoke(main.app, ["help", "topic", "tail"]).stdout
    assert CliRunner().invoke(main.app, ["help", "nosuch"]).exit_code == 2


@pytest.mark.parametrize("name", PAGES)
def test_pages_have_one_form_and_name_others_that_are_there(name: str) -> None:
    text = PAGES[name]
    assert text.startswith(f"# seaweedq-{name}: ")
    assert re.findall("^## (.*)$", text, re.MULTILINE)[-2:] == SECTIONS
    others = text.rpartition("## See also\n")[2].strip().split(", ")
    assert name not in others
    assert set(others) <= PAGES.keys()


@pytest.mark.parametrize("line", re.findall(r"^    seaweedq (.*)$", "\n".join(PAGES.values()), re.MULTILINE))
def test_commands_of_pages_are_there_with_their_options(line: str) -> None:
    words = shlex.split(re.sub(r"[\[\]]", "", line))
    command = main.load_command(words[0])
    if words[1:] and words[1] in getattr(command, "commands", {}):
        command = command.commands[words[1]]
    assert not getattr(command, "commands", {}) or words == ["cluster"]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    assert {word for word in words if re.fullmatch("--?[a-z][a-z-]*", word)} <= known

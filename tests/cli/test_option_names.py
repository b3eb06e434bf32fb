"""Errors of brokers name the options of the command, not the fields of the request."""

import pytest
import typer
from typer.testing import CliRunner

from seaweedq.cli import main
from seaweedq.cli.shared.common import one_line
from seaweedq.cli.shared.usage import in_options, option_of
from seaweedq.errors import InvalidRequest

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

    command = main._load("whoami")
    assert command.name == "whoami"
    app = typer.Typer()
    app.command()(refuse)
    ended = CliRunner().invoke(app, [])
    assert str(ended.exception).startswith("to.timestamp")
    loaded = main.naming_options(typer.main.get_command(app))
    with pytest.raises(InvalidRequest) as caught:
        loaded([], standalone_mode=False)
    assert one_line(caught.value) == "--to is 'x': no time; max_bytes is none of its own"

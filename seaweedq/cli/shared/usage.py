"""Usage errors and help in this program's own words. An error is one line that names the option, the value and the
bound. Help shows common options before advanced ones.

Typer would draw a box around errors, and show pydantic's texts about values and braces around required arguments. This
module partly relies on Typer's private attributes; if a version of Typer lacks them, its own texts appear.

When brokers refuse a request, they name the field, but the user has given an option. So a word in the error is replaced
by an option if the word is a path of fields or has an underscore, and an option has the same name: the whole name
(`flush.max_age_s`: `--flush-max-age-s`), its end (`scaling.min_segments`: `--min-segments`), or its beginning
(`start.timestamp`: `--start`). The error's own field is replaced even if it is a plain word. Words in quotes, such as
topic names, are not replaced."""

import re
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from functools import wraps
from typing import Any

import typer

from seaweedq.cli.shared.common import complain
from seaweedq.cli.shared.contexts import ContextUrl, credentials_of
from seaweedq.errors import ConnectionFailed, SeaweedqError, Unauthenticated

_FIELD = re.compile(r"""(?<![\w.'"`/-])[a-z]+(?:[_.][a-z]+)+(?:\[\d+\])?(?![\w'"`/-])""")
_ALIASES = {"initial_segments": "--segments"}


def naming_options(command: Any) -> Any:
    """Makes the errors of a command, or of a group with its commands, name options."""
    for inner in getattr(command, "commands", {}).values():
        naming_options(inner)
    if command.callback is not None:
        command.callback = _with_options(command.callback, frozenset(o for p in command.params for o in p.opts))
    return command


def _with_options(callback: Callable[..., Any], options: Collection[str]) -> Callable[..., Any]:
    @wraps(callback)
    def called(*arguments: Any, **named: Any) -> Any:
        try:
            return callback(*arguments, **named)
        except SeaweedqError as error:
            text = in_options(str(error), str(error.fields.get("field", "")), options)
            url = named.get("url")
            if isinstance(error, Unauthenticated) and not credentials_of(url or "").has_token:
                text += "; no token is set: SEAWEEDQ_TOKEN_FILE names the file of one"
            if isinstance(url, ContextUrl) and isinstance(error, ConnectionFailed | Unauthenticated):
                text = f"context {url.name} ({url}): {text}"
            error.args = (text,)
            raise

    return called


def in_options(text: str, field: str, options: Collection[str]) -> str:
    """Replaces fields in an error's text by options. `field` is the field that the error is about."""
    replaced = _FIELD.sub(lambda word: option_of(word[0], options) or word[0], text)
    if field and replaced.startswith(f"{field} ") and (option := option_of(field, options)):
        return option + replaced[len(field) :]
    return replaced


def option_of(field: str, options: Collection[str]) -> str | None:
    """Returns the option for a field; None if no option matches."""
    path = re.sub(r"\[\d+\]", "", field).split(".")
    named = (f"--{'-'.join(words).replace('_', '-')}" for words in (path, path[-1:], path[:1]))
    return next((option for option in (_ALIASES.get(path[-1]), *named) if option in options), None)


_MUST = {
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_parsing": "must be true or false",
    "greater_than_equal": "must be at least {ge:,}",
    "greater_than": "must be more than {gt:,}",
    "less_than_equal": "must be at most {le:,}",
    "less_than": "must be less than {lt:,}",
    "literal_error": "must be {expected}",
    "value_error": "{error}",
}
_ADVANCED_PANEL = "Advanced options"
_ADVANCED = frozenset("""
    --backoff-s --batch --content-type --cool-down-s --default --envelope --every-s --expires-after-s --flush-max-age-s
    --flush-max-bytes --header --install-completion --key-prefix --max-in-flight --max-payload-bytes --max-segments
    --memory --min-segments --nack --ndjson --no-ack --s3-endpoint --sample --scaling --show-completion --skip-invalid
    --store --target-bytes-per-s --target-messages-per-s
    """.split())  # noqa: SIM905  # fmt: skip


def in_plain_words(command: Any) -> Any:
    """Changes the help of a command, or of a group with its commands: argument names in capitals, no type for flags,
    and advanced options in a separate panel."""
    for inner in getattr(command, "commands", {}).values():
        in_plain_words(inner)
    for param in command.params:
        _plain(param)
    help_option = command.get_help_option
    command.get_help_option = lambda context: _plain(help_option(context))
    return command


def _plain(param: Any) -> Any:
    if param is None:
        return None
    if param.param_type_name == "argument":
        param.metavar = param.name.upper()
        more = "..." if param.nargs != 1 else ""
        usage = param.metavar + more if param.required else f"[{param.metavar}{more}]"
        param._usage_display_name = lambda: usage
    if param.param_type_name == "argument" or param.is_flag:
        param.display_type_rich = lambda ctx: None
    if _ADVANCED & {*param.opts} and param.rich_help_panel is None:
        param.rich_help_panel = _ADVANCED_PANEL
    return param


def complain_of_usage(error: Any) -> int:
    """Prints a usage error. Returns the exit code: 2, also if a command without arguments has shown its help."""
    if type(error).__name__ != "NoArgsIsHelpError":
        path = error.ctx.command_path if getattr(error, "ctx", None) else "seaweedq"
        complain(f"{usage(error).rstrip('.')}; see {path} --help")
    return int(error.exit_code)


def usage(error: Any) -> str:
    """Describes what is wrong with the given arguments."""
    name = type(error).__name__
    if name == "NoSuchOption":
        return f"there is no option {error.option_name}{nearest(error.option_name, _options(error))}"
    if name == "MissingParameter":
        return f"{_subject(error)} is missing"
    if isinstance(error, typer.BadParameter):
        return f"{_subject(error)}: {_reason(error)}"
    if (words := error.format_message()).startswith("No such command"):
        given = words.split("'")[1]
        return f"there is no command {given}{nearest(given, getattr(error.ctx.command, 'commands', {}))}"
    return str(words[:1].lower() + words[1:])


def _subject(error: Any) -> str:
    """Returns the option or argument that an error is about."""
    if error.param_hint:
        hint = error.param_hint if isinstance(error.param_hint, str) else error.param_hint[0]
        return str(hint).strip("'")
    param = error.param
    if param is None:
        return "usage"
    return str(param.opts[0] if param.param_type_name == "option" else param.name.upper())


def _reason(error: Any) -> str:
    """Explains why a value is invalid, without pydantic's wording."""
    found: Callable[[], list[dict[str, Any]]] | None = getattr(error.__cause__, "errors", None)
    if found is None:
        return str(error.message)
    first = found()[0]
    value, reason = repr(str(first["input"])[:100]), must(first)
    return f"the value {reason}, not {value}" if reason.startswith("must ") else f"{value} {reason}"


def must(first: Mapping[str, Any]) -> str:
    """Returns what a value must be, given pydantic's error."""
    return _MUST.get(first["type"], "is not valid").format(**first.get("ctx", {}))


def _options(error: Any) -> Mapping[str, None]:
    params = error.ctx.command.get_params(error.ctx) if error.ctx else ()
    return {option: None for param in params for option in param.opts if option.startswith("--")}


def nearest(given: str, known: Mapping[str, Any]) -> str:
    """Returns a suffix for an error that suggests the nearest known word; empty if none is near."""
    near = get_close_matches(given, known, 1)
    return f"; the nearest is {near[0]}" if near else ""

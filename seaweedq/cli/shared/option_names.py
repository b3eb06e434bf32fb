"""Options in place of fields: brokers name the field of a request that they refuse, but who reads the error has given
an option.

A word is replaced if it is a path of fields, or has an underscore, and one of the command's options has its name: the
whole of it (`flush.max_age_s`: `--flush-max-age-s`), its end (`scaling.min_segments`: `--min-segments`), or its
beginning (`start.timestamp`: `--start`). The field that the error itself names is replaced also where it is a plain
word. Words in quotes are names of topics and the like, and stay.
"""

import re
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any

from seaweedq.errors import SeaweedqError

_FIELD = re.compile(r"""(?<![\w.'"`/-])[a-z]+(?:[_.][a-z]+)+(?:\[\d+\])?(?![\w'"`/-])""")
_ALIASES = {"initial_segments": "--segments"}


def naming_options(command: Any) -> Any:
    """Returns a command, or a group with its commands, whose errors name options."""
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
            error.args = (text,)
            raise

    return called


def in_options(text: str, field: str, options: Collection[str]) -> str:
    """Returns an error's text with the options that stand for fields; `field` is the one that it is about."""
    replaced = _FIELD.sub(lambda word: option_of(word[0], options) or word[0], text)
    if field and replaced.startswith(f"{field} ") and (option := option_of(field, options)):
        return option + replaced[len(field) :]
    return replaced


def option_of(field: str, options: Collection[str]) -> str | None:
    """Returns the option that stands for a field; None if there is none among the options."""
    path = re.sub(r"\[\d+\]", "", field).split(".")
    named = (f"--{'-'.join(words).replace('_', '-')}" for words in (path, path[-1:], path[:1]))
    return next((option for option in (_ALIASES.get(path[-1]), *named) if option in options), None)

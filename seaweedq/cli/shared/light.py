"""Commands that load no more than they use: pydantic, Markdown and tracebacks take half of the time of a short command.

Typer checks each value of an option by pydantic, also one that was not given, and text, which is any. It imports what
shows Markdown and tracebacks together with what shows help. What it keeps for this is private to it: a version that
keeps something else is slower here, and does the same.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import ModuleType
from typing import Any

_UNUSED = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}  # by the help of commands without Markdown


def lighten(command: Any) -> Any:
    """Returns a command, or a group with its commands, that loads what it uses when it uses it."""
    for inner in getattr(command, "commands", {}).values():
        lighten(inner)
    for param in command.params:
        _lighten_param(param)
    command.get_help_option = _light_option(command.get_help_option)
    command.format_help = _light_help(command.format_help)
    return command


def _lighten_param(param: Any) -> Any:
    if param is not None and getattr(param, "_runtime_param", param) is None:
        param._runtime_param = _Light()
    return param


class _Light:
    """A check of a parameter's value that leaves what needs one to Typer's own."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Returns the value as the parameter's type. Raises BadParameter."""
        many, kind = param.multiple or param.nargs == -1, param.type_descriptor.annotation
        if not many and (value is None or (type(value) is kind and (kind is str or value == param.default))):
            return value
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def _light_option(get_help_option: Callable[..., Any]) -> Callable[..., Any]:
    return wraps(get_help_option)(lambda *arguments: _lighten_param(get_help_option(*arguments)))


def _light_help(format_help: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(format_help)
    def formatted(*arguments: Any) -> Any:
        with _without_unused():
            from typer import rich_utils  # noqa: F401
        return format_help(*arguments)

    return formatted


@contextmanager
def _without_unused() -> Iterator[None]:
    """Lets modules import names that are not used, in place of the modules that have them."""
    held = []
    for module, name in _UNUSED.items():
        if module not in sys.modules:
            sys.modules[module] = stand_in = ModuleType(module)
            setattr(stand_in, name, type(name, (), {}))
            held.append(module)
    try:
        yield
    finally:
        for module in held:
            del sys.modules[module]

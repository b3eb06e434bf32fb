"""The streams of the process as commands expect them: all three are open, and stdout takes every character."""

import io
import os
import sys


def open_streams() -> None:
    """Opens the null device in place of each stream that was closed, as by `<&-`, and lets stdout show as escapes what
    its encoding has not."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in the order of their descriptors
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")

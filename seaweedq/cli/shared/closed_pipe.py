"""A pipe that its reader has closed, as `head` does: the command ends and says nothing about it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ending_quietly(code: int) -> Iterator[None]:
    """Ends the process with this exit code where the block was ended by a closed pipe. What stdout still holds is
    written before; where only that has no reader, the block's own end stands."""
    try:
        yield
    except SystemExit as end:  # Rich and Typer raise it for a closed pipe, too
        if isinstance(end.__context__, BrokenPipeError):
            _discard_output()
            sys.exit(code)
        raise
    except BrokenPipeError:
        _discard_output()
        sys.exit(code)
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            _discard_output()


def _discard_output() -> None:
    """Discards what stdout still holds: Python would complain when it flushes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

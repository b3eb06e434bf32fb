"""Tells a forked process from its parent: asking the system for the process's id costs a tenth of a message."""

import os

generation = 0
"""How many forks lie between the first process and this one."""


def _count() -> None:
    global generation
    generation += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count)

"""Packages that Arrow and DuckDB import where they find them, and do without: a command that needs none hides them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from typing import Any


class _Hider(MetaPathFinder):
    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        """Refuses the packages alone."""
        if fullname in self._names:
            raise ModuleNotFoundError(fullname, name=fullname)


@contextmanager
def hidden(*names: str) -> Iterator[None]:
    """Hides packages that are not imported yet, until the end of the block."""
    hider = _Hider(names)
    sys.meta_path.insert(0, hider)
    try:
        yield
    finally:
        sys.meta_path.remove(hider)

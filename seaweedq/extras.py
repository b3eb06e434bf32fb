"""The extras that an installation may lack (pyproject.toml has them), the error that says how to install one, and
packages that a command hides from Arrow and DuckDB, which import them only if they are there."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

from seaweedq.errors import MissingExtra

_PROJECT = "pyproject.toml"


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Raises MissingExtra if `what` cannot import a package, which comes with `extra`."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "seaweedq"):
            raise
        detail = f"{what} needs the package {package}: {install_command(extra)}"
        raise MissingExtra(detail, extra=extra, package=package) from error


def install_command(extra: str) -> str:
    """Returns the command that adds an extra to this installation: from the checkout, if it came from one."""
    from shlex import quote

    folder, editable = _checkout()
    if folder is None:
        return f"pip install 'seaweedq[{extra}]'"
    here = Path(_PROJECT).exists() and Path(_PROJECT).samefile(folder / _PROJECT)
    source = f"{'.' if here else folder}[{extra}]"
    return f"pip install {'-e ' if editable else ''}{quote(source)}"


def _checkout() -> tuple[Path | None, bool]:
    """Returns the folder from which pip installed this package, if the folder is still there, and whether editable."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        origin = json.loads(distribution("seaweedq").read_text("direct_url.json") or "{}")  # PEP 610
    except PackageNotFoundError:
        return None, False
    folder = Path(url2pathname(urlsplit(origin.get("url", "")).path))
    there = "dir_info" in origin and (folder / _PROJECT).is_file()
    return (folder, origin["dir_info"].get("editable", False)) if there else (None, False)


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

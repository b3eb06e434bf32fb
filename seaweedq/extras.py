"""The extras that an installation may lack (pyproject.toml has them), and the error that says how to install one."""

from collections.abc import Iterator
from contextlib import contextmanager

from seaweedq.errors import MissingExtra


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Raises MissingExtra where `what` cannot import a package, which comes with `extra`."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "seaweedq"):
            raise
        detail = f"{what} needs the package {package}: pip install 'seaweedq[{extra}]'"
        raise MissingExtra(detail, extra=extra, package=package) from error

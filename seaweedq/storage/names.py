"""Which object names are legal, for every store alike.

A name that is not legal was built wrongly by this program (what users send is checked where it comes in), so it is a
ValueError. Never both `a` and `a/b`: the stores need not agree on what that means.
"""

TEMPORARY = "_tmp/"


def check_name(name: str) -> str:
    """The name itself. Raises ValueError for absolute names, empty parts, `.`, `..`, NUL and names below `_tmp/`."""
    _check_parts(name, name.split("/"))
    return name


def check_prefix(prefix: str) -> str:
    """The prefix itself; its last part may be empty, or end inside a name. Raises ValueError as `check_name`.

    One that ends in the part `.` or `..` is refused as well: MinIO lists none.
    """
    *folders, last = prefix.split("/")
    _check_parts(prefix, [*folders, last] if last else folders)
    return prefix


def _check_parts(name: str, parts: list[str]) -> None:
    if any(part in ("", ".", "..") for part in parts) or "\0" in name or name.startswith(TEMPORARY):
        raise ValueError(f"{name!r} is not a valid object name")

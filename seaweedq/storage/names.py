"""The names that an object may have, the same for every store.

An invalid name is a bug of this program (names from users are checked where they arrive), hence a ValueError. Callers
never use both `a` and `a/b`: stores need not agree on what that means.
"""

TEMPORARY = "_tmp/"


def check_name(name: str) -> str:
    """Returns the name itself. Raises ValueError for absolute names, empty parts, `.`, `..`, NUL and names below
    `_tmp/`."""
    _check_parts(name, name.split("/"))
    return name


def check_prefix(prefix: str) -> str:
    """Returns the prefix itself; its last part may be empty, or the beginning of a name. Raises ValueError as
    `check_name`.

    A prefix that ends in the part `.` or `..` is refused as well: MinIO lists nothing for it.
    """
    *folders, last = prefix.split("/")
    _check_parts(prefix, [*folders, last] if last else folders)
    return prefix


def check_place(prefix: str, after: str) -> None:
    """Raises ValueError unless a listing of `prefix` may begin after `after`: stores differ in what lies outside."""
    if not after.startswith(prefix) and after:
        raise ValueError(f"after={after!r} does not begin with the prefix {prefix!r}")


def by_parts(name: str) -> str:
    """Returns the key that sorts names by their parts, as the paths of a file system: `a/b/c` before `a/b.parquet`."""
    return name.replace("/", "\0")


def _check_parts(name: str, parts: list[str]) -> None:
    if any(part in ("", ".", "..") for part in parts) or "\0" in name or name.startswith(TEMPORARY):
        raise ValueError(f"{name!r} is not a valid object name")

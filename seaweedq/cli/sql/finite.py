"""Statements whose results JSON can hold: JSON has no NaN and no infinity, so such floats become null, as they do in
messages. DuckDB would write them as they are, and no strict reader takes that."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb

_FLOATS = ("float", "double")
_NESTED = ("list", "array", "struct", "map")


def finite(connection: "duckdb.DuckDBPyConnection", statement: str) -> str:
    """Returns the statement with null for each float that is not finite; as it is where it finds no floats."""
    columns = connection.execute(f"SELECT * FROM ({statement}\n) LIMIT 0").description or []
    if not any(_holds_floats(kind) for _, kind, *_ in columns):
        return statement
    names = [f"c{number}" for number in range(len(columns))]
    shown = [
        f"{_finite(name, kind)} AS {_quoted(column[0])}"
        for name, column in zip(names, columns, strict=True)
        for kind in [column[1]]
    ]
    return f"SELECT {', '.join(shown)} FROM ({statement}\n) AS found({', '.join(names)})"


def _holds_floats(kind: Any) -> bool:
    if kind.id not in _NESTED:
        return kind.id in _FLOATS
    return any(_holds_floats(child) for _, child in kind.children if not isinstance(child, int))


def _finite(value: str, kind: Any, depth: int = 0) -> str:
    """Returns the expression of a value without NaN and infinity."""
    if not _holds_floats(kind):
        return value
    if kind.id in _FLOATS:
        return f"CASE WHEN isfinite({value}) THEN {value} END"
    children = dict(kind.children)
    each = f"e{depth}"
    if kind.id == "struct":
        fields = (
            f"{_quoted(name)} := {_finite(f'{value}.{_quoted(name)}', child, depth)}"
            for name, child in children.items()
        )
        return f"CASE WHEN {value} IS NOT NULL THEN struct_pack({', '.join(fields)}) END"
    if kind.id == "map":
        values = f"list_transform(map_values({value}), lambda {each}: {_finite(each, children['value'], depth + 1)})"
        return f"CASE WHEN {value} IS NOT NULL THEN map(map_keys({value}), {values}) END"
    return f"list_transform({value}, lambda {each}: {_finite(each, children['child'], depth + 1)})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

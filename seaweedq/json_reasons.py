"""The reasons for which JSON was refused, in the words of this project: those of the decoder are about its own types.

A reason follows the name of a field, or the value that it has: `must be a whole number, not text`.
"""

import re
from collections.abc import Callable, Collection
from difflib import get_close_matches

LONGEST = 100  # characters of a name in a reason
CUT_OFF = "not JSON: it is cut off"
_PATH = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_KINDS = {
    "array": "a list",
    "bool": "true or false",
    "bytes": "base64",
    "date": "a date such as 2026-01-31",
    "datetime": "a time such as 2026-01-31T12:00:00Z",
    "float": "a number",
    "int": "a whole number",
    "object": "an object",
    "str": "text",
    "time": "a time of day such as 12:00:00",
    "uuid": "a UUID",
}
_GOT = {"bool": "a boolean", "float": "a fraction"}
_BOUNDS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_LENGTHS = {  # one, and many
    "array": ("entry", "entries"),
    "bytes": ("byte", "bytes"),
    "object": ("member", "members"),
    "str": ("character", "characters"),
}
_DETAILS = {
    "trailing": ", followed by more text",
    "escape": ", an unknown escape",
    "surrogate": ", half of a surrogate pair",
}
_ZONES = {"a": "must have a time zone, as in 2026-01-31T12:00:00Z", "no": "must have no time zone"}
_NUMBER = re.compile(r"\.0$")


def in_words(error: Exception | str, fields: Collection[str] = ()) -> str:
    """Returns why JSON was refused, with the path of the field; an unknown field may have meant one of `fields`."""
    what, path = split_path(str(error))
    return of_field(path, reword(what, fields)) if path else reword(what, fields)


def split_path(reason: str) -> tuple[str, str]:
    """Returns the decoder's reason, and the path of the field that it concerns; empty for the whole."""
    found = _PATH.match(reason)
    assert found is not None
    return found["what"], found["path"] or ""


def of_field(path: str, reason: str, value: str = "") -> str:
    """Returns a sentence about a refused field: its path, the reason, and its value, if it is known."""
    if reason.startswith("must "):
        return f"{path} {reason.rpartition(', not ')[0] or reason}, not {value}" if value else f"{path} {reason}"
    if reason.startswith("there is no field "):
        return f"{path} has {reason.removeprefix('there is ')}"
    if reason.startswith("is "):
        return f"the value {value} of {path} {reason}" if value else f"{path} {reason}"
    return f"{reason} in {path}"


def reword(what: str, fields: Collection[str] = ()) -> str:
    """Returns a reason without its path."""
    if unknown := re.fullmatch("Object contains unknown field `(.*)`", what, re.DOTALL):
        near = get_close_matches(unknown[1][:LONGEST], fields, 1)
        return f"there is no field {unknown[1][:LONGEST]!r}" + (f"; the nearest is {near[0]}" if near else "")
    for pattern, said in _SAID:
        if found := pattern.fullmatch(what):
            return said(found)
    return "is not valid"


def _kinds(names: str) -> str:
    return " or ".join(_KINDS.get(name, name) for name in names.split(" | "))


def _bound(found: re.Match[str]) -> str:
    return f"must be {_KINDS[found[1]]} of {_BOUNDS[found[2]]} {_NUMBER.sub('', found[3])}"


def _length(found: re.Match[str]) -> str:
    one, many = _LENGTHS[found[1]]
    return f"must have {_BOUNDS[found[2]]} {found[3]} {one if found[3] == '1' else many}"


def _malformed(found: re.Match[str]) -> str:
    detail = next((said for word, said in _DETAILS.items() if word in found[1]), "")
    return f"not JSON from byte {found[2]} on{detail}"


def _type(found: re.Match[str]) -> str:
    return f"must be {_kinds(found[1])}, not {_GOT.get(found[2]) or _kinds(found[2])}"


_SAID: list[tuple[re.Pattern[str], Callable[[re.Match[str]], str]]] = [
    (re.compile(pattern, re.DOTALL), said)
    for pattern, said in (
        ("Object missing required field `(.*)`", lambda found: f"the field {found[1]} is missing"),
        ("Expected `([^`]+)`, got `([^`]+)`", _type),
        ("Expected `(int|float)` ([<>]=?) (.+)", _bound),
        ("Expected `(array|bytes|object|str)` of (?:at least )?length (>=|<=) ([0-9]+)", _length),
        ("Expected `[a-z]+` with (a|no) timezone component", lambda found: _ZONES[found[1]]),
        ("Expected `str` matching regex (.+)", lambda found: f"must match {found[1]}"),
        ("Expected `int` that's a multiple of (.+)", lambda found: f"must be a multiple of {found[1]}"),
        ("Expected `([^`]+)`.*", lambda found: f"must be {_kinds(found[1])}"),
        ("Invalid RFC3339 encoded ([a-z]+)", lambda found: f"must be {_kinds(found[1])}"),
        ("Invalid UUID.*", lambda found: "must be a UUID"),
        ("Invalid base64 encoded string", lambda found: "must be base64"),
        (".* out of range", lambda found: "is out of range"),
        ("Invalid (?:enum )?value (.+)", lambda found: f"must not be {found[1]}"),
        ("Input data was truncated", lambda found: CUT_OFF),
        ("Invalid UTF-8 encoded string", lambda found: "not UTF-8"),
        (r"JSON is malformed: (.*) \(byte ([0-9]+)\)", _malformed),
    )
]

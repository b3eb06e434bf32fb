"""Decodes JSON bodies of requests other than messages: strict JSON into a typed struct; errors name field and bound.

Python's own json is not used, because it accepts more than JSON. Texts of durations and sizes (`"7d"`, `"10GB"`) are
taken by fields whose names end in their unit: they become numbers once a body was refused, so that a body of numbers
costs what it did. Each such field has the body decoded anew, so a body with texts may have MAX_BYTES_OF_TEXTS.
"""

import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from seaweedq.codec.json_text import MAX_DEPTH, blemish
from seaweedq.errors import InvalidRequest, UnreadableBody, UnsupportedContentType
from seaweedq.json_reasons import apart, in_words, of
from seaweedq.units import value_of

T = TypeVar("T")
MAX_BYTES_OF_TEXTS = 256 * 1024
SHOWN = 100  # characters of a value that an error shows
_AT = re.compile(r"^(?P<reason>.*) - at `\$\.(?P<path>[^`]+)`$", re.DOTALL)
_TEXT = re.compile(r"Expected `(float|int)\b.*, got `str`")
_STEP = re.compile(r"\[(\d+)\]|\.?([^.\[\]]+)")


def decode_request(content: bytes, stated: str | None, decoder: msgspec.json.Decoder[T]) -> T:
    """Returns the request in a body; an empty body counts as `{}`. `stated` is its content type, if one was given.

    Raises UnsupportedContentType, UnreadableBody (no JSON), InvalidRequest (unknown field, wrong type).
    """
    media = ("application/json" if stated is None else stated).partition(";")[0].strip().lower()
    if media != "application/json":
        raise UnsupportedContentType(
            f"the content type {media[:SHOWN]!r} is not application/json", supported=["application/json"]
        )
    try:
        try:
            return decoder.decode(content or b"{}")
        except msgspec.ValidationError as error:
            if len(content) > MAX_BYTES_OF_TEXTS:
                raise _invalid(str(error), content, decoder.type) from None
            return _with_units(str(error), content, decoder)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableBody(f"the body is {in_words(error)}") from None
    except RecursionError:
        raise UnreadableBody(f"the body is nested deeper than {MAX_DEPTH} levels", bound=MAX_DEPTH) from None


def check_free_form(content: bytes) -> None:
    """Raises InvalidRequest where a body that is stored as it came is not JSON that every reader can read."""
    if content and (reason := blemish(content)):
        raise InvalidRequest(f"the request is not valid: {reason}", reason=reason)


def _with_units(reason: str, content: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Returns the request that was refused for this reason, with the texts in place of numbers parsed, one after the
    other. Raises InvalidRequest where that is not the reason."""
    numbers = content
    while True:
        numbers = _with_numbers(reason, numbers) or numbers
        try:
            return decoder.decode(numbers)
        except msgspec.ValidationError as error:
            if str(error) == reason:
                raise _invalid(reason, content, decoder.type) from None
            reason = str(error)


def _with_numbers(reason: str, content: bytes) -> bytes | None:
    """Returns a body with a number in place of the text at the path that msgspec names, and of its neighbours in a
    list; None where no text of a duration or a size is refused. Raises InvalidRequest for one that is neither."""
    found = _AT.match(reason)
    if not found or not _TEXT.match(found["reason"]):
        return None
    steps = [int(index) if index else name for index, name in _STEP.findall(found["path"])]
    whole = at = msgspec.json.decode(content)
    for step in steps[:-1]:
        at = at[step]
    name = next(step for step in reversed(steps) if isinstance(step, str))
    for place in range(len(at)) if isinstance(at, list) else steps[-1:]:
        if isinstance(text := at[place], str):
            try:
                number = value_of(name, text)
            except ValueError as error:
                path = re.sub(r"\d+(?=\]$)", str(place), found["path"])
                raise InvalidRequest(f"{path}: {error}", field=path, value=text[:SHOWN], bound=str(error)) from None
            if number is None:
                return None
            at[place] = number
    return msgspec.json.encode(whole)


def _invalid(reason: str, content: bytes, kind: Any) -> InvalidRequest:
    """Returns the error with the value at the path that msgspec names, and the allowed values of an enum."""
    reason, path = apart(reason)
    said = of(reason, _members(kind, path) if "unknown field" in reason else ())
    if not path:
        return InvalidRequest(f"the request is not valid: {said}", reason=said)
    value = _at(content, path)
    choices = _choices(kind, path) if "enum" in reason else []
    bound = f"one of {', '.join(map(str, choices))}" if choices else said
    return InvalidRequest(f"{path} is {value}: {bound}", field=path, value=value, bound=bound)


def _at(content: bytes, path: str) -> str:
    """Returns the start of the JSON text at a path, if it can be found."""
    try:
        value = msgspec.json.decode(content)
        for index, name in _STEP.findall(path):
            value = value[int(index)] if index else value[name]
        return msgspec.json.encode(value).decode()[:SHOWN]
    except (ValueError, LookupError, TypeError, RecursionError):
        return "not valid"


def _choices(kind: Any, path: str) -> list[Any]:
    """Returns the allowed values at a path in a struct, from its JSON schema; objects by the members that they may
    have."""
    members = [f'{{"{name}": ...}}' for name in _members(kind, path)]
    return [choice for one in _allowed(kind, path) for choice in one.get("enum", ())] + members


def _members(kind: Any, path: str) -> list[str]:
    """Returns the fields that an object at a path of a struct may have."""
    return [name for one in _allowed(kind, path) for name in one.get("properties", ())]


def _allowed(kind: Any, path: str) -> list[dict[str, Any]]:
    """Returns the JSON schemas of the values that a path of a struct may have."""
    (schema,), components = msgspec.json.schema_components((kind,))
    found = list(_forms(schema, components))
    for index, name in _STEP.findall(path):
        inner = (one.get("items") if index else one.get("properties", {}).get(name) for one in found)
        found = [form for one in inner if one for form in _forms(one, components)]
    return found


def _forms(schema: dict[str, Any], components: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the forms that a schema allows."""
    if "$ref" in schema:
        schema = components[schema["$ref"].rpartition("/")[2]]
    yield schema
    for one in schema.get("anyOf", ()):
        yield from _forms(one, components)

"""Messages of protobuf as the documents of HTTP routes, and back. Pure.

A field has the same name and unit on both sides; tests/api/grpc compares them. What differs: a schema is JSON text
here, a `Place` is a word or an object there, and a `Backoff` a list, so that an empty one differs from a missing one.
Fields of an update's mask that have no value become null, which restores the default.
"""

from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any

import msgspec
from google.protobuf.message import Message

from seaweedq.api.grpc import queue_pb2 as pb
from seaweedq.errors import InvalidRequest

MASK = "update_mask"
MAX_PATHS = 100  # of a mask
Document = dict[str, Any]


def document_of(message: Message, outer: str = "") -> Document:
    """Returns the document of a request, without what is not set. `outer` is where the message is in it, with a dot at
    the end. Raises InvalidRequest."""
    found: Document = {}
    for field, value in message.ListFields():
        at = f"{outer}{field.name}"
        if field.name == MASK:
            continue
        if field.name == "backoff":
            found["backoff_s"] = [finite(one, f"{at}.delays_s") for one in value.delays_s]
        elif field.name == "schema":
            found["schema"] = _schema_of(value)
        elif field.message_type is None:
            found[field.name] = [finite(one, at) for one in value] if field.is_repeated else finite(value, at)
        elif field.message_type.GetOptions().map_entry:
            found[field.name] = {str(key): one for key, one in value.items()}
        elif field.is_repeated:
            found[field.name] = [_inner(one, at) for one in value]
        else:
            found[field.name] = _inner(value, at)
    mask = getattr(message, MASK, None)
    return found if mask is None else _reset(found, mask.paths, message.DESCRIPTOR.fields_by_name)


def fill(message: Message, document: Mapping[str, Any]) -> None:
    """Sets the fields of an answer. Members that are null, and those that have no field, are left out."""
    fields = message.DESCRIPTOR.fields_by_name
    for name, value in document.items():
        field = fields.get("backoff" if name == "backoff_s" else name)
        if field is None or value is None:
            continue
        if name == "backoff_s":
            message.backoff.delays_s.extend(value)
        elif name == "schema":
            message.schema = msgspec.json.encode(value).decode()
        elif field.message_type is None:
            _set_scalar(message, field, value)
        elif field.message_type.GetOptions().map_entry:
            kind = _KEYS.get(field.message_type.fields_by_name["key"].cpp_type, str)
            getattr(message, name).update({kind(key): one for key, one in value.items()})
        elif field.is_repeated:
            for one in value:
                _fill_one(getattr(message, name).add(), one)
        else:
            getattr(message, name).SetInParent()
            _fill_one(getattr(message, name), value)


def finite(value: Any, field: str) -> Any:
    """Returns the value of a field. Raises InvalidRequest for a float that JSON cannot have: it would become null, and
    null may mean that there is no limit."""
    if isinstance(value, float) and not isfinite(value):
        raise InvalidRequest(f"{field} must be a finite number, not {value}", field=field, value=str(value))
    return value


def moment(time: Any, field: str) -> str:
    """Returns the time of a field as text. Raises InvalidRequest if it is none of the years 1 to 9999."""
    try:
        return str(time.ToJsonString())
    except ValueError:
        told = "must be of the years 1 to 9999, with 0 to 999,999,999 nanos"
        raise InvalidRequest(f"{field} {told}", field=field) from None


def _inner(message: Message, at: str) -> Any:
    convert = _TO.get(message.DESCRIPTOR.full_name)
    return convert(message, at) if convert else document_of(message, f"{at}.")


def _fill_one(message: Message, value: Any) -> None:
    convert = _FROM.get(message.DESCRIPTOR.full_name)
    if convert:
        convert(message, value)
    else:
        fill(message, value)


def _set_scalar(message: Message, field: Any, value: Any) -> None:
    if field.is_repeated:
        getattr(message, field.name).extend(value)
    else:
        setattr(message, field.name, value)


def _schema_of(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"schema is not JSON: {error}", field="schema", value=text[:100]) from None


def _reset(document: Document, paths: Iterable[str], fields: Mapping[str, Any]) -> Document:
    """Returns the document with null for each field of the mask that it does not have. A group of fields is all of
    them."""
    for count, path in enumerate(paths):
        if count >= MAX_PATHS:
            raise InvalidRequest(f"update_mask must have at most {MAX_PATHS} paths", field=MASK, bound=MAX_PATHS)
        *outer, last = path.split(".")
        if len(outer) > 1:
            raise InvalidRequest(
                f"update_mask names {path[:100]!r}, which is not a field", field=MASK, value=path[:100]
            )
        if path in ("backoff", "backoff.delays_s"):
            document.setdefault("backoff_s", None)
            continue
        group = fields[path].message_type if path in fields else None
        place = document.setdefault(path if group else outer[0], {}) if outer or group else document
        if not isinstance(place, dict):
            raise InvalidRequest(
                f"update_mask names {path[:100]!r}, which is not a field", field=MASK, value=path[:100]
            )
        for name in [one.name for one in group.fields] if group else [last]:
            place.setdefault(name, None)
    return document


def _place_document(place: Any, at: str) -> Any:
    kind = place.WhichOneof("place")
    if kind == "end":
        return place.end
    if kind == "timestamp":
        return {"timestamp": moment(place.timestamp, f"{at}.timestamp")}
    if kind == "offsets":
        return {"offsets": {str(segment): offset for segment, offset in place.offsets.by_segment.items()}}
    return {}


def _fill_place(place: Any, value: Any) -> None:
    if isinstance(value, str):
        place.end = value
    else:
        place.timestamp.FromJsonString(value["timestamp"])


def _fill_time(time: Any, value: str) -> None:
    time.FromJsonString(value)


_KEYS: dict[int, Callable[[str], Any]] = {2: int}  # CPPTYPE_INT64
_TO: dict[str, Callable[[Any, str], Any]] = {
    pb.Place.DESCRIPTOR.full_name: _place_document,
    "google.protobuf.Timestamp": moment,
}
_FROM: dict[str, Callable[[Any, Any], None]] = {
    pb.Place.DESCRIPTOR.full_name: _fill_place,
    "google.protobuf.Timestamp": _fill_time,
}

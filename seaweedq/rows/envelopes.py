"""Decodes and checks JSON messages, `{"key", "value", "headers", "timestamp", "expires_in_s"}`, as columns or singly.

Topics of values, topics of bytes and messages with a payload each have a type and a decoder, as fast as its shape
allows; values are not decoded with the envelope. `columns_of` converts all messages of a request at once, and gives up
(with any of `GIVEN_UP`) if one of them is or may be invalid; `read` decides for one message, and says why it is
refused. A message that both accept gives the same row. Only `read` accepts a message with a `reference` in place of a
value: looking its upload up costs far more.
"""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seaweedq.json_reasons import in_words
from seaweedq.rows import json_values, typed_values
from seaweedq.rows.intake import (
    EPOCH,
    MAX_AHEAD_US,
    MAX_EXPIRES_S,
    MAX_INVALID,
    MAX_ROWS,
    MIN_US,
    Doubt,
    Intake,
    Refusal,
    check_count,
    refuse,
    too_large,
)
from seaweedq.segments.layout import TIMESTAMP, Format
from seaweedq.segments.rows import (
    Single,
    any_there,
    assemble,
    binaries,
    header_sizes,
    headers_column,
    microseconds,
    optional,
    rows_of_singles,
    rows_with_values,
)
from seaweedq.units import DURATION_PATTERN, seconds_of

_DURATION = msgspec.Meta(
    extra_json_schema={"pattern": DURATION_PATTERN, "description": "a duration, such as 90s, 1h30m or 7d"}
)
Expiry = Annotated[float, msgspec.Meta(gt=0, le=MAX_EXPIRES_S)] | Annotated[str, _DURATION]
_BASE64 = msgspec.Meta(extra_json_schema={"pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"})
Moment = Annotated[dt.datetime, msgspec.Meta(tz=True)]
SHOWN = 50
TOGETHER, ALONE = 4_096, 8  # typed values that are checked together, and that are not worth it
_REFERENCE = b'"reference"'
GIVEN_UP = (Doubt, Refusal, msgspec.DecodeError, RecursionError, ValueError, OverflowError, pa.ArrowException)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Envelope(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A message of a json or typed topic. Only `value` is required.

    - Messages with the same `key` stay in order. On a topic with a `key_field`, the key is that field.
    - By default, `timestamp` is the time at which the broker receives the message; it may be at most an hour in the
      future.
    - After `expires_in_s`, by the cluster's time, no reader of the queue gets the message, and subscriptions count it
      as acked. Its row stays in the files, with `_expires`.
    """

    value: msgspec.Raw
    key: str | None = None
    headers: dict[str, str] | None = None
    timestamp: Moment | None = None
    expires_in_s: Expiry | None = None


class BytesEnvelope(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A message of a bytes topic."""

    value: Annotated[bytes, _BASE64] = msgspec.field(name="value_base64")
    key: str | None = None
    headers: dict[str, str] | None = None
    timestamp: Moment | None = None
    expires_in_s: Expiry | None = None


class UploadReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A payload, named by its upload."""

    upload_id: Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+(?!\n)$")]


class ReferenceEnvelope(msgspec.Struct, forbid_unknown_fields=True):
    """A message of a json or bytes topic that has a payload in the store, and no value. Its key is `key`, whatever the
    topic's `key_field` is."""

    reference: UploadReference
    key: str | None = None
    headers: dict[str, str] | None = None
    timestamp: Moment | None = None
    expires_in_s: Expiry | None = None


class Envelopes(msgspec.Struct, forbid_unknown_fields=True):
    """Several messages of a json or typed topic."""

    messages: Annotated[list[Envelope], msgspec.Meta(min_length=1)]


class BytesEnvelopes(msgspec.Struct, forbid_unknown_fields=True):
    """Several messages of a bytes topic."""

    messages: Annotated[list[BytesEnvelope], msgspec.Meta(min_length=1)]


class ReferenceEnvelopes(msgspec.Struct, forbid_unknown_fields=True):
    """Several messages, each with a payload. One request may contain messages of both kinds."""

    messages: Annotated[list[ReferenceEnvelope], msgspec.Meta(min_length=1)]


Message = Envelope | BytesEnvelope

_one = msgspec.json.Decoder(Envelope)
_one_bytes = msgspec.json.Decoder(BytesEnvelope)
_many = msgspec.json.Decoder(Envelopes)
_many_bytes = msgspec.json.Decoder(BytesEnvelopes)
_referenced = msgspec.json.Decoder(ReferenceEnvelope)


def decode_one(body: Any, format: Format) -> Message:
    """Decodes one message, whose value is not checked yet. Raises msgspec's errors."""
    return _one_bytes.decode(body) if format is Format.BYTES else _one.decode(body)


def decode_lines(body: bytes, format: Format) -> Sequence[Message]:
    """Decodes one message after the other, wherever the lines end. Raises msgspec's errors."""
    return _one_bytes.decode_lines(body) if format is Format.BYTES else _one.decode_lines(body)


def decode_many(body: Any, format: Format) -> Sequence[Message]:
    """Decodes the messages of `{"messages": [...]}`. Raises msgspec's errors."""
    return _many_bytes.decode(body).messages if format is Format.BYTES else _many.decode(body).messages


def decode_reference(body: Any) -> ReferenceEnvelope:
    """Decodes one message with a payload. Raises msgspec's errors."""
    return _referenced.decode(body)


_NAMES = (*Envelope.__struct_fields__, "value_base64", "reference")  # the first message alone is told the nearest


def columns_of(messages: Sequence[Message], intake: Intake) -> pa.RecordBatch:
    """Returns the rows of all messages. Raises one of GIVEN_UP if a message may not be valid."""
    check_count(len(messages))
    texts = [message.value for message in messages]
    values = values_of(texts, intake)
    explicit = [message.key for message in messages]
    headers = headers_column([message.headers for message in messages])
    key = optional(explicit, pa.string())
    longest = 0 if key is None else pc.max(pc.binary_length(key)).as_py()
    if longest + (0 if headers is None else header_sizes(headers).max()) > intake.max_message_bytes:
        raise Doubt  # the longest key and the longest headers are too long together
    if intake.key_field is not None:
        key = _field_keys(explicit, texts, values, intake)
    timestamp = _timestamps([message.timestamp for message in messages], intake)
    expires = _expiries([message.expires_in_s for message in messages], intake)
    return assemble(intake.layout, timestamp, key, headers, expires, values)


def values_of(texts: Sequence[Any], intake: Intake) -> list[pa.Array]:
    """Returns the value columns. Raises one of GIVEN_UP if a value may not be valid."""
    if max(map(len, texts)) > intake.max_message_bytes:
        raise Doubt
    if intake.layout.format is Format.TYPED:
        return typed_values.columns(texts, intake.layout.values)
    column = binaries(texts, intake.layout.values.field(0).type)
    if intake.layout.format is Format.JSON:
        for row in json_values.doubtful(column):
            if json_values.blemish(texts[row]):
                raise Doubt
    return [column]


def decode_single(body: bytes, intake: Intake) -> Single | None:
    """Returns the one message of a JSON body on a json or bytes topic, None if `bodies.decode_json` has to decode it.

    Raises UnreadableBody, InvalidMessages, MessageTooLarge.
    """
    format = intake.layout.format
    if format is Format.TYPED:
        return None
    try:
        return check((_one_bytes if format is Format.BYTES else _one).decode(body), 0, intake)
    except Refusal as refused:
        refuse([(0, str(refused))])
    except (msgspec.DecodeError, RecursionError):
        pass
    if _REFERENCE in body:
        with suppress(Refusal):  # the other decoder finds the reason again
            return read(body, 0, intake)
    return None


def read(raw: Any, index: int, intake: Intake) -> Single:
    """Decodes and checks one message. Raises Refusal, MessageTooLarge."""
    message = _decoded(raw, index, intake)
    return message if isinstance(message, Single) else check(message, index, intake)


def _decoded(raw: Any, index: int, intake: Intake) -> Message | Single:
    """Decodes a message, and checks one that has a `reference`. Raises Refusal, MessageTooLarge."""
    try:
        return decode_one(raw, intake.layout.format)
    except RecursionError:
        raise Refusal(json_values.TOO_DEEP) from None
    except msgspec.DecodeError as error:
        fields = _fields_of(raw)
        if "reference" not in fields:
            given, wanted = (
                ("value", "value_base64") if intake.layout.format is Format.BYTES else ("value_base64", "value")
            )
            if given in fields and wanted not in fields:
                python = "" if wanted == "value_base64" else " (in Python, text, a number, a list or a dict, not bytes)"
                raise Refusal(
                    f"messages of a {intake.layout.format} topic need the field `{wanted}`, not `{given}`{python}"
                ) from None
            raise Refusal(in_words(error, _NAMES if index == 0 else ())) from None
        return _read_reference(raw, fields, index, intake)


def _read_reference(raw: Any, fields: Mapping[str, Any], index: int, intake: Intake) -> Single:
    """Decodes and checks a message with a `reference`. Raises Refusal, MessageTooLarge."""
    if bytes(fields["reference"]) == b"null":
        return read(msgspec.json.encode({name: fields[name] for name in fields if name != "reference"}), index, intake)
    if beside := fields.keys() & {"value", "value_base64"}:
        raise Refusal(
            f"the message has both a reference and the field {min(beside)}; a message must have either a value "
            "or a reference"
        )
    if intake.layout.format is Format.TYPED:
        raise Refusal("messages of json and bytes topics can have a reference, but messages of a typed topic cannot")
    try:
        message = decode_reference(raw)
    except msgspec.DecodeError as error:
        raise Refusal(in_words(error)) from None
    headers = message.headers or None
    _check_beside(message.key, headers, index, intake)
    timestamp_us, expires_us = _times(message, intake)
    return Single(message.key, None, headers, timestamp_us, expires_us, message.reference.upload_id)


def check(message: Message, index: int, intake: Intake) -> Single:
    """Checks a decoded message. Raises Refusal, MessageTooLarge."""
    one = _check_envelope(message, index, intake)
    one.key = check_value(one.value or b"", one.key, intake)
    return one


def _check_envelope(message: Message, index: int, intake: Intake) -> Single:
    """Checks a decoded message, but not the content of its value. Raises Refusal, MessageTooLarge."""
    value, key, headers = bytes(message.value), message.key, message.headers or None
    limit = intake.max_message_bytes
    if len(value) > limit:
        raise too_large("the value", len(value), limit, index)
    if headers or (key and 4 * len(key) > limit):  # a character has at most four bytes
        _check_beside(key, headers, index, intake)
    if message.timestamp is None and message.expires_in_s is None:
        return Single(key, value, headers, intake.now_us, None)
    timestamp_us, expires_us = _times(message, intake)
    return Single(key, value, headers, timestamp_us, expires_us)


def _check_beside(key: str | None, headers: dict[str, str] | None, index: int, intake: Intake) -> None:
    beside = len(key.encode()) if key else 0
    if headers:
        beside += sum(len((name + text).encode()) for name, text in headers.items())
    if beside > intake.max_message_bytes:
        raise too_large("key and headers", beside, intake.max_message_bytes, index)


def _times(message: Message | ReferenceEnvelope, intake: Intake) -> tuple[int, int | None]:
    """Returns `_timestamp` and `_expires`. Raises Refusal."""
    timestamp_us, expires_us = intake.now_us, None
    if message.timestamp is not None:
        timestamp_us = (message.timestamp - EPOCH) // dt.timedelta(microseconds=1)
        check_time(timestamp_us, intake.judged_from_us)
    if message.expires_in_s is not None:
        expires_us = intake.lifetime_from_us + round(lifetime_s(message.expires_in_s) * 1e6)
    return timestamp_us, expires_us


def check_value(value: bytes, key: str | None, intake: Intake) -> str | None:
    """Checks the value of a message, and returns the message's key. Raises Refusal."""
    layout, field = intake.layout, intake.key_field
    row = typed_values.columns_of_one(value, layout.values) if layout.format is Format.TYPED else []
    if layout.format is Format.JSON and (blemish := json_values.blemish(value)):
        raise Refusal(blemish)
    if field is None:
        return key
    try:
        if layout.format is Format.TYPED:
            return json_values.agree_on_key(key, typed_values.keys_of(row, layout.values, field)[0].as_py(), field)
        return json_values.agree_on_key(key, json_values.key_in(value, field), field)
    except msgspec.ValidationError as error:
        raise Refusal(f"{field} is not valid: {in_words(error)}") from None
    except ValueError as error:
        raise Refusal(str(error)) from None


def check_time(timestamp_us: int, judged_from_us: int) -> None:
    """Raises Refusal for a timestamp that is too far ahead, or before the year 1."""
    if timestamp_us > judged_from_us + MAX_AHEAD_US:
        raise Refusal("timestamp is more than one hour ahead of the cluster's time")
    if timestamp_us < MIN_US:
        raise Refusal("timestamp is before the year 1")


def row_by_row(messages: Iterable[tuple[int, Any]], intake: Intake) -> pa.RecordBatch:
    """Returns the rows of messages that may not be valid: JSON texts or envelopes, each with its index for errors.

    Raises InvalidMessages, which names the invalid ones, MessageTooLarge, InvalidRequest for none or too many.
    """
    if intake.layout.format is Format.TYPED:
        return _typed_rows(messages, intake)
    taken: list[Single] = []
    errors: list[tuple[int, str]] = []
    for index, raw in messages:
        try:
            bare = isinstance(raw, Envelope)
            taken.append(check(raw, index, intake) if bare else read(raw, index, intake))
        except Refusal as refused:
            errors.append((index, str(refused)))
        if len(errors) >= MAX_INVALID or len(taken) > MAX_ROWS:
            break
    check_count(len(taken) + len(errors))
    refuse(errors)
    return rows_of_singles(taken, intake.layout)


def _typed_rows(messages: Iterable[tuple[int, Any]], intake: Intake) -> pa.RecordBatch:
    """Returns the rows as `row_by_row`, for a typed topic. To check a typed value alone takes twenty times as long as
    among others."""
    taken: list[Single] = []
    errors: list[tuple[int, str]] = []
    waiting: list[tuple[int, Single]] = []
    for index, raw in messages:
        try:
            found = raw if isinstance(raw, Envelope) else _decoded(raw, index, intake)
            waiting.append((index, found if isinstance(found, Single) else _check_envelope(found, index, intake)))
        except Refusal as refused:
            errors.append((index, str(refused)))
        if len(waiting) >= TOGETHER:
            taken += _with_values(waiting, intake, errors)
            waiting = []
        if len(errors) >= MAX_INVALID or len(taken) > MAX_ROWS:
            break
    taken += _with_values(waiting, intake, errors)
    check_count(len(taken) + len(errors))
    refuse(sorted(errors)[:MAX_INVALID])
    return rows_with_values(taken, typed_values.columns([t.value for t in taken], intake.layout.values), intake.layout)


def _with_values(checked: Sequence[tuple[int, Single]], intake: Intake, errors: list[tuple[int, str]]) -> list[Single]:
    """Returns the messages with their keys, but for those whose values are refused, which are added to `errors`. Where
    they are not valid as a whole, the first to go are those that are no rows of the schema: most that is invalid is
    not, and to find that out costs little. What is left is halved."""
    if len(checked) <= ALONE:
        return _by_halves(checked, intake, errors)
    found = _together(checked, intake)
    if found is not None:
        return found
    rows = []
    for index, one in checked:
        try:
            typed_values.decode_value(one.value or b"", intake.layout.values)
        except Refusal as refused:
            errors.append((index, str(refused)))
        else:
            rows.append((index, one))
    return _by_halves(rows, intake, errors)


def _by_halves(checked: Sequence[tuple[int, Single]], intake: Intake, errors: list[tuple[int, str]]) -> list[Single]:
    """Does as `_with_values`: halves messages that are not valid as a whole, until few are left to be checked
    singly."""
    if len(checked) <= ALONE:
        found = []
        for index, one in checked:
            try:
                one.key = check_value(one.value or b"", one.key, intake)
            except Refusal as refused:
                errors.append((index, str(refused)))
            else:
                found.append(one)
        return found
    together = _together(checked, intake)
    if together is not None:
        return together
    half = len(checked) // 2
    return _by_halves(checked[:half], intake, errors) + _by_halves(checked[half:], intake, errors)


def _together(checked: Sequence[tuple[int, Single]], intake: Intake) -> list[Single] | None:
    """Returns the messages with their keys; None if one of them may be refused."""
    if not checked:
        return []
    texts, explicit = [one.value for _, one in checked], [one.key for _, one in checked]
    try:
        values = values_of(texts, intake)
        keyed = explicit if intake.key_field is None else _field_keys(explicit, texts, values, intake).to_pylist()
    except GIVEN_UP:
        return None
    for (_, one), key in zip(checked, keyed, strict=True):
        one.key = key
    return [one for _, one in checked]


def _fields_of(raw: Any) -> dict[str, Any]:
    """Returns the fields of a message that could not be decoded; none if it is not an object."""
    try:
        return _fields.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return {}


def _field_keys(explicit: list[str | None], texts: Sequence[Any], values: list[pa.Array], intake: Intake) -> pa.Array:
    field = intake.key_field
    assert field is not None
    if intake.layout.format is Format.TYPED:
        found = typed_values.keys_of(values, intake.layout.values, field)
    else:
        found = pa.array(json_values.keys_in(texts, field), pa.string())
    return agree(pa.array(explicit, pa.string()), found) if any_there(explicit) else found


def agree(explicit: pa.Array, found: pa.Array) -> pa.Array:
    """Merges the explicit keys with those of the key field. Raises Doubt if two differ."""
    if pc.any(pc.not_equal(explicit, found)).as_py():
        raise Doubt
    return pc.coalesce(explicit, found)


def _timestamps(moments: list[dt.datetime | None], intake: Intake) -> pa.Array:
    if not any_there(moments):
        return microseconds(np.full(len(moments), intake.now_us, np.int64))
    column = pa.array(moments, TIMESTAMP).cast(pa.int64())
    for bound in pc.min_max(column).as_py().values():
        check_time(bound, intake.judged_from_us)
    column = column.fill_null(intake.now_us)
    return column.cast(TIMESTAMP)


def lifetime_s(given: float | str) -> float:
    """Returns the seconds of a lifetime, which the decoder has checked if it is a number. Raises Refusal."""
    if not isinstance(given, str):
        return given
    try:
        found = seconds_of(given)
    except ValueError as error:
        raise Refusal(f"expires_in_s {error}") from None
    if not 0 < found <= MAX_EXPIRES_S:
        raise Refusal(f"expires_in_s must be more than 0 and at most {MAX_EXPIRES_S} seconds, not {given[:SHOWN]!r}")
    return found


def _expiries(given: list[float | str | None], intake: Intake) -> pa.Array | None:
    if not any_there(given):
        return None
    try:
        column = pa.array(given, pa.float64())
    except pa.ArrowInvalid:
        column = pa.array([None if one is None else lifetime_s(one) for one in given], pa.float64())
    ends = intake.lifetime_from_us + np.rint(column.fill_null(0).to_numpy() * 1e6).astype(np.int64)
    return pc.if_else(column.is_valid(), microseconds(ends), pa.scalar(None, TIMESTAMP))

"""Decodes request bodies: the content encoding within a bound, then the messages of a publish, by the content type, to
the rows of a layout. Pure functions over hostile bytes.

Arrow's codecs decode gzip and zstd, which release the GIL. They stop at the bound, so that a decompression bomb costs
no more than a body of the largest allowed size.

The fast path decodes all messages at once into columns. If it gives up, the slow path decodes one message after the
other, so that an answer can name all messages that are not valid; the slow path also accepts valid messages that the
fast path cannot decode.

Hints explain bodies that are no messages: values without an envelope, lines that were joined or cut, JSON over several
lines. No body is decoded by a guess: only the error says more.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from seaweedq.errors import (
    InvalidMessages,
    InvalidRequest,
    RequestTooLarge,
    UnreadableBody,
    UnsupportedContentType,
    UnsupportedEncoding,
)
from seaweedq.json_reasons import in_words
from seaweedq.rows import envelopes, json_values
from seaweedq.rows.arrow_bodies import decode_arrow
from seaweedq.rows.envelopes import Envelope
from seaweedq.rows.intake import Doubt, Intake, check_count, too_large
from seaweedq.segments.layout import Format
from seaweedq.segments.rows import Single, binaries, rows_of_singles, together

FORM = "application/x-www-form-urlencoded"
JSON, NDJSON, ARROW = "application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"
SUPPORTED = (JSON, NDJSON, ARROW)

SLICE_BYTES = 256 * 1024  # of lines that are decoded at a time
_NEWLINE, _OPEN, _CLOSE = b"\n{}"

_raws = msgspec.json.Decoder(list[msgspec.Raw])
SHOWN_BYTES = 200
_MEMBERS = frozenset(("value", "value_base64", "reference", "messages"))
_OF_BYTES = frozenset(("value_base64", "reference"))
_IN_BASE64 = "the bytes of a message are base64 in `value_base64`; the Python client takes them as `bytes`"
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_any = msgspec.json.Decoder(msgspec.Raw)
_UNREADABLE = (msgspec.DecodeError, RecursionError)
ENCODINGS = ("gzip", "zstd")
_CODECS = {"gzip": "gzip", "x-gzip": "gzip", "zstd": "zstd"}


def decode(
    content_type: str | None, body: bytes, intake: Intake, bare: bool = False, key: str | None = None
) -> pa.RecordBatch:
    """Returns the rows of a publish. With `bare` lines of NDJSON are values; `key` is the key of a raw body.

    Raises UnsupportedContentType, and the errors of the decoder of that type.
    """
    match media_type(content_type):
        case "application/json":
            with _explained(lambda _: body_hint(body, intake.layout.format)):
                return decode_json(body, intake)
        case "application/x-ndjson":
            with _explained(
                lambda n: line_hint(bytes(body).split(b"\n", n + 1)[n].strip(), bare, intake.layout.format)
            ):
                return decode_ndjson(body, intake, bare)
        case "application/vnd.apache.arrow.stream":
            return decode_arrow(body, intake)
    if intake.layout.format is Format.BYTES:
        return decode_raw(body, key, intake)
    detail = f"the content type {content_type!r} is not one of {', '.join(SUPPORTED)}; other types need a bytes topic"
    if hint := type_hint(body, media_type(content_type) == FORM):
        detail += f"; {hint}"
    raise UnsupportedContentType(detail, supported=list(SUPPORTED))


@contextmanager
def _explained(hint: Callable[[int], str | None]) -> Iterator[None]:
    """Adds to an error a hint that mends it; `hint` takes the index of the first message that is not valid."""
    try:
        yield
    except InvalidMessages as error:
        first = error.fields["errors"][0]["index"]
        if found := hint(first):
            raise InvalidMessages(f"{error.detail}; {found}", **error.fields, hint=found) from None
        raise
    except UnreadableBody as error:
        if found := hint(0):
            raise UnreadableBody(f"{error.detail}; {found}", **error.fields, hint=found) from None
        raise


def media_type(content_type: str | None) -> str:
    """Returns the content type without its parameters, in lower case."""
    return (content_type or "").partition(";")[0].strip().lower()


def decode_json(body: bytes, intake: Intake) -> pa.RecordBatch:
    """Returns the rows of one message, or of `{"messages": [...]}`.

    Raises UnreadableBody, InvalidRequest, InvalidMessages, MessageTooLarge.
    """
    with suppress(*envelopes.GIVEN_UP):  # behind the block nothing of the fast path is in memory any more
        return envelopes.columns_of(envelopes.decode_many(body, intake.layout.format), intake)
    return envelopes.row_by_row(enumerate(_messages(body)), intake)


def decode_ndjson(body: bytes, intake: Intake, bare: bool = False) -> pa.RecordBatch:
    """Returns the rows of one message a line, or with `bare` of one value a line. Errors count empty lines too.

    Raises InvalidRequest, InvalidMessages (index: the line, from 0), MessageTooLarge.
    """
    if bare and intake.layout.format is Format.BYTES:
        raise InvalidRequest(
            "bare lines are JSON values, which a bytes topic cannot store; send messages with value_base64",
            field="bare",
        )
    body = bytes(body).replace(b"\r\n", b"\n")
    with suppress(*envelopes.GIVEN_UP):  # as above
        return _bare_columns(body, intake) if bare else _line_columns(body, intake)
    lines = enumerate(line.strip(b" \t\r\n") for line in BytesIO(body))  # a list of them takes ten times the body
    return envelopes.row_by_row(((i, Envelope(msgspec.Raw(s)) if bare else s) for i, s in lines if s), intake)


def decode_raw(body: bytes, key: str | None, intake: Intake) -> pa.RecordBatch:
    """Returns the one row of a bytes topic whose value is the body. Raises MessageTooLarge."""
    for what, size in (("the value", len(body)), ("the key", len((key or "").encode()))):
        if size > intake.max_message_bytes:
            raise too_large(what, size, intake.max_message_bytes, 0)
    return rows_of_singles([Single(key, bytes(body), None, intake.now_us, None)], intake.layout)


def _messages(body: bytes) -> list[Any]:
    """Returns the messages of a JSON body, not decoded. Raises UnreadableBody, InvalidRequest."""
    try:
        fields = _fields.decode(body)
        if "messages" not in fields:
            return [body]
        if len(fields) > 1:
            raise InvalidRequest("a body with the field `messages` must not have other fields", field="messages")
        return _raws.decode(fields["messages"])
    except msgspec.ValidationError as error:
        raise InvalidRequest(f'the body is neither a message nor {{"messages": [...]}}: {in_words(error)}') from None
    except msgspec.DecodeError as error:
        raise UnreadableBody(f"the body is {in_words(error)}") from None
    except RecursionError:
        raise InvalidRequest(f"the body is {json_values.TOO_DEEP}", bound=json_values.MAX_DEPTH) from None


def _line_columns(body: bytes, intake: Intake) -> pa.RecordBatch:
    """Decodes NDJSON on the fast path. msgspec ignores where lines end, so the line ends are checked first.

    Each newline has to stand between `}` and `{`. In valid JSON that is never inside of an object, so every newline
    ends a message, and with as many messages as lines each line is one message.
    """
    body = body.rstrip(b" \t\r\n")
    data = np.frombuffer(body, np.uint8)
    ends = np.flatnonzero(data == _NEWLINE)
    if len(ends) and not ((data[ends - 1] == _CLOSE).all() and (data[ends + 1] == _OPEN).all()):
        raise Doubt
    check_count(len(ends) + 1)  # none of the lines is empty

    def decode_lines(lines: bytes, count: int) -> pa.RecordBatch:
        found = envelopes.decode_lines(lines, intake.layout.format)
        if len(found) != count:
            raise Doubt
        return envelopes.columns_of(found, intake)

    return _by_slices(body, ends, decode_lines, intake)


def _bare_columns(body: bytes, intake: Intake) -> pa.RecordBatch:
    """Decodes bare NDJSON on the fast path: the lines may be joined only once each is known to be one JSON text."""
    body = body.rstrip(b"\n")
    ends = np.flatnonzero(np.frombuffer(body, np.uint8) == _NEWLINE)
    check_count(len(ends) + 1)

    def decode_lines(lines: bytes, count: int) -> pa.RecordBatch:
        values = lines.split(b"\n")
        if not json_values.are_json(binaries(values, pa.string())):
            raise Doubt
        return envelopes.columns_of([Envelope(value) for value in values], intake)  # type: ignore[arg-type]

    return _by_slices(body, ends, decode_lines, intake)


def _by_slices(
    body: bytes,
    ends: "np.ndarray[Any, np.dtype[np.int64]]",
    decode_lines: Callable[[bytes, int], pa.RecordBatch],
    intake: Intake,
) -> pa.RecordBatch:
    """Decodes lines, which stop at `ends`, slice by slice: Python holds a line as 20 times as much, and Arrow does not.

    `decode_lines` takes the text of some lines, and their number.
    """
    parts: list[pa.RecordBatch] = []
    begin = line = 0
    while line <= len(ends):
        last = min(int(np.searchsorted(ends, begin + SLICE_BYTES)), len(ends))  # the one that fills the slice
        end = int(ends[last]) if last < len(ends) else len(body)
        parts.append(decode_lines(body[begin:end], last + 1 - line))
        begin, line = end + 1, last + 1
    return together(parts, intake.layout)


def line_hint(line: bytes, bare: bool, format: Format) -> str | None:
    """Returns a hint that mends a line of NDJSON that is not valid as a message, or with `bare` as a value; None if
    unknown.

    The hint shows a line of up to SHOWN_BYTES as it would have to be.
    """
    if not _is_json(line):
        return _of_broken_line(line)
    if format is Format.BYTES and not bare:
        return None if _fields_of(line) & _OF_BYTES else f"each line must be a message; {_IN_BASE64}"
    if bare or not _lacks_envelope(line):
        return None
    return f"if each line is a value, add ?bare=true to the URL; otherwise this line must be {_enveloped(line)}"


def body_hint(body: bytes, format: Format) -> str | None:
    """Returns a hint that mends a JSON body that is neither a message nor `{"messages": [...]}`; None if unknown."""
    if not _is_json(body):
        joined = any(map(_is_json, body.lstrip().split(b"\n", 1)[:1])) and b"\n" in body.strip()
        return (
            "the body has one JSON text per line: send it with the content type application/x-ndjson"
            if joined
            else None
        )
    if format is Format.BYTES:
        return None if _fields_of(body) & (_OF_BYTES | {"messages"}) else _IN_BASE64
    if not _lacks_envelope(body):
        return None
    return f"if the body is a value, it must be {_enveloped(body)}"


def type_hint(body: bytes, is_form: bool) -> str | None:
    """Returns which content type a body seems to have that came under another one; a form's is the one that curl sends
    if none is given. None if unknown."""
    told = ["curl sends it unless you pass `-H 'content-type: ...'`"] if is_form else []
    first = body.lstrip().split(b"\n", 1)[0].strip()
    if _is_json(body):
        told.append("the body looks like JSON: send it with `-H 'content-type: application/json'`")
    elif _is_json(first) or _joined(first):
        told.append("the body looks like lines of JSON: send it with `-H 'content-type: application/x-ndjson'`")
        told += [hint for hint in [_of_broken_line(first)] if hint and _joined(first)]
    return "; ".join(told) or None


def _of_broken_line(line: bytes) -> str | None:
    if _joined(line):
        return "the line has several JSON texts: curl's `-d @file` removes line ends, `--data-binary @file` keeps them"
    if line[:1] in (b"{", b"[") and line[-1:] not in (b"}", b"]"):
        return (
            "the line is cut off, or a JSON text spans several lines: each line must be a whole JSON text, as `jq "
            "-c .` prints it"
        )
    return None


def _joined(line: bytes) -> bool:
    """Returns whether the line is at least two JSON objects."""
    try:
        msgspec.json.Decoder(msgspec.Raw).decode_lines(line)
    except _UNREADABLE:
        return False
    return line[:1] == b"{"


def _lacks_envelope(text: bytes) -> bool:
    """Returns whether a JSON text is neither a message nor several: no object, or one without any of _MEMBERS."""
    return not _MEMBERS & _fields_of(text)


def _fields_of(text: bytes) -> frozenset[str]:
    """Returns the names of the members of a JSON text; none of one that is no object."""
    try:
        return frozenset(_fields.decode(text))
    except _UNREADABLE:
        return frozenset()


def _is_json(text: bytes) -> bool:
    try:
        _any.decode(text)
    except _UNREADABLE:
        return False
    return True


def _enveloped(text: bytes) -> str:
    shown = text.strip() if len(text) <= SHOWN_BYTES else text.strip()[:SHOWN_BYTES] + b"..."
    return f'{{"value": {shown.decode(errors="replace")}}}'


def decode_body(body: bytes, encoding: str | None, limit_bytes: int) -> bytes:
    """Returns the body without its `Content-Encoding`, at most `limit_bytes` long.

    Raises RequestTooLarge, UnsupportedEncoding (unknown, or more than one), UnreadableBody (damaged, cut short).
    """
    codec = (encoding or "identity").strip().lower()
    if codec == "identity":
        decoded = body
    elif codec in _CODECS:
        decoded = _decompress(body, _CODECS[codec], limit_bytes)
    else:
        detail = f"the content encoding {encoding!r} is not supported; use {' or '.join(ENCODINGS)}, or none"
        raise UnsupportedEncoding(detail, supported=list(ENCODINGS))
    if len(decoded) > limit_bytes:
        detail = f"the decoded body has more than {limit_bytes} bytes; split it, or upload large payloads"
        raise RequestTooLarge(detail, limit_bytes=limit_bytes)
    return decoded


def _decompress(body: bytes, codec: str, limit_bytes: int) -> bytes:
    """Decodes at most one byte more than the limit. An empty body is not a valid frame of either codec."""
    if not body:
        raise UnreadableBody(f"the body is empty, which is not valid {codec}")
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            return bytes(stream.read(limit_bytes + 1))
    except (OSError, pa.ArrowException) as error:
        raise UnreadableBody(f"the body is not valid {codec}: {error}") from None

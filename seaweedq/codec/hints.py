"""Explains bodies that are no messages: values without an envelope, lines that were joined or cut, JSON over several
lines. Pure functions over hostile bytes; the meaning of a body is never guessed, only the error says more.
"""

import msgspec

from seaweedq.segments.layout import Format

SHOWN_BYTES = 200
_MEMBERS = frozenset(("value", "value_base64", "reference", "messages"))
_OF_BYTES = frozenset(("value_base64", "reference"))
_IN_BASE64 = "the bytes of a message are base64 in `value_base64`; the Python client takes them as `bytes`"
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_any = msgspec.json.Decoder(msgspec.Raw)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def of_line(line: bytes, bare: bool, format: Format) -> str | None:
    """Returns what mends a line of NDJSON that is not valid as a message, or with `bare` as a value; None if unknown.

    The hint shows a line of up to SHOWN_BYTES as it would have to be.
    """
    if not _is_json(line):
        return _of_broken_line(line)
    if format is Format.BYTES and not bare:
        return None if _fields_of(line) & _OF_BYTES else f"each line has to be a message; {_IN_BASE64}"
    if bare or not _lacks_envelope(line):
        return None
    return f"if each line is a value, add ?bare=true to the URL; else this line has to be {_enveloped(line)}"


def of_body(body: bytes, format: Format) -> str | None:
    """Returns what mends a JSON body that is neither a message nor `{"messages": [...]}`; None if unknown."""
    if not _is_json(body):
        joined = any(map(_is_json, body.lstrip().split(b"\n", 1)[:1])) and b"\n" in body.strip()
        return "the body has one JSON text a line: its content type is application/x-ndjson" if joined else None
    if format is Format.BYTES:
        return None if _fields_of(body) & (_OF_BYTES | {"messages"}) else _IN_BASE64
    if not _lacks_envelope(body):
        return None
    return f"if the body is a value, it has to be {_enveloped(body)}"


def of_type(body: bytes, is_form: bool) -> str | None:
    """Returns which content type a body seems to have that came under another one; a form's is what curl sends where
    none is given. None if unknown."""
    told = ["curl sends it where no `-H 'content-type: ...'` is given"] if is_form else []
    first = body.lstrip().split(b"\n", 1)[0].strip()
    if _is_json(body):
        told.append("the body looks like JSON: send it with `-H 'content-type: application/json'`")
    elif _is_json(first) or _joined(first):
        told.append("the body looks like lines of JSON: send it with `-H 'content-type: application/x-ndjson'`")
        told += [hint for hint in [_of_broken_line(first)] if hint and _joined(first)]
    return "; ".join(told) or None


def _of_broken_line(line: bytes) -> str | None:
    if _joined(line):
        return (
            "several JSON texts stand in one line: curl's `-d @file` removes line ends, `--data-binary @file` does not"
        )
    if line[:1] in (b"{", b"[") and line[-1:] not in (b"}", b"]"):
        return (
            "the line is cut off, or one JSON text stands on several lines: each line has to be a whole one, "
            "as `jq -c .` prints it"
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

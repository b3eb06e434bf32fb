"""The options of the data source, as it is read and as it is written. Pure; every error names the option, its value and
the allowed ones.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any

from seaweedq.client.core.calls import Expired
from seaweedq.client.core.table import check_expired, check_order

MIB = 1024 * 1024
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAMES = (
    "url",
    "topic",
    "columns",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "minPartitions",
    "maxBytesPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "includeTail",
    "storageOptions",
    "expired",
)
WRITE_NAMES = ("url", "topic", "maxFileBytes", "writeId", "writeNumber", "invalidRows")
_OF_SPARK = ("checkpointlocation", "queryname")  # which Spark hands on to the sink of a stream
STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
BATCH_ONLY = ("endingOffsets", "endingTimestamp")
FAIL = "fail"  # of `invalidRows`: no topic gets them
STREAMS, JOBS = "spark.", "job."  # begin the names of writers that are made here: of streams, and of single writes
OWN_WRITERS = (STREAMS, JOBS)
_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
_UNITS_B = {"": 1, "k": 1024, "m": MIB, "g": 1024 * MIB}


@dataclass(frozen=True)
class Options:
    """The options as they were given; `starting` and `ending` are a word, offsets by segment, or a time."""

    url: str
    topic: str
    columns: tuple[str, ...] | None = None
    starting: str | Mapping[int, int] | datetime | None = None
    ending: str | Mapping[int, int] | datetime | None = None
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_bytes_per_partition: int = 128 * MIB
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_trigger_delay_s: float = 900
    include_tail: bool = True
    storage: Mapping[str, Any] = field(default_factory=dict)
    expired: Expired = "skip"
    given: frozenset[str] = frozenset()

    @staticmethod
    def parse(options: Mapping[str, str]) -> "Options":
        """Parses options by their names, in any case. Raises ValueError."""
        given = _given(options, NAMES)
        made = Options(
            _url(given),
            given["topic"],
            _columns(given.get("columns")),
            _bound(given, "starting", ("earliest", "latest")),
            _bound(given, "ending", ("latest",)),
            _truth(given, "failOnDataLoss", True),
            _count(given, "minPartitions"),
            _bytes(given, "maxBytesPerPartition", 128 * MIB),
            _count(given, "maxOffsetsPerTrigger"),
            _count(given, "minOffsetsPerTrigger"),
            _seconds(given, "maxTriggerDelay", 900),
            _truth(given, "includeTail", True),
            _object(given, "storageOptions"),
            _expired(given),
            frozenset(given),
        )
        kind = "Timestamp" if isinstance(made.starting, datetime) else "Offsets"
        check_order(made.starting, made.ending, (f"starting{kind}", f"ending{kind}"))
        if made.max_offsets is not None and (made.min_offsets or 0) > made.max_offsets:
            raise ValueError(
                f"minOffsetsPerTrigger must be at most maxOffsetsPerTrigger={made.max_offsets}, not {made.min_offsets}"
            )
        return made

    def check(self, *refused: str, of: str) -> None:
        """Raises ValueError if an option was given that makes no sense for this kind of query."""
        for name in refused:
            if name in self.given:
                raise ValueError(f"the option {name} cannot be used for {of}")


@dataclass(frozen=True)
class WriteOptions:
    """The options of a write. `write_id` and `write_number` name it, if it is to be taken once however often it is
    tried; `invalid_rows` is the topic that gets what the other one refuses, None if that fails the write."""

    url: str
    topic: str
    max_file_bytes: int = 256 * MIB
    write_id: str | None = None
    write_number: int = 0
    invalid_rows: str | None = None

    @staticmethod
    def parse(options: Mapping[str, str]) -> "WriteOptions":
        """Parses options by their names, in any case. Raises ValueError."""
        given = _given({name: text for name, text in options.items() if name.lower() not in _OF_SPARK}, WRITE_NAMES)
        invalid: str | None = given.get("invalidRows", FAIL)
        if invalid == given["topic"]:
            raise ValueError(
                f"invalidRows is {invalid!r}, which is also the topic to which the valid rows are "
                f"written; invalidRows must be {FAIL!r} or another topic"
            )
        return WriteOptions(
            _url(given),
            given["topic"],
            _bytes(given, "maxFileBytes", 256 * MIB),
            *_write_name(given),
            None if invalid == FAIL else invalid,
        )


def _given(options: Mapping[str, str], allowed: Sequence[str]) -> dict[str, str]:
    """Returns the options by their official names. There is a topic among them."""
    names = {name.lower(): name for name in allowed}
    given = {_official_name(name, names): value for name, value in options.items()}
    if not given.get("topic"):
        raise ValueError("the option topic is missing; set it to the name of a topic")
    return given


def _url(given: Mapping[str, str]) -> str:
    url = given.get("url") or os.environ.get("SEAWEEDQ_URL")
    if not url:
        raise ValueError("the option url is missing, and SEAWEEDQ_URL is not set")
    return url


def _write_name(given: Mapping[str, str]) -> tuple[str | None, int]:
    writer, number = given.get("writeId"), given.get("writeNumber")
    if (writer is None) != (number is None):
        there, missing = ("writeId", "writeNumber") if number is None else ("writeNumber", "writeId")
        raise ValueError(f"the option {there} is set, but {missing} is not; a write needs both options or neither")
    if writer is None or number is None:
        return None, 0
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,128}", writer) or writer.startswith(OWN_WRITERS):
        raise ValueError(
            f"writeId is {writer!r}; writeId must have 1 to 128 of the characters A-Z, a-z, 0-9, '.', "
            f"'_' and '-', and must not begin with {' or '.join(map(repr, OWN_WRITERS))}"
        )
    if not re.fullmatch(r"[0-9]{1,19}", number) or int(number) >= 2**63:
        raise ValueError(f"writeNumber must be a whole number of at least 0 and below 2^63, not {number!r}")
    return writer, int(number)


def _official_name(name: str, names: Mapping[str, str]) -> str:
    if name.lower() in names:
        return names[name.lower()]
    if name.lower() == "pushdown" and "columns" in names:
        raise ValueError(
            "there is no option 'pushdown', because Spark up to 4.3.0 has a bug: Spark applies one "
            "query's filters to other queries of the same DataFrame, which then return wrong rows. "
            "To read fewer rows, use the options for offsets, times and columns, or use read_topic, "
            "which filters rows correctly"
        )
    nearest = get_close_matches(name.lower(), names, 1, 0) or ["topic"]
    raise ValueError(
        f"there is no option {name!r}; the nearest is {names[nearest[0]]!r}. The options are: "
        f"{', '.join(names.values())}"
    )


def _columns(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    if not text.strip():
        return ()
    detail = f"columns must be names of columns, each once, separated by commas, or a JSON list, not {text!r}"
    try:
        names = json.loads(text) if text.lstrip().startswith("[") else [each.strip() for each in text.split(",")]
    except ValueError:
        raise ValueError(detail) from None
    if not all(isinstance(each, str) and each for each in names) or len(set(names)) < len(names):
        raise ValueError(detail)
    return tuple(names)


def _bound(given: Mapping[str, str], which: str, words: tuple[str, ...]) -> Any:
    offsets, time = given.get(f"{which}Offsets"), given.get(f"{which}Timestamp")
    if offsets is not None and time is not None:
        raise ValueError(f"{which}Offsets and {which}Timestamp cannot be combined")
    if time is not None:
        return _time(f"{which}Timestamp", time)
    if offsets is None or offsets in words:
        return offsets
    return _offsets(f"{which}Offsets", offsets, words)


def _offsets(name: str, text: str, words: tuple[str, ...]) -> dict[int, int]:
    try:
        found = json.loads(text)
        if not isinstance(found, dict) or not all(type(offset) is int and offset >= 0 for offset in found.values()):
            raise ValueError
        return {int(segment): offset for segment, offset in found.items()}
    except ValueError:
        allowed = ", ".join(map(repr, words))
        detail = f'{name} must be {allowed}, or JSON of segments and offsets such as {{"3": 100}}, not {text!r}'
        raise ValueError(detail) from None


def _time(name: str, text: str) -> datetime:
    try:
        if re.fullmatch(r"[0-9]{1,15}", text):
            return EPOCH + timedelta(milliseconds=int(text))
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{name} must be milliseconds since 1970, or a time such as '2026-01-31T12:00:00Z', not {text!r}")


def _truth(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise ValueError(f"{name} must be true or false, not {text!r}")
    return text == "true"


def _expired(given: Mapping[str, str]) -> Expired:
    text: Any = given.get("expired", "skip").lower()
    check_expired(text)
    found: Expired = text
    return found


def _count(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, not {text!r}")
    return int(text)


def _bytes(given: Mapping[str, str], name: str, default: int) -> int:
    match = re.fullmatch(r"([0-9]{1,18})([kmg]?)b?", given.get(name, str(default)).lower())
    if not match or not int(match[1]):
        raise ValueError(f"{name} must be a number of bytes, such as 134217728 or 128m, not {given[name]!r}")
    return int(match[1]) * _UNITS_B[match[2]]


def _seconds(given: Mapping[str, str], name: str, default: float) -> float:
    if name not in given:
        return default
    match = re.fullmatch(r"([0-9]{1,9})(ms|s|m|h)", given[name])
    if not match:
        raise ValueError(f"{name} must be a duration such as 500ms, 30s, 15m or 1h, not {given[name]!r}")
    return int(match[1]) * _UNITS_S[match[2]]


def _object(given: Mapping[str, str], name: str) -> dict[str, Any]:
    text = given.get(name, "{}")
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{name} is not a JSON object")  # never its text, which may be a secret
    return found

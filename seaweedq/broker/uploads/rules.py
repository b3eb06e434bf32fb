"""What is decided about uploads, without I/O: names, sizes of parts, states, and what the sweep does with a record.

An upload's id holds the date and the incarnation of its topic. So the object's name follows from topic and id alone,
also when the record has gone; and what a deletion finds in a topic's folder tells whether it is that topic's, or one's
of the same name that came later.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Literal

import msgspec

from seaweedq.coordination.records import TopicConfig, UploadRecord
from seaweedq.errors import InvalidRequest, PayloadTooLarge, UploadConflict
from seaweedq.settings import Settings
from seaweedq.storage.interface import Part

FOLDER = "_payloads/"
MIB, GIB = 1024**2, 1024**3
MAX_PUT_BYTES = 5 * GIB  # S3's bounds
MIN_PART_BYTES, MAX_PARTS = 5 * MIB, 10_000
PART_BYTES = 16 * MIB  # of parts, where more of them are not needed
LATE_S = 86_400  # how long a put may go on behind the last moment in which it could begin
NAMED = 100  # missing parts that an error names
_ID = re.compile(r"(?P<date>[0-9]{8})-(?P<incarnation>0|[1-9][0-9]{0,9})-[0-9a-f]{32}")


def upload_id(now_us: int, incarnation: int, nonce: str) -> str:
    """The id of a new upload; `nonce` are 32 hexadecimal digits."""
    return f"{datetime.fromtimestamp(now_us / 1e6, UTC):%Y%m%d}-{incarnation}-{nonce}"


def incarnation_of(upload: str) -> int | None:
    """The incarnation that an upload's id is of; None where it is no id."""
    found = _ID.fullmatch(upload)
    return int(found["incarnation"]) if found else None


def folder(topic: str) -> str:
    """What the names of a topic's payloads begin with, whatever the incarnation."""
    return f"{FOLDER}{topic}/"


def object_name(topic: str, upload: str) -> str:
    """The name of an upload's object. Raises ValueError where `upload` is no id."""
    found = _ID.fullmatch(upload)
    if found is None:
        raise ValueError(f"{upload!r} is not the id of an upload")
    return f"{folder(topic)}{found['date']}/{upload}"


def id_of(topic: str, name: str) -> str | None:
    """The upload whose object has that name; None where that is no payload of the topic."""
    upload = name.rpartition("/")[2]
    return upload if _ID.fullmatch(upload) and object_name(topic, upload) == name else None


def size_limit(config: TopicConfig, settings: Settings) -> int:
    """The largest payload of a topic, in bytes: its own limit, never over the setting."""
    return min(config.max_payload_bytes or settings.max_payload_bytes, settings.max_payload_bytes)


def check_size(size: int, config: TopicConfig, settings: Settings) -> None:
    """Raises PayloadTooLarge."""
    limit = size_limit(config, settings)
    if size > limit:
        raise PayloadTooLarge(f"the payload has {size} bytes; the limit is {limit}", limit_bytes=limit)


def part_bytes(size: int, multipart: bool | None, presigns: bool, settings: Settings) -> int | None:
    """The size of the parts of a new upload; None: it comes as a whole. `multipart` is what was asked for.

    Raises InvalidRequest where the store cannot do that.
    """
    if multipart and not presigns:
        raise InvalidRequest(
            "this store does not support uploads in parts; leave multipart out", field="multipart", value=True
        )
    if multipart is False and presigns and size > MAX_PUT_BYTES:
        detail = f"the upload has {size} bytes; a single put may have at most {MAX_PUT_BYTES}"
        raise InvalidRequest(detail, field="multipart", value=False, bound=MAX_PUT_BYTES)
    if not (presigns and size > settings.multipart_bytes if multipart is None else multipart):
        return None
    least = max(MIN_PART_BYTES, min(PART_BYTES, settings.multipart_bytes))
    return max(least, -(-size // MAX_PARTS // MIB) * MIB)


def part_count(record: UploadRecord) -> int:
    """How many parts an upload has; an empty one has one that is empty. Raises UploadConflict where it has none."""
    if record.part_bytes is None:
        raise UploadConflict("this upload has no parts: put all its bytes to its url")
    return max(1, -(-record.size // record.part_bytes))


def part_size(record: UploadRecord, number: int) -> int:
    """The size of a part in bytes; numbers begin at 1. Raises InvalidRequest, UploadConflict."""
    count = part_count(record)
    if not 1 <= number <= count:
        detail = f"the upload has no part {number}; its parts are numbered from 1 to {count}"
        raise InvalidRequest(detail, field="numbers", value=number, bound=count)
    assert record.part_bytes is not None
    return min(record.part_bytes, record.size - (number - 1) * record.part_bytes)


def missing_parts(record: UploadRecord, found: Sequence[Part]) -> list[int]:
    """The parts that are not there, or not of their size, by number."""
    sizes: Mapping[int, int] = {part.number: part.size for part in found}
    return [number for number in range(1, part_count(record) + 1) if sizes.get(number) != part_size(record, number)]


def url_seconds(record: UploadRecord, now_us: int, settings: Settings) -> int:
    """How long a URL for an upload holds: none outlives the upload. 0: too late for one."""
    return max(0, min(settings.upload_url_s, (record.expires_us - now_us) // 1_000_000))


Use = Literal["imported", "published"]


class Step(Enum):
    """What the sweep does with a record."""

    KEEP = "keep"
    REMOVE = "remove"  # an open one: its object is to go
    CLEAR = "clear"  # a removed one whose object may still be there
    REMOVE_IMPORTED = "remove imported"  # one that no message names: its object is to go, once no import reads it
    FORGET = "forget"  # a published one: the object stays
    CLEAR_AND_FORGET = "clear and forget"  # a removed one: the object goes once more, then the record


def step(record: UploadRecord, now_us: int, grace_s: float) -> Step:
    """What is due for a record. `grace_s` is for uploads that have expired."""
    late_s = (now_us - record.expires_us) / 1e6
    if record.state == "removed":
        if late_s > LATE_S:
            return Step.CLEAR_AND_FORGET
        return Step.KEEP if record.cleared else Step.CLEAR
    if late_s <= grace_s:
        return Step.KEEP
    return {"open": Step.REMOVE, "imported": Step.REMOVE_IMPORTED, "published": Step.FORGET}[record.state]


def claimed(record: UploadRecord, digest: str, use: Use) -> UploadRecord:
    """An upload that is published, or imported, and was found to have that digest. One that a message names stays so,
    and a removed one removed."""
    if record.state in ("published", "removed"):
        return record
    return msgspec.structs.replace(record, state=use, checked=digest)


def removed(record: UploadRecord) -> UploadRecord:
    """An open upload that nobody may publish any more. Raises UploadConflict where it was published or imported."""
    if record.state == "published":
        raise UploadConflict("the upload cannot be removed: it was published, so a message names it")
    if record.state == "imported":
        raise UploadConflict(
            "the upload cannot be removed: it was imported, and its bytes are removed after it expires"
        )
    return msgspec.structs.replace(record, state="removed")


def dead(record: UploadRecord) -> UploadRecord:
    """Whatever it was: nobody can name it any more, or read it."""
    return msgspec.structs.replace(record, state="removed")

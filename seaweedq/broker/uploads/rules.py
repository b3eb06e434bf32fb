"""Rules of uploads, without I/O: names, sizes of parts, states, and the steps of the sweep for a record.

An upload's id holds the date and the incarnation of its topic. So the object's name follows from topic and id alone,
also when the record is gone, and a deletion can tell whether an object in a topic's folder belongs to that topic, or to
a later one of the same name.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from seaweedq.coordination.records import TopicConfig, UploadRecord, WriteRecord
from seaweedq.errors import InvalidRequest, PayloadTooLarge, UploadConflict
from seaweedq.settings import Settings
from seaweedq.storage.interface import Part

FOLDER = "_payloads/"
MIB, GIB = 1024**2, 1024**3
MAX_PUT_BYTES = 5 * GIB  # the bounds of S3
MIN_PART_BYTES, MAX_PARTS = 5 * MIB, 10_000
PART_BYTES = 16 * MIB  # the size of parts, unless there would be too many of them
LATE_S = 86_400  # how long a put may last after the last moment at which it could begin
NAMED = 100  # missing parts that an error lists
_WRITE = re.compile(r"[A-Za-z0-9._-]{1,128}/(0|[1-9][0-9]{0,18})")
_ID = re.compile(r"(?P<date>[0-9]{8})-(?P<incarnation>0|[1-9][0-9]{0,9})-[0-9a-f]{32}")
Use = Literal["imported", "published"]


def upload_id(now_us: int, incarnation: int, nonce: str) -> str:
    """Returns the id of a new upload; `nonce` has 32 hexadecimal digits."""
    return f"{datetime.fromtimestamp(now_us / 1e6, UTC):%Y%m%d}-{incarnation}-{nonce}"


def copied_id(name: str, incarnation: int, message: str) -> str:
    """Returns the id under which a topic of another incarnation has a copy of the object `name` for a message; always
    the same one."""
    date = name.rpartition("/")[2][:8]
    return f"{date}-{incarnation}-{hashlib.sha256(f'{name} {message}'.encode()).hexdigest()[:32]}"


def incarnation_of(upload: str) -> int | None:
    """Returns the incarnation in an upload's id; None if it is no id."""
    found = _ID.fullmatch(upload)
    return int(found["incarnation"]) if found else None


def check_write(write: str) -> str:
    """Returns the `{writer}/{number}` of a write as it is. Raises InvalidRequest for any other text."""
    if not _WRITE.fullmatch(write) or int(write.rpartition("/")[2]) >= 2**63:
        form = "WRITER/NUMBER: WRITER has 1 to 128 of the characters A-Z a-z 0-9 . _ -, and NUMBER is below 2^63"
        detail = f"`write` is {write[:200]!r}, but must have the form {form}"
        raise InvalidRequest(detail, field="write", value=write[:200])
    return write


def date_of(upload: str) -> str:
    """Returns the date in an upload's id, which is in the names of its object's URI, too."""
    return upload[:8]


def folder(topic: str, root: str = FOLDER) -> str:
    """Returns the prefix of the names of a topic's payloads, whatever the incarnation; below another `root` other
    objects have names of that form."""
    return f"{root}{topic}/"


def object_name(topic: str, upload: str, root: str = FOLDER) -> str:
    """Returns the name of an upload's object. Raises ValueError if `upload` is no id."""
    found = _ID.fullmatch(upload)
    if found is None:
        raise ValueError(f"{upload!r} is not an upload id")
    return f"{folder(topic, root)}{found['date']}/{upload}"


def id_of(topic: str, name: str, root: str = FOLDER) -> str | None:
    """Returns the upload whose object has that name; None if it is no payload of the topic."""
    upload = name.rpartition("/")[2]
    return upload if _ID.fullmatch(upload) and object_name(topic, upload, root) == name else None


def check_size(size: int, config: TopicConfig, settings: Settings) -> None:
    """Raises PayloadTooLarge."""
    limit = config.payload_limit(settings.max_payload_bytes)
    if size > limit:
        raise PayloadTooLarge(f"the payload has {size} bytes; the limit is {limit}", limit_bytes=limit)


def part_bytes(size: int, multipart: bool | None, presigns: bool, settings: Settings) -> int | None:
    """Returns the size of the parts of a new upload; None if it comes as a whole. `multipart` is the client's wish.

    Raises InvalidRequest if the store cannot do that.
    """
    if multipart and not presigns:
        raise InvalidRequest(
            "this store does not support uploads in parts; send the request without multipart",
            field="multipart",
            value=True,
        )
    if multipart is False and presigns and size > MAX_PUT_BYTES:
        detail = f"the upload has {size} bytes; a single put may have at most {MAX_PUT_BYTES}"
        raise InvalidRequest(detail, field="multipart", value=False, bound=MAX_PUT_BYTES)
    if not (presigns and size > settings.multipart_bytes if multipart is None else multipart):
        return None
    least = max(MIN_PART_BYTES, min(PART_BYTES, settings.multipart_bytes))
    return max(least, -(-size // MAX_PARTS // MIB) * MIB)


def part_count(record: UploadRecord) -> int:
    """Returns the number of an upload's parts; an empty upload has one empty part. Raises UploadConflict if it has
    none."""
    if record.part_bytes is None:
        raise UploadConflict("this upload has no parts: PUT all bytes to the upload's url")
    return max(1, -(-record.size // record.part_bytes))


def part_size(record: UploadRecord, number: int) -> int:
    """Returns the size of a part in bytes; numbers begin at 1. Raises InvalidRequest, UploadConflict."""
    count = part_count(record)
    if not 1 <= number <= count:
        detail = f"the upload has no part {number}; its parts are numbered from 1 to {count}"
        raise InvalidRequest(detail, field="numbers", value=number, bound=count)
    assert record.part_bytes is not None
    return min(record.part_bytes, record.size - (number - 1) * record.part_bytes)


def missing_parts(record: UploadRecord, found: Sequence[Part]) -> list[int]:
    """Returns the numbers of parts that are missing, or have another size."""
    sizes: Mapping[int, int] = {part.number: part.size for part in found}
    return [number for number in range(1, part_count(record) + 1) if sizes.get(number) != part_size(record, number)]


def url_seconds(record: UploadRecord, now_us: int, settings: Settings) -> int:
    """Returns how long a URL for an upload is valid: none outlives the upload. 0 means that it is too late for one."""
    return max(0, min(settings.upload_url_s, (record.expires_us - now_us) // 1_000_000))


class Step(Enum):
    """A step of the sweep for a record."""

    KEEP = "keep"
    REMOVE = "remove"  # open: its object is deleted
    CLEAR = "clear"  # removed: its object may still exist
    REMOVE_IMPORTED = "remove imported"  # in no message: its object is deleted once no import reads it
    FORGET = "forget"  # published: the object stays
    CLEAR_AND_FORGET = "clear and forget"  # removed: the object is deleted once more, then the record


def may_read(newest: WriteRecord, number: int) -> bool:
    """Tells whether a broker may be reading uploads of the write of this number, given the newest of its writer."""
    return number == newest.number and newest.state in ("checking", "running")


def settled_us(newest: WriteRecord, number: int) -> int | None:
    """Returns a time at which no write of this number could take any more uploads, and none could begin any more; None
    if one may."""
    if number < newest.number:
        return newest.started_us
    return newest.ended_us if number == newest.number and newest.state == "done" else None


def step(record: UploadRecord, now_us: int, grace_s: float, settled_us: int | None = None) -> Step:
    """Returns the step that is due for a record. `grace_s` is for uploads that have expired, and for those of which the
    write was settled."""
    late_s = (now_us - record.expires_us) / 1e6
    if record.state != "removed" and settled_us is not None:
        late_s = max(late_s, (now_us - settled_us) / 1e6)
    if record.state == "removed":
        if late_s > LATE_S:
            return Step.CLEAR_AND_FORGET
        return Step.KEEP if record.cleared else Step.CLEAR
    if late_s <= grace_s:
        return Step.KEEP
    return {"open": Step.REMOVE, "imported": Step.REMOVE_IMPORTED, "published": Step.FORGET}[record.state]


def check_user(upload: str, record: UploadRecord, write: str | UnsetType) -> None:
    """Raises UploadConflict unless an upload is for this write, or for none if that is unset."""
    if record.write != write:
        if record.write is UNSET:
            detail = (
                "the upload was created for a message; a write accepts only uploads that were created with "
                f"?write={write}"
            )
        else:
            detail = f"the upload was created for the write {record.write}, and nothing else may use it"
        raise UploadConflict(detail, upload_id=upload)


def as_claimed(record: UploadRecord, digest: str, use: Use) -> UploadRecord:
    """Returns the record of an upload that is published or imported, with the digest that was found. A published one
    stays published, and a removed one removed."""
    if record.state == "removed" or (record.state == "published" and record.checked is not None):
        return record
    state = record.state if record.state == "published" else use
    return msgspec.structs.replace(record, state=state, checked=digest)


def as_removed(record: UploadRecord) -> UploadRecord:
    """Returns the record of an open upload that nobody may publish any more. Raises UploadConflict if it was
    published or imported."""
    if record.state == "published":
        raise UploadConflict("the upload cannot be removed: it was published, so a message refers to it")
    if record.state == "imported":
        raise UploadConflict(
            "the upload cannot be removed, because its rows were imported; its bytes are removed after it expires"
        )
    return msgspec.structs.replace(record, state="removed")


def as_dead(record: UploadRecord) -> UploadRecord:
    """Returns the record of an upload in any state that nobody can name or read any more, as removed."""
    return msgspec.structs.replace(record, state="removed")

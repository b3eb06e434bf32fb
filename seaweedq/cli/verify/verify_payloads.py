"""The payloads of a topic in `seaweedq verify`: does each named payload exist, and does a message name each existing
one?

A payload that is missing, or has another size, is damage. One that no message names is not: a crash, or a publish that
failed after its claim, leaves it. So it is a note.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa

from seaweedq.broker.uploads import rules as upload_plan
from seaweedq.concurrency.gather import gather_bounded
from seaweedq.segments.audit import Finding
from seaweedq.segments.entry import segment_folder
from seaweedq.storage.interface import ObjectStore

AT_ONCE = 32  # sizes that are asked for
PAGE_NAMES = 1_000
YOUNG = timedelta(days=2)  # a name has its day alone, and may be published for a day
NAMED = 100  # notes


@dataclass
class PayloadAudit:
    """Feed it the rows of a topic, then let `check` compare the store with them. `listed` are the names listed
    before."""

    topic: str
    listed: Sequence[str] = ()
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    named: dict[str, tuple[int, str]] = field(default_factory=dict)  # the size, and the first message that says so

    def rows(self, segment: int, rows: pa.Table) -> None:
        """Collects the references of rows, which have their `_offset`."""
        if "_reference" not in rows.schema.names:
            return  # which is a finding already
        column = rows["_reference"]
        if column.null_count == len(column):
            return
        there = rows.filter(column.is_valid())
        for offset, reference in zip(there["_offset"].to_pylist(), there["_reference"].to_pylist(), strict=True):
            self._note(f"{segment_folder(self.topic, segment)} offset {offset}", reference["uri"], reference["size"])

    def _note(self, where: str, uri: str | None, size: int | None) -> None:
        rest = (uri or "").rpartition(f"/{upload_plan.folder(self.topic)}")[2]
        name = upload_plan.folder(self.topic) + rest
        if size is None or not upload_plan.id_of(self.topic, name):
            self.findings.append(
                Finding(where, f"refers to {str(uri)[:200]!r} of size {size}, which is not a payload of the topic")
            )
            return
        stated, first = self.named.setdefault(name, (size, where))
        if stated != size:
            self.findings.append(Finding(where, f"states {size} bytes for {name}, but {first} states {stated}"))

    async def check(self, store: ObjectStore) -> None:
        """Asks the store for the size of every named payload."""

        async def size(name: str) -> int | None:
            try:
                return await store.size(name)
            except FileNotFoundError:
                return None

        sizes = await gather_bounded(AT_ONCE, size, self.named)
        for (name, (stated, where)), there in zip(self.named.items(), sizes, strict=True):
            if there is None:
                self.findings.append(Finding(where, f"refers to the payload {name}, which does not exist"))
            elif there != stated:
                self.findings.append(
                    Finding(where, f"refers to the payload {name} with {stated} bytes, but it has {there}")
                )

    def unnamed(self, now: datetime, is_live: Callable[[str], bool] | None) -> None:
        """Notes the listed payloads that no message names. `is_live` tells whether an upload with that id has a record;
        None: unknown, and young payloads are only counted."""
        names = [name for name in self.listed if name not in self.named]
        if is_live is None:
            young = [name for name in names if _is_young(name, now)]
            if young:
                self.notes.append(f"{len(young)} payloads have no message in files, but are too young to be orphaned")
            names = sorted(set(names) - set(young))
        else:
            names = [name for name in names if not is_live(name.rpartition("/")[2])]
        self.notes += [f"{name}: orphaned: no message and no upload refers to it" for name in names[:NAMED]]
        if len(names) > NAMED:
            self.notes.append(f"{len(names) - NAMED} more payloads are orphaned")


async def payload_names(store: ObjectStore, topic: str) -> list[str]:
    """Returns all names in the folder of a topic's payloads."""
    names: list[str] = []
    while page := await store.list(upload_plan.folder(topic), after=names[-1] if names else "", limit=PAGE_NAMES):
        names += page
    return names


def _is_young(name: str, now: datetime) -> bool:
    try:
        day = date.fromisoformat(name.rpartition("/")[0].rpartition("/")[2])
    except ValueError:
        return False
    return now.astimezone(UTC).date() - day < YOUNG

"""The payloads of a topic in `seaweedq verify`: is what messages name there, and does a message name what is there?

A payload that is missing, or has another size, is damage. One that nothing names is none: a crash, or a publish that
failed behind its claim, leaves it. So it is a note.
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
    """Feed it the rows of a topic, then `look` at what they name. `listed` are the names that were there before."""

    topic: str
    listed: Sequence[str] = ()
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    named: dict[str, tuple[int, str]] = field(default_factory=dict)  # the size, and the first message that says so

    def rows(self, segment: int, rows: pa.Table) -> None:
        """Rows with their `_offset`."""
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
            self.findings.append(Finding(where, f"names {str(uri)[:200]!r} of size {size}, no payload of the topic"))
            return
        stated, first = self.named.setdefault(name, (size, where))
        if stated != size:
            self.findings.append(Finding(where, f"says {size} bytes of {name}, and {first} says {stated}"))

    async def look(self, store: ObjectStore) -> None:
        """Ask the store for every payload that is named."""

        async def size(name: str) -> int | None:
            try:
                return await store.size(name)
            except FileNotFoundError:
                return None

        sizes = await gather_bounded(AT_ONCE, size, self.named)
        for (name, (stated, where)), there in zip(self.named.items(), sizes, strict=True):
            if there is None:
                self.findings.append(Finding(where, f"names the payload {name}, which is not there"))
            elif there != stated:
                self.findings.append(Finding(where, f"names the payload {name} of {stated} bytes, which has {there}"))

    def unnamed(self, now: datetime, is_live: Callable[[str], bool] | None) -> None:
        """Note what was there and no message names. `is_live` tells whether an upload is known of that id; None: nobody
        can say, and young ones are only counted."""
        names = [name for name in self.listed if name not in self.named]
        if is_live is None:
            young = [name for name in names if _is_young(name, now)]
            if young:
                self.notes.append(f"{len(young)} payloads that no message in files names are too young to be orphaned")
            names = sorted(set(names) - set(young))
        else:
            names = [name for name in names if not is_live(name.rpartition("/")[2])]
        self.notes += [f"{name}: orphaned: no message names it, and no upload" for name in names[:NAMED]]
        if len(names) > NAMED:
            self.notes.append(f"{len(names) - NAMED} more payloads are orphaned")


async def payload_names(store: ObjectStore, topic: str) -> list[str]:
    """All names in the folder of a topic's payloads."""
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

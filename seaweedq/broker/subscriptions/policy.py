"""The choice of the messages that the next pull gets from one segment, by mode, attempts and filter. Pure.

Candidates are available offsets, rising; those whose order forbids their delivery now are taken out:

- `ordered`: a message is delivered once all before it are acked, are being acked, or are with the same consumer.
- `keyed`: the same for the messages of one slot (the hash of a key), and only if nothing of the slot is in the hands of
  any lease. Messages without a key have no order.
- `shared`: there is no order.

A message that failed often may kill its consumer. So a pull never mixes messages of attempt SUSPECT and above
with others; it gets at most FEW of those, and one alone if that is the last attempt.

A message that the filter leaves out counts as acked, without a frame in the journal: filter and rows never change, so
that after a crash the same messages are left out once more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seaweedq.broker.log.intervals import Offsets
from seaweedq.broker.subscriptions.window import NO_KEY, SLOTS, Array
from seaweedq.coordination.records import MessageFilter

Mode: TypeAlias = Literal["ordered", "shared", "keyed"]
SUSPECT = 3  # from this attempt on
FEW = 16  # suspects in a pull
NORMAL, SUSPECTS, ALONE = range(3)  # kinds of messages, and of pulls
FILTERED_ROWS = 65_536  # rows that one round at a subscription's segments filters at most


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of delivery in a subscription's configuration. `backoff_s` are the delays after the first, second, ...
    failed delivery, and its last one after all later ones; `max_attempts` 0 is no bound. With a filter messages are
    `filtered` before they are delivered."""

    mode: Mode = "ordered"
    backoff_s: tuple[float, ...] = ()
    max_attempts: int = 0
    filtered: bool = False

    @property
    def reads_ahead(self) -> bool:
        """Tells whether rows are looked at before they are delivered."""
        return self.filtered or self.mode == "keyed"

    def delays_s(self, attempts: Array) -> Array:
        """Returns the delays after deliveries that failed, each the `attempts`-th."""
        if not self.backoff_s:
            return np.zeros(len(attempts))
        at = np.minimum(np.maximum(attempts.astype(np.int64), 1), len(self.backoff_s)) - 1
        delays_s: Array = np.array(self.backoff_s)[at]
        return delays_s

    def gives_up(self, attempts: Array) -> Array:
        """Tells which messages are not delivered again after so many deliveries."""
        found: Array = attempts >= self.max_attempts if self.max_attempts else np.zeros(len(attempts), bool)
        return found

    def kinds(self, attempts: Array) -> Array:
        """Returns the kind of each message that was delivered so often before."""
        kinds = np.zeros(len(attempts), np.int8)
        kinds[attempts >= SUSPECT - 1] = SUSPECTS
        if self.max_attempts >= SUSPECT:
            kinds[attempts >= self.max_attempts - 1] = ALONE
        return kinds


class PullLimits(msgspec.Struct, frozen=True):
    """The messages that a pull may get: at most `limit`, of one `kind` if it has some already, for a
    consumer."""

    consumer: int
    limit: int
    kind: int | None = None


def same_attempt_class(rules: Rules, free: Offsets, attempts: Array, slots: Array, kind: int | None) -> Offsets:
    """Returns those candidates that go into one pull: of `kind`, or of the first one's. One of another kind keeps those
    back that must come after it."""
    kinds = rules.kinds(attempts)
    wanted = int(kinds[0]) if kind is None else kind
    others = kinds != wanted
    if others.any():
        kept = others
        if rules.mode == "ordered":
            kept = np.maximum.accumulate(others)
        elif rules.mode == "keyed":
            places = np.arange(len(slots))
            kept = others | later_of_slots(places, slots, places[others], slots[others])
        free = free[~kept]
    return free[: {NORMAL: len(free), SUSPECTS: FEW, ALONE: 1}[wanted]]


def later_of_slots(offsets: Offsets, slots: Array, first: Offsets, first_slots: Array) -> Array:
    """Tells which of `offsets` come behind one of the offsets `first`, which rise, of the same slot."""
    known, at = np.unique(first_slots, return_index=True)
    after = np.full(SLOTS + 1, np.iinfo(np.int64).max)
    after[known] = first[at]
    after[NO_KEY] = np.iinfo(np.int64).max
    found: Array = offsets > after[slots]
    return found


def left_out(wanted: MessageFilter, rows: pa.RecordBatch) -> Array:
    """Tells for each row whether the filter leaves it out: not all of its conditions hold."""
    kept = np.ones(rows.num_rows, bool)
    if wanted.key_prefix is not None:
        kept &= _of(rows, "_key", lambda keys: pc.starts_with(keys, wanted.key_prefix))
    for name, value in wanted.headers.items():
        kept &= _of(rows, "_headers", partial(_has, name, value))
    return ~kept


def _has(name: str, value: str, headers: pa.Array) -> pa.Array:
    return pc.equal(pc.map_lookup(headers, name, "first"), value)


def _of(rows: pa.RecordBatch, name: str, condition: Callable[[pa.Array], pa.Array]) -> Array:
    """Returns a condition over a column; it holds for no row that has no value there."""
    at = rows.schema.get_field_index(name)
    if at < 0:
        return np.zeros(rows.num_rows, bool)
    found: Array = condition(rows.column(at)).fill_null(False).to_numpy(zero_copy_only=False)
    return found

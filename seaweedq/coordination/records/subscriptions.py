"""The records of subscriptions and of their cursors."""

from collections.abc import Mapping
from typing import Literal

import msgspec

MAX_IN_FLIGHT = 10_000


class MessageFilter(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The messages that a subscription delivers: those whose key begins with `key_prefix`, and that have all `headers`
    with these values."""

    key_prefix: str | None = None
    headers: dict[str, str] = {}


class SeekRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last seek of a subscription, which began `epoch`; `ids` are the names of the last ones, the newest at the
    end, and `asked` has a digest of where to each of them went, so that a name is not used for another place.

    `plan` says where the cursors of that epoch begin (coordination/records/seek_plan). It is there until all of them
    are written: until then nothing is delivered, and nobody acks.
    """

    epoch: int
    ids: tuple[str, ...] = ()
    plan: str | None = None
    asked: Mapping[str, str] = {}


class SubscriptionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A subscription's configuration and state; `epoch` rises with each seek and each change of dispatcher.

    `dispatcher` is the broker that delivered its messages last; as long as that broker lives, no other one delivers.
    `backoff_s` are the delays after the first, second, ... failed delivery. With `expires_after_s`, somebody used it at
    `used_us` or later (broker/retention/subscription_expiry). `creator` is the principal that created it, or has named
    its `dead_letter_topic` since, and `creator_uid` the `uid` of that one: its dead letters go out with the rights of
    that one, and not of another that got the name later. The admin has no uid.
    """

    mode: Literal["ordered", "shared", "keyed"]
    start: str | dict[str, str]
    ack_deadline_s: float
    max_attempts: int
    dead_letter_topic: str | None
    created_us: int
    epoch: int
    state: Literal["creating", "active", "deleting"] = "active"
    dispatcher: str | None = None
    backoff_s: tuple[float, ...] = ()
    max_in_flight: int = MAX_IN_FLIGHT
    filter: MessageFilter | None = None
    expires_after_s: float | None = None
    paused: bool = False
    seek: SeekRecord | None = None
    used_us: int = 0
    creator: str | None = None
    creator_uid: str | None = None

    @property
    def is_seeking(self) -> bool:
        """Tells whether its cursors are not yet those of its last seek."""
        return self.seek is not None and self.seek.plan is not None


class HeldLease(msgspec.Struct, frozen=True, array_like=True):
    """The messages that a resigning dispatcher had leased to `consumer` under a name: runs of offsets, for the seconds
    that were left. One without name and consumer is a delay, which is a lease of nobody's; with `dying` (the reason,
    and what was said of it) its messages are given up, and their dead letters not yet known to be durable. One with
    `dying` and a name is a batch of these that may have been published, under that identity; others have these too."""

    name: str
    consumer: str
    left_s: float
    runs: tuple[tuple[int, int], ...]
    dying: tuple[str, str] | None = None


class CursorRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A subscription's progress in a segment: acked below `acked_to`, and in the half-open intervals `acked` beyond it.

    `attempts` counts the deliveries of unacked offsets (as strings) that were not delivered just once; offsets from
    `delivered_to` on were never delivered. `held` are the leases of a resigning dispatcher, which are valid for the
    very next epoch alone, and what is dying, which is in every checkpoint. `sought_below`: offsets below it may have
    been delivered before a seek, so acks that came late from there say nothing. The stored form holds `acked` and
    `attempts` in `packed` (coordination/records/cursor_form).
    """

    epoch: int
    acked_to: int
    acked: tuple[tuple[int, int], ...] = ()
    attempts: dict[str, int] = {}
    delivered_to: int = 0
    packed: str | None = None
    held: tuple[HeldLease, ...] = ()
    sought_below: int = 0

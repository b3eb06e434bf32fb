"""A batch as users see it: the rows of one pull as Arrow, answered by its lease."""

from typing import TYPE_CHECKING, TypeAlias

from seaweedq.client.core.messages.answering import Answer, Origin, extension_of, nack_of
from seaweedq.extras import needs

if TYPE_CHECKING:
    import pyarrow as pa


class Batch:
    """The rows of one pull, of one lease."""

    __slots__ = ("_origin", "_stream", "_table")

    def __init__(self, stream: bytes, origin: Origin) -> None:
        self._stream, self._origin = stream, origin
        self._table: pa.Table | None = None

    @property
    def lease(self) -> str:
        """Returns the name of its lease."""
        return self._origin.lease or ""

    @property
    def table(self) -> "pa.Table":
        """Returns the rows: the columns of the topic's files, `segment` (int32), `_offset` (int64), and `_attempt`
        (int32), how often each was delivered. Built without a copy of the columns, when it is first asked for."""
        if self._table is None:
            with needs("arrow", "a batch's table"):
                import pyarrow as pa

            self._table = pa.ipc.open_stream(self._stream).read_all()
        return self._table

    def ack(self) -> None:
        """Acks all of its rows. Returns at once: the ack is sent in the background."""
        self._origin.answer(Answer("ack", None, self._origin.lease))

    def nack(self, delay_s: float | None = None, reject: bool = False, reason: str | None = None) -> None:
        """Gives all of its rows back: they are delivered again after `delay_s` seconds (0 to 43,200; None: the
        subscription's backoff), or with `reject` go to the topic for dead letters, with a `reason` of at most 255
        characters. Returns at once, as `ack`; the iteration raises InvalidRequest, NoDeadLetters later."""
        self._origin.answer(nack_of(None, self._origin.lease, delay_s, reject, reason))

    def extend(self, ack_deadline_s: float | None = None) -> None:
        """Lets its lease end `ack_deadline_s` seconds from now; None: as many as the subscription gives. Returns at
        once, as `ack`; the iteration raises InvalidRequest later."""
        self._origin.answer(extension_of(None, self._origin.lease, ack_deadline_s))

    def __repr__(self) -> str:
        rows = "" if self._table is None else f", rows={self._table.num_rows}"
        return f"Batch(lease={self.lease!r}, bytes={len(self._stream)}{rows})"


AsyncBatch: TypeAlias = Batch  # nothing that a batch does waits

"""The limits of a principal."""

import msgspec


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bounds of what a principal uses; None is no bound. Those of the first group are rates, each second, in the whole
    cluster; the others count what there is at a time."""

    requests: float | None = None
    messages: float | None = None
    bytes_in: float | None = None
    bytes_out: float | None = None
    changes: float | None = None
    connections: int | None = None
    waiting_pulls: int | None = None
    topics: int | None = None
    segments: int | None = None
    open_uploads: int | None = None


NO_LIMITS = Limits()

"""The limits of a principal or a topic, and which of them are rates."""

import msgspec

OF_TOPICS = ("requests", "messages", "bytes_in", "bytes_out", "changes", "waiting_pulls", "open_uploads")
RATES = ("requests", "messages", "bytes_in", "bytes_out", "changes")


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bounds of what a principal uses; None is no bound. Those of RATES are rates, each second, in the whole cluster;
    the others count what there is at a time."""

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

    def completed(self, default: "Limits") -> "Limits":
        """Returns these limits, and the default's where there is none; NO_LIMITS itself where that is nothing."""
        own = msgspec.structs.asdict(self)
        limits = Limits(**{name: getattr(default, name) if value is None else value for name, value in own.items()})
        return NO_LIMITS if limits == NO_LIMITS else limits


NO_LIMITS = Limits()

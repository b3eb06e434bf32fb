"""Where a cluster's keys lie in etcd: behind a prefix, so that several clusters can share one etcd. Pure."""

from dataclasses import dataclass

FIRST = b"\0"
BEHIND_ALL = b"\0"  # as the end of a range


@dataclass(frozen=True, slots=True)
class KeySpace:
    """All keys that begin with `prefix`, which nobody above this sees. UTF-8 sorts as the strings do."""

    prefix: str

    def full(self, key: str) -> bytes:
        """The key in etcd."""
        return (self.prefix + key).encode()

    def short(self, full: bytes) -> str:
        """The key as everybody else knows it."""
        return full.decode()[len(self.prefix) :]

    def interval(self, prefix: str, after: str = "") -> tuple[bytes, bytes]:
        """First key and end, exclusive, of the keys that begin with `prefix` and sort behind `after`."""
        low = self.full(prefix)
        start = max(low, self.full(after) + b"\0") if after else low
        return start or FIRST, _end(low)


def _end(prefix: bytes) -> bytes:
    """The first key behind all that begin with it. UTF-8 has no byte 0xff, so that the last one can rise."""
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else BEHIND_ALL

"""The keys of a cluster in etcd: they have a prefix, so that several clusters can share one etcd. Pure."""

from dataclasses import dataclass

FIRST = b"\0"
BEHIND_ALL = b"\0"  # as the end of a range


@dataclass(frozen=True, slots=True)
class KeySpace:
    """All keys that begin with `prefix`, which the layers above never see. UTF-8 sorts as the strings do."""

    prefix: str

    def full(self, key: str) -> bytes:
        """Returns the key in etcd."""
        return (self.prefix + key).encode()

    def short(self, full: bytes) -> str:
        """Returns the key without the prefix."""
        return full.decode()[len(self.prefix) :]

    def interval(self, prefix: str, after: str = "") -> tuple[bytes, bytes]:
        """Returns the first key and the exclusive end of the keys that begin with `prefix` and sort after `after`."""
        low = self.full(prefix)
        start = max(low, self.full(after) + b"\0") if after else low
        return start or FIRST, _end(low)


def _end(prefix: bytes) -> bytes:
    """Returns the first key after all that begin with the prefix. UTF-8 has no byte 0xff, so the last byte can rise."""
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else BEHIND_ALL

"""Decides which ranges of files a cache of blocks holds, and in which blocks. It reads and writes nothing.

A range is admitted where blocks are free, or those that would go were not used for STALE_S. Else it is admitted at its
second use: a reader that passes once over much data takes nothing from those who come again. The least recently used
ranges go first. Of ranges that are not held, the last REMEMBERED uses are known.

A range is *begun*, written by the caller, and then *held*, or it *failed*. The blocks of a range that failed may not be
writable: they are given out again RETRY_S later if the disk was full, and never after another error. So a disk that is
full or broken only makes the cache smaller.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

BLOCK_BYTES = 64 * 1024
LARGEST_SHARE = 4  # a range takes at most a quarter of the blocks
STALE_S, RETRY_S = 3600.0, 60.0
REMEMBERED = 16_384


class FileRange(NamedTuple):
    """The bytes [start, end) of a file."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class HeldRange:
    """A range in the cache: its blocks in order, its CRC-32, and the size of its file in bytes."""

    blocks: tuple[int, ...]
    size: int
    crc: int
    file_bytes: int


@dataclass(slots=True)
class _Use:
    held: HeldRange
    used_s: float


class CachePlan:
    """The ranges in a cache of `blocks` blocks, numbered from 0. Times are monotonic, in seconds."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.lost = 0  # blocks that are never used again
        self.evicted = 0  # ranges that have gone for others
        self._held: OrderedDict[FileRange, _Use] = OrderedDict()  # the least recently used one first
        self._begun: dict[FileRange, tuple[int, ...]] = {}
        self._unwanted: set[FileRange] = set()  # of those that are begun
        self._seen: OrderedDict[FileRange, None] = OrderedDict()
        self._free: list[int] = []  # that were used before, so that the file has them
        self._fresh = 0  # the first block that was never given out
        self._refused: list[int] = []  # blocks for which the disk had no room
        self._retry_s = float("-inf")  # when the disk may have room again

    @property
    def held_blocks(self) -> int:
        """The blocks of all ranges that are held."""
        return self._fresh - len(self._free) - len(self._refused) - self.lost - sum(map(len, self._begun.values()))

    @property
    def limit_blocks(self) -> int:
        """The blocks that can be used, as far as is known."""
        return self.blocks - self.lost - len(self._refused)

    def find(self, wanted: FileRange, now_s: float) -> HeldRange | None:
        """Returns a range if it is held; this counts as a use of it."""
        use = self._held.get(wanted)
        if use is None:
            return None
        use.used_s = now_s
        self._held.move_to_end(wanted)
        return use.held

    def is_held(self, wanted: FileRange, held: HeldRange) -> bool:
        """Tells whether a range is still in the same blocks."""
        use = self._held.get(wanted)
        return use is not None and use.held is held

    def begin(self, wanted: FileRange, size: int, now_s: float) -> tuple[int, ...]:
        """Returns the blocks to write a range of `size` bytes to; none if it is not admitted."""
        again = wanted in self._seen
        self._see(wanted)
        count = -(-size // BLOCK_BYTES)
        if not 0 < count <= self.blocks // LARGEST_SHARE or wanted in self._held or wanted in self._begun:
            return ()
        if now_s >= self._retry_s:
            self._free += self._refused
            self._refused = []
        fresh = self.blocks - self._fresh if now_s >= self._retry_s else 0
        going = self._going(count - len(self._free) - fresh, now_s - (0.0 if again else STALE_S))
        if going is None:
            return ()
        for one in going:
            self._drop(one)
            self.evicted += 1
            self._see(one)
        taken = [self._free.pop() for _ in range(min(count, len(self._free)))]
        taken += range(self._fresh, self._fresh + count - len(taken))
        self._fresh = max(self._fresh, taken[-1] + 1)
        self._begun[wanted] = blocks = tuple(sorted(taken))
        return blocks

    def hold(self, wanted: FileRange, size: int, crc: int, file_bytes: int, now_s: float) -> None:
        """Holds a range that was begun, now that its blocks are written."""
        blocks = self._begun.pop(wanted)
        if wanted in self._unwanted:
            self._unwanted.discard(wanted)
            self._free += blocks
            return
        self._held[wanted] = _Use(HeldRange(blocks, size, crc, file_bytes), now_s)
        self._seen.pop(wanted, None)

    def fail(self, wanted: FileRange, is_full: bool, now_s: float) -> None:
        """Gives up a range that was begun: the disk is full, or it has not taken all of its blocks."""
        blocks = self._begun.pop(wanted)
        self._unwanted.discard(wanted)
        if is_full:
            self._refused += blocks
            self._retry_s = now_s + RETRY_S
        else:
            self.lost += len(blocks)

    def drop(self, wanted: FileRange, is_broken: bool) -> None:
        """Drops a range that cannot be read as it was written; its blocks are lost if the disk `is_broken` there."""
        blocks = self._drop(wanted)
        if is_broken:
            del self._free[-len(blocks) :]
            self.lost += len(blocks)

    def forget(self, prefix: str) -> None:
        """Drops all ranges of the files whose names begin so."""
        for one in [one for one in self._held if one.name.startswith(prefix)]:
            self._drop(one)
        self._unwanted.update(one for one in self._begun if one.name.startswith(prefix))

    def _going(self, count: int, used_before_s: float) -> list[FileRange] | None:
        """Returns the ranges that go for `count` blocks; None if they were all used since."""
        going = []
        for one, use in self._held.items():
            if count <= 0 or use.used_s > used_before_s:
                break
            going.append(one)
            count -= len(use.held.blocks)
        return going if count <= 0 else None

    def _drop(self, wanted: FileRange) -> tuple[int, ...]:
        blocks = self._held.pop(wanted).held.blocks
        self._free += blocks
        return blocks

    def _see(self, wanted: FileRange) -> None:
        self._seen[wanted] = None
        self._seen.move_to_end(wanted)
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)

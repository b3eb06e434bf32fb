"""The watermark: a key whose revision is not below any that the store states, of administrative changes and of journals
that are done.

It is written behind what it stands for, and before the store states that. So one that is lower than something in the
store is that of an earlier day. Nothing else can tell: the revision of the whole rises with each lease that ends, and
those of other keys go with their keys. Its value says nothing.
"""

from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Put
from seaweedq.coordination.records import WatermarkRecord
from seaweedq.coordination.versioned import Versioned


async def watermark(coordination: Coordination) -> int:
    """Returns the watermark; 0 if nothing was stated yet. Raises CoordinationUnavailable."""
    there = await coordination.get(keys.WATERMARK.key())
    return there.revision if there else 0


async def raise_watermark(coordination: Coordination, revision: int) -> int:
    """Raises the watermark to a revision at least, and returns it. Raises CoordinationUnavailable."""
    key = keys.WATERMARK.key()
    while True:
        there = await coordination.get(key)
        if there and there.revision >= revision:
            return there.revision
        value = there.value if there else keys.WATERMARK.encode(Versioned.new(WatermarkRecord()))
        if made := await coordination.commit([Compare(key, there.revision if there else 0)], [Put(key, value)]):
            return made

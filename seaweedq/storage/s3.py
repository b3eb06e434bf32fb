"""Objects below a prefix of a bucket, on AWS or another S3 that supports create-if-absent.

Creates are single conditional puts (`If-None-Match: *`), so an object has at most 5 GB, and an interrupted one leaves
nothing behind. Payloads, which clients upload, are in `s3_payloads`. Credentials, region and profiles are boto's: AWS_*
variables, ~/.aws, instance roles.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import BinaryIO, cast

from fsspec.asyn import sync

from seaweedq.concurrency.pools import READS, Pool, Pools
from seaweedq.concurrency.signal import Signal
from seaweedq.errors import InvalidRequest, StoreUnavailable
from seaweedq.storage.interface import Data, Listed
from seaweedq.storage.names import check_place, check_prefix
from seaweedq.storage.ranges import TAIL_BYTES, RangeReader
from seaweedq.storage.s3_encryption import Encryption
from seaweedq.storage.s3_payloads import S3Payloads
from seaweedq.storage.s3_requests import Bucket, ConnectionLimits

PAGE = 1000  # keys, the most that S3 lists at once
_URL = re.compile(r"s3://(?P<bucket>[A-Za-z0-9][A-Za-z0-9._-]{1,254})(?P<prefix>(/[^/?#]+)*)/?")


class S3Store(S3Payloads):
    """A PayloadStore at `url` (s3://bucket/prefix) through `endpoint`; None: the one in boto's variables and files.

    `addressing`: auto, path or virtual. All awaited methods belong to one event loop, `open` to any thread: its reader
    uses fsspec's own thread. Raises InvalidRequest for an invalid URL.
    """

    def __init__(
        self,
        url: str,
        endpoint: str | None = None,
        addressing: str = "auto",
        connect_timeout_s: float = 3.0,
        read_timeout_s: float = 10.0,
        connections: int = 64,
    ) -> None:
        match = _URL.fullmatch(url)
        if not match:
            why = "is not a URL like s3://bucket/prefix, whose bucket has 2 to 255 characters (AWS takes 3 to 63)"
            raise InvalidRequest(f"store={url!r} {why}", field="store")
        self.endpoint = endpoint
        limits = ConnectionLimits(connect_timeout_s, read_timeout_s, connections)
        bucket = partial(Bucket, match["bucket"], endpoint, addressing, limits=limits)
        root = f"{match['prefix'][1:]}/" if match["prefix"] else ""
        super().__init__(bucket(on_loop=True), bucket(on_loop=False), root)
        self.readers = Pool("store reads", READS)
        self.worked = Signal()

    def encrypt(self, encryption: Encryption) -> None:
        """States this encryption for each object that is made from now on."""
        self._bucket.encryption = self._readers.encryption = encryption

    async def create(self, name: str, data: Data) -> bool:
        """As ObjectStore. Raises UnfitStore if the store does not support the condition."""
        return await self._bucket.create(self._key(name), data)

    async def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """As ObjectStore; a range beyond the end is cut. Raises ValueError unless 0 <= start <= end."""
        if start < 0 or (end is not None and end < start):
            raise ValueError(f"[{start}, {end}) is not a range of bytes")
        if start == end:
            await self.size(name)
            return b""
        return await _range(self._bucket, self._key(name), start, end)

    async def size(self, name: str) -> int:
        """As ObjectStore."""
        return await self._bucket.size(self._key(name))

    async def age_s(self, name: str) -> float:
        """As ObjectStore."""
        return await self._bucket.age_s(self._key(name))

    async def delete(self, name: str) -> None:
        """As ObjectStore."""
        await self._bucket.delete(self._key(name))

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        """As ObjectStore; folder markers, which other tools leave, are not listed."""
        return [each.name for each in await self.listed(prefix, after, limit)]

    async def listed(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[Listed]:
        """As ObjectStore."""
        check_place(prefix, after)
        first, last = self._root + check_prefix(prefix), self._root + after if after else ""
        found: list[Listed] = []
        more = True
        while more and len(found) < limit:
            page, more = await self._bucket.list(first, last, min(PAGE, limit - len(found)))
            found += [
                replace(each, name=each.name.removeprefix(self._root)) for each in page if not each.name.endswith("/")
            ]
            last = page[-1].name if page else last
        return found

    async def check_bucket(self) -> None:
        """As PayloadStore."""
        await self._bucket.check()

    def open(self, name: str) -> BinaryIO:
        """As ObjectStore. It and the reader's reads also raise StoreUnavailable."""
        key = self._key(name)
        tail, _, size = sync(self._readers.loop, self._readers.read, key, f"-{TAIL_BYTES}")
        fetch = partial(sync, self._readers.loop, _range, self._readers, key)
        return cast(BinaryIO, RangeReader(fetch, size, tail))

    async def sweep_temporary(self) -> int:
        """Removes nothing, since an interrupted put leaves nothing behind. Returns 0."""
        return 0

    async def close(self) -> None:
        """Closes all connections, those of readers on the loop of fsspec's thread. Readers can still be used, and open
        new ones."""
        await self._bucket.close()
        await self._readers.close()


def s3_stores(
    url: str,
    endpoints: Sequence[str],
    addressing: str = "auto",
    pools: Pools | None = None,
    encryption: Encryption | None = None,
) -> list[S3Store]:
    """Returns one store per endpoint; without endpoints, one at the endpoint in boto's variables and files."""
    stores = [S3Store(url, endpoint, addressing) for endpoint in endpoints or (None,)]
    for store in stores:
        store.encrypt(encryption or Encryption())
        if pools:
            store.readers = pools.reads
    return stores


async def _range(bucket: Bucket, key: str, start: int, end: int | None) -> bytes:
    """Returns the bytes [start, end), cut at the object's end; also from a store that ignores the range."""
    whole = start == 0 and end is None
    data, first, size = await bucket.read(key, None if whole else f"{start}-{'' if end is None else end - 1}")
    stop = size if end is None else min(end, size)
    found = data[start - first : stop - first] if first <= start < stop else b""
    if len(found) != max(stop - start, 0):
        raise StoreUnavailable(
            f"the store returned {len(data)} bytes from {first} on instead of the bytes {start} to {stop - 1} of {key}"
        )
    return found

"""Objects below a prefix of a bucket, on AWS or another S3 that supports create-if-absent, and payloads there.

Creates are single conditional puts (`If-None-Match: *`), so an object has at most 5 GB, and an interrupted one leaves
nothing behind. Credentials, region and profiles are boto's: AWS_* variables, ~/.aws, instance roles.

Payloads: clients send signed requests to the store themselves. Signing needs no request. A signature covers the method,
the key, the time and every header of the `SignedRequest`; so the store itself refuses another size or content type, and
other bytes if their SHA-256 is stated. A put carries `If-None-Match: *`: a client that still has its URL cannot
overwrite an object published since, and gets 412. Nor can a put be turned into a copy of an object that its sender may
not read: see `no_copies`. No store is trusted with this alone: moto checks neither signatures nor times nor digests,
and others may not support one of the headers. So size and digest are checked once more before a payload is published.
"""

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, BinaryIO, cast

from fsspec.asyn import sync

from seaweedq.concurrency.futures import Signal
from seaweedq.concurrency.pools import READS, Pool, Pools
from seaweedq.errors import InvalidRequest, StoreUnavailable
from seaweedq.storage.interface import Data, ListedObject, Part, SignedRequest, check_name, check_place, check_prefix
from seaweedq.storage.ranges import TAIL_BYTES, RangeReader
from seaweedq.storage.s3_requests import Bucket, ConnectionLimits, Encryption, no_copies
from seaweedq.storage.s3_signed import Example

MAX_EXPIRES_S = 7 * 24 * 3600  # the most that S3 allows
MAX_COPY_BYTES, COPY_PART_BYTES = 5 * 1024**3, 1024**3  # the most that S3 copies at once; a part of a larger copy
PARTS_PAGE = 1000  # the most that S3 lists at once
PAGE = 1000  # keys, the most that S3 lists at once
_URL = re.compile(r"s3://(?P<bucket>[A-Za-z0-9][A-Za-z0-9._-]{1,254})(?P<prefix>(/[^/?#]+)*)/?")


class S3Store:
    """A PayloadStore at `url` (s3://bucket/prefix) through `endpoint`; None: the one in boto's variables and files.

    `addressing`: auto, path or virtual. All awaited methods belong to one event loop, `open` to any thread: its reader
    uses fsspec's own thread. Raises InvalidRequest for an invalid URL.
    """

    presigns: bool = True

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
            why = (
                "must be a URL like s3://bucket/prefix; the bucket's name must have 2 to 255 characters (3 to 63 on "
                "AWS)"
            )
            raise InvalidRequest(f"store={url!r} {why}", field="store")
        self.endpoint = endpoint
        limits = ConnectionLimits(connect_timeout_s, read_timeout_s, connections)
        bucket = partial(Bucket, match["bucket"], endpoint, addressing, limits=limits)
        self.readers = Pool("store reads", READS)
        self.worked = Signal()
        self._bucket = bucket(on_loop=True)
        self._readers = bucket(on_loop=False)
        self._root = f"{match['prefix'][1:]}/" if match["prefix"] else ""
        self._example: Example | None = None  # of a presigned get for so many seconds, followed until then
        self._example_for, self._until_s = 0, 0.0

    def encrypt(self, encryption: Encryption) -> None:
        """States this encryption for each object that is made from now on."""
        self._bucket.encryption = self._readers.encryption = encryption

    async def create(self, name: str, data: Data) -> bool:
        """As ObjectStore. Raises UnfitStore if the store does not support the condition."""
        return await self._bucket.create(self._key(name), data)

    async def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """As ObjectStore; a range beyond the end is cut. Raises ValueError unless 0 <= start <= end."""
        if start < 0 or (end is not None and end < start):
            raise ValueError(f"[{start}, {end}) is not a valid byte range")
        if start == end:
            await self.size(name)
            return b""
        return await _range(self._bucket, self._key(name), start, end)

    async def size(self, name: str) -> int:
        return await self._bucket.size(self._key(name))

    async def age_s(self, name: str) -> float:
        return await self._bucket.age_s(self._key(name))

    async def delete(self, name: str) -> None:
        await self._bucket.delete(self._key(name))

    async def list_parts(self, name: str, parts: str) -> list[Part]:
        """As PayloadStore; one request per 1000 parts. SeaweedFS begins a page with the part of the marker: no part is
        listed twice, and a page without a new one is the last."""
        found: list[Part] = []
        more = True
        while more:
            after = found[-1].number if found else 0
            page = await self._aside("list_parts", name, UploadId=parts, PartNumberMarker=after, MaxParts=PARTS_PAGE)
            listed = [Part(each["PartNumber"], each["Size"], each["ETag"]) for each in page.get("Parts", ())]
            new = sorted((part for part in listed if part.number > after), key=attrgetter("number"))
            if len(new) < len(listed):
                self._readers.work_around("repeats parts of the previous page in a listing; counting each part once")
            found += new
            more = bool(page.get("IsTruncated")) and bool(new)
        return found

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        """As ObjectStore; folder markers, which other tools leave, are not listed."""
        return [each.name for each in await self.listed(prefix, after, limit)]

    async def listed(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[ListedObject]:
        check_place(prefix, after)
        first, last = self._root + check_prefix(prefix), self._root + after if after else ""
        found: list[ListedObject] = []
        more = True
        while more and len(found) < limit:
            page, more = await self._bucket.list(first, last, min(PAGE, limit - len(found)))
            found += [
                replace(each, name=each.name.removeprefix(self._root)) for each in page if not each.name.endswith("/")
            ]
            last = page[-1].name if page else last
        return found

    async def check_bucket(self) -> None:
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

    def uri(self, name: str) -> str:
        """As PayloadStore: s3://bucket/key, with nothing escaped, which is how Spark and fsspec read it."""
        return f"s3://{self._bucket.name}/{self._key(name)}"

    async def receive(self, name: str, chunks: AsyncIterator[bytes], size: int, sha256: str | None) -> str | None:
        """Raises NotImplementedError: clients put payloads to the store itself."""
        raise NotImplementedError(
            "the broker does not receive payloads for this store; clients upload payloads to S3 with signed URLs"
        )

    async def copy(self, name: str, to: str) -> None:
        """As PayloadStore. The store copies up to 5 GiB at once, and larger objects in parts."""
        found = await self._bucket.head(self._key(name))
        source, size = {"Bucket": self._bucket.name, "Key": self._key(name)}, int(found["ContentLength"])
        if size <= MAX_COPY_BYTES:
            await self._bucket.ask("copy_object", self._key(to), CopySource=source)
            return
        parts = await self.begin_parts(to, str(found.get("ContentType", "application/octet-stream")))
        try:
            for number, start in enumerate(range(0, size, COPY_PART_BYTES), 1):
                span = f"bytes={start}-{min(start + COPY_PART_BYTES, size) - 1}"
                stated = {"UploadId": parts, "PartNumber": number, "CopySource": source, "CopySourceRange": span}
                await self._bucket.ask("upload_part_copy", self._key(to), **stated)
            await self.end_parts(to, parts, await self.list_parts(to, parts))
        except BaseException:
            await self.abort_parts(to, parts)
            raise

    async def digest(self, name: str) -> tuple[int, str | None]:
        """As PayloadStore. A composite checksum is not one of the whole object; nor is one that the store does not
        label as such."""
        answer = await self._bucket.head(self._key(name), ChecksumMode="ENABLED")
        whole = answer.get("ChecksumType") == "FULL_OBJECT"
        found = answer.get("ChecksumSHA256") if whole else None
        return int(answer["ContentLength"]), base64.b64decode(found).hex() if found else None

    async def presign_put(
        self, name: str, expires_s: int, size: int, content_type: str, sha256: str | None
    ) -> SignedRequest:
        """As PayloadStore; the put gets 412 if the object exists. Raises ValueError unless 1 <= expires_s <=
        MAX_EXPIRES_S."""
        headers = {"Content-Length": f"{size}", "Content-Type": content_type, "If-None-Match": "*"}
        stated: dict[str, Any] = {"ContentLength": size, "ContentType": content_type, "IfNoneMatch": "*"}
        if sha256 is not None:
            stated["ChecksumSHA256"] = base64.b64encode(bytes.fromhex(sha256)).decode()
            headers["x-amz-checksum-sha256"] = stated["ChecksumSHA256"]
        url = await self._sign("put_object", name, expires_s, **stated)
        return SignedRequest(url, "PUT", {**headers, **self._bucket.encryption.headers, **no_copies(url)})

    async def presign_get(self, name: str, expires_s: int) -> SignedRequest:
        """As PayloadStore; the URL may be valid for a twentieth less, since many are derived from one example. Raises
        ValueError unless 1 <= expires_s <= MAX_EXPIRES_S."""
        now_s = asyncio.get_running_loop().time()
        if expires_s != self._example_for or now_s >= self._until_s:
            url = await self._sign("get_object", name, expires_s)
            self._example = Example.from_url(url, self._key(name), await self._bucket.secret())
            self._example_for, self._until_s = expires_s, now_s + expires_s / 20
        elif self._example:
            url = self._example.url(self._key(name))
        else:
            url = await self._sign("get_object", name, expires_s)
        return SignedRequest(url, "GET", {})

    async def presign_part(self, name: str, parts: str, number: int, expires_s: int, size: int) -> SignedRequest:
        """As PayloadStore; a part may be put again. Raises ValueError unless 1 <= expires_s <= MAX_EXPIRES_S."""
        stated = {"UploadId": parts, "PartNumber": number, "ContentLength": size}
        url = await self._sign("upload_part", name, expires_s, **stated)
        return SignedRequest(url, "PUT", {"Content-Length": f"{size}", **no_copies(url)})

    async def begin_parts(self, name: str, content_type: str) -> str:
        """As PayloadStore. If the answer is lost, the store keeps an upload without parts that no broker knows."""
        answer = await self._bucket.ask("create_multipart_upload", self._key(name), ContentType=content_type)
        return str(answer["UploadId"])

    async def end_parts(self, name: str, parts: str, found: Sequence[Part]) -> None:
        """As PayloadStore. An existing object is never replaced; then the parts are removed. Also raises
        StoreUnavailable if a part has changed since, or is too small to be followed by another: the code says which."""
        manifest = [{"PartNumber": each.number, "ETag": each.etag} for each in sorted(found, key=attrgetter("number"))]
        stated = {"UploadId": parts, "MultipartUpload": {"Parts": manifest}, "IfNoneMatch": "*"}
        try:
            await self._aside("complete_multipart_upload", name, **stated)
        except FileNotFoundError:  # ended before, or aborted
            await self._bucket.head(self._key(name))
        except StoreUnavailable as error:
            if error.fields["code"] != "PreconditionFailed":
                raise
            await self.abort_parts(name, parts)

    async def abort_parts(self, name: str, parts: str) -> None:
        """As PayloadStore. A part whose put is in flight may arrive later: abort again once its URL has expired."""
        try:
            await self._bucket.ask("abort_multipart_upload", self._key(name), UploadId=parts)
        except FileNotFoundError:
            pass

    async def _aside(self, method: str, name: str, **stated: Any) -> dict[str, Any]:
        """Sends a request on the readers' loop: botocore needs 80 ms to parse a page of parts, which must not block the
        broker's loop."""
        asked = self._readers.ask(method, self._key(name), **stated)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked, self._readers.loop))

    async def _sign(self, method: str, name: str, expires_s: int, **stated: Any) -> str:
        if not 1 <= expires_s <= MAX_EXPIRES_S:
            raise ValueError(f"a signed URL can be valid for 1 to {MAX_EXPIRES_S} s, not for {expires_s} s")
        await asyncio.sleep(0)  # many may be signed in a row, and each takes 0.3 ms or more
        return await self._bucket.presign(method, self._key(name), expires_s, **stated)

    def _key(self, name: str) -> str:
        return self._root + check_name(name)


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
            f"the store was asked for the bytes {start} to {stop - 1} of {key}, but returned "
            f"{len(data)} bytes that begin at byte {first}"
        )
    return found

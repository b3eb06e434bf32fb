"""Payloads on S3: requests that clients send to the store themselves, and multipart uploads.

Signing needs no request. A signature covers the method, the key, the time and every header of the `SignedRequest`; so
the store itself refuses another size or content type, and other bytes if their SHA-256 is stated. A put carries
`If-None-Match: *`: a client that still has its URL cannot overwrite an object published since, and gets 412. Nor can a
put be turned into a copy of an object that its sender may not read: see `no_copies`.

No store is trusted with this alone: moto checks neither signatures nor times nor digests, and others may not support
one of the headers. So size and digest are checked once more before a payload is published.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from operator import attrgetter
from typing import Any

from seaweedq.errors import StoreUnavailable
from seaweedq.storage.interface import Part, SignedRequest
from seaweedq.storage.names import check_name
from seaweedq.storage.s3_links import Example
from seaweedq.storage.s3_requests import Bucket, no_copies

MAX_EXPIRES_S = 7 * 24 * 3600  # the most that S3 allows
MAX_COPY_BYTES, COPY_PART_BYTES = 5 * 1024**3, 1024**3  # the most that S3 copies at once; a part of a larger copy
PARTS_PAGE = 1000  # the most that S3 lists at once


class S3Payloads:
    """The payload methods of PayloadStore, for objects of `bucket` below `root`, which is empty or ends in a slash.
    `readers` is the same bucket, on another thread's loop."""

    presigns: bool = True

    def __init__(self, bucket: Bucket, readers: Bucket, root: str) -> None:
        self._bucket = bucket
        self._readers = readers
        self._root = root
        self._example: Example | None = None  # of a presigned get for so many seconds, followed until then
        self._example_for, self._until_s = 0, 0.0

    def uri(self, name: str) -> str:
        """As PayloadStore: s3://bucket/key, with nothing escaped, which is how Spark and fsspec read it."""
        return f"s3://{self._bucket.name}/{self._key(name)}"

    async def receive(self, name: str, chunks: AsyncIterator[bytes], size: int, sha256: str | None) -> str | None:
        """Raises NotImplementedError: clients put payloads to the store itself."""
        raise NotImplementedError(
            "this store receives no payloads: clients put them to S3 themselves, with signed requests"
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
            self._example = Example.of(url, self._key(name), await self._bucket.secret())
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
                self._readers.work_around("lists parts again that came in the page before: they count once")
            found += new
            more = bool(page.get("IsTruncated")) and bool(new)
        return found

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
            raise ValueError(f"a signature can be valid for 1 to {MAX_EXPIRES_S} s, not for {expires_s} s")
        await asyncio.sleep(0)  # many may be signed in a row, and each takes 0.3 ms or more
        return await self._bucket.presign(method, self._key(name), expires_s, **stated)

    def _key(self, name: str) -> str:
        return self._root + check_name(name)

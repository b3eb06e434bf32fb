"""Requests to one bucket at one endpoint, and the meaning of their answers. Only this module and s3_signed know boto.

A create is sent once: s3fs, botocore and aiohttp must not repeat it, since the 412 of a second attempt might answer the
first. Every other request may be repeated, and is, once: an idle connection may be closed just as it is used.

One `Bucket` belongs to one event loop, that of its first request, and its client is closed there.

A 501 to a create says that the store does not support the condition. A proxy before the store, and SeaweedFS while it
starts, answer 501 in passing, too: the create is then unavailable like any other, as the start-up probe has seen the
condition work. It is the store's own answer once it has come for UNSUPPORTED_S and no create has succeeded meanwhile.

The encryption is stated in each request that makes an object, not left to the bucket. A part needs no statement: the
beginning of its upload made it. Readers need none either; of aws:kms they need the right to use the key.
"""

import asyncio
import base64
import logging
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from s3fs import S3FileSystem

from seaweedq.errors import InvalidRequest, StoreUnavailable, UnfitStore
from seaweedq.storage.interface import NO_BUCKET, UNSUPPORTED, Data, ListedObject
from seaweedq.storage.s3_signed import Answer, ErrorAnswer, SignedRequests, SigningPlace, read_page

NONE, KMS = "none", "aws:kms"
MAKING = frozenset({"put_object", "copy_object", "create_multipart_upload"})  # requests that make objects
T = TypeVar("T")
logger = logging.getLogger("seaweedq")
SLOWEST_BYTES_PER_S = 1024 * 1024  # an upload below this rate is cancelled
CHUNK_BYTES = 256 * 1024
THREAD_BYTES = 1024 * 1024  # a checksum over more is computed in a thread
TRIES = 2  # of a request that may be repeated
UNSUPPORTED_S = 60.0
CLOSE_S = 0.1  # for which a process that ends waits for a client that was not closed
_NO_COPY = "x-amz-copy-source-if-match"
_NO_COPIES = {_NO_COPY: '"no-copies"'}
_RANGE_FIELDS = {"content-range": "ContentRange", "content-length": "ContentLength"}
_AWS = re.compile(r"\.amazonaws\.com(\.cn)?$")
# s3fs turns the store's error answers into OSErrors; the others mean that no answer, or not all of it, came.
FAILURES = (OSError, BotoCoreError, ResponseParserError, aiohttp.ClientError)


@dataclass(frozen=True, slots=True)
class Encryption:
    """The kind, `none`, `AES256` or `aws:kms`, and the key's id or ARN; empty: the account's own key for S3. Raises
    InvalidRequest for a key that has no use."""

    kind: str = NONE
    kms_key: str = ""

    def __post_init__(self) -> None:
        if self.kms_key and self.kind != KMS:
            raise InvalidRequest(f"s3_sse is {self.kind}, so s3_sse_kms_key has no effect", field="s3_sse_kms_key")

    def parameters(self, method: str) -> Mapping[str, str]:
        """Returns the parameters of boto for a request."""
        if self.kind == NONE or method not in MAKING:
            return {}
        key = {"SSEKMSKeyId": self.kms_key} if self.kms_key else {}
        return {"ServerSideEncryption": self.kind, **key}

    @property
    def headers(self) -> Mapping[str, str]:
        """Returns the headers that boto signs for those parameters: whoever holds a signed put must send them."""
        if self.kind == NONE:
            return {}
        key = {"x-amz-server-side-encryption-aws-kms-key-id": self.kms_key} if self.kms_key else {}
        return {"x-amz-server-side-encryption": self.kind, **key}


class _Body:
    """A request body that aiohttp sends without copies, letting other tasks run after each chunk.

    Bytes would be worse: botocore makes a file of them, which waits for '100 Continue' and is read in threads, and
    aiohttp sends it again when its connection breaks, even after the store has received it.
    """

    def __init__(self, data: Data) -> None:
        self._data = memoryview(data).cast("B")

    def __len__(self) -> int:
        return len(self._data)

    async def __aiter__(self) -> AsyncIterator[memoryview]:
        for start in range(0, len(self._data), CHUNK_BYTES):
            yield self._data[start : start + CHUNK_BYTES]


class _Files(S3FileSystem):  # type: ignore[misc]
    """Closes a client that nobody has closed on the loop that made it, and not, as its base does, on the one that runs
    where the garbage is collected: that is the loop of the next life."""

    @staticmethod
    def close_session(loop: asyncio.AbstractEventLoop | None, s3: Any) -> None:
        if loop is None or not loop.is_running():
            return
        closed = asyncio.run_coroutine_threadsafe(s3.__aexit__(None, None, None), loop)
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # no loop is held up; this may be the end of the process
            wait([closed], CLOSE_S)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The timeouts of a connection's making and of a read, in seconds, and the maximum number of connections."""

    connect_timeout_s: float
    read_timeout_s: float
    connections: int


class Bucket:
    """A bucket at an endpoint (None: the one in boto's variables and files). `on_loop`: requests are awaited on the
    caller's loop; otherwise s3fs' own thread runs the loop, and `sync` waits for it."""

    def __init__(
        self,
        name: str,
        endpoint: str | None,
        addressing: str,
        on_loop: bool,
        limits: ConnectionLimits,
    ) -> None:
        self.name = name
        self.encryption = Encryption()
        self._where = f"bucket {name}" + (f" at {endpoint}" if endpoint else "")
        self._worked_around: set[str] = set()
        self._signed = SignedRequests()
        self._unsupported_s: float | None = None  # since when, on the loop's clock, creates get 501
        self._timeout_s = limits.connect_timeout_s + limits.read_timeout_s
        self._files = _Files(
            asynchronous=on_loop,
            skip_instance_cache=True,
            use_listings_cache=False,
            endpoint_url=endpoint,
            config_kwargs={
                "connect_timeout": limits.connect_timeout_s,
                "read_timeout": limits.read_timeout_s,
                "max_pool_connections": limits.connections,
                "retries": {"total_max_attempts": 1, "mode": "standard"},
                "signature_version": "s3v4",
                "user_agent": "seaweedq",  # botocore's own is made anew for each request, a tenth of its cost
                "request_checksum_calculation": "when_required",  # `create` has its own
                "parameter_validation": False,  # botocore does not know `_Body`
                # The CRC guards the content, and TLS the way; hashing 64 MiB would stop the loop for 50 ms or more.
                "s3": {"addressing_style": addressing, "payload_signing_enabled": False},
            },
        )
        self._files.retries = 1

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Returns the loop of s3fs' thread."""
        found: asyncio.AbstractEventLoop = self._files.loop
        return found

    async def create(self, key: str, data: Data) -> bool:
        """Puts an object unless the key exists; False: it exists."""
        crc = zlib.crc32(data) if len(data) < THREAD_BYTES else await asyncio.to_thread(zlib.crc32, data)
        checksum = base64.b64encode(crc.to_bytes(4, "big")).decode()
        try:
            async with asyncio.timeout(self._timeout_s + len(data) / SLOWEST_BYTES_PER_S):
                await self._put(key, _Body(data), checksum)
        except FAILURES as error:
            status, code = _answer(error)
            if status == 501 or code == UNSUPPORTED:
                raise self._unsupported(key, error) from error
            if status != 412:
                raise self._unavailable(f"create {key}", error) from error
            self._unsupported_s = None
            return False
        self._unsupported_s = None
        return True

    async def read(self, key: str, span: str | None) -> tuple[bytes, int, int]:
        """Returns the bytes of a range such as `0-9`, `5-` or `-100`, their first position, and the object's size in
        bytes.

        The range may be cut at the object's end, and is empty beyond it. Raises FileNotFoundError.
        """

        async def once() -> tuple[bytes, int, int]:
            data, said = await self._get(key, span)
            first, last, size = _span(said, len(data))
            if span and "ContentRange" not in said:
                self.work_around("ignores ranges: whole objects are read instead, which costs time and traffic")
            if len(data) != last + 1 - first:
                raise OSError(f"the store announced {last + 1 - first} bytes, but sent {len(data)} bytes")
            return data, first, size

        try:
            return await self._repeat(f"read {key}", once)
        except _RangeBeyondEnd:
            return b"", 0, 0

    async def size(self, key: str) -> int:
        """Returns the size in bytes. Raises FileNotFoundError."""
        return int((await self.head(key))["ContentLength"])

    async def age_s(self, key: str) -> float:
        """Returns how long ago the object was put, as the store's answer says. Raises FileNotFoundError,
        StoreUnavailable."""
        answer = await self.head(key)
        said = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        if said is None:
            raise StoreUnavailable(f"head_object {key}: the store's answer does not state a date")
        return float((parsedate_to_datetime(said) - answer["LastModified"]).total_seconds())

    async def head(self, key: str, **parameters: Any) -> dict[str, Any]:
        """Returns the metadata of an object. Raises FileNotFoundError."""
        try:
            return await self.ask("head_object", key, **parameters)
        except FileNotFoundError:  # its answer has no body to say whether the bucket is there
            await self.read(key, "0-0")
            raise

    async def ask(self, method: str, key: str, **parameters: Any) -> dict[str, Any]:
        """Sends a request that may be repeated, and returns its answer. Raises FileNotFoundError if its object, or its
        multipart upload, does not exist."""
        return await self._repeat(f"{method} {key}", lambda: self._call(method, Key=key, **parameters))

    async def delete(self, key: str) -> None:
        """Removes an object; a missing one is no error."""
        try:
            await self.ask("delete_object", key)
        except FileNotFoundError:
            pass

    async def check(self) -> None:
        """Raises StoreUnavailable, which names bucket and endpoint, unless the bucket is there.

        A put cannot tell: SeaweedFS makes the bucket for it, so that a mistyped name would begin an empty cluster.
        """
        try:
            await self._repeat(f"look for {self.name}", lambda: self._call("head_bucket"))
        except FileNotFoundError:
            where = f"bucket {self.name} at {(await self._files.set_session()).meta.endpoint_url}"
            detail = "the store has no such bucket"
            inside = f"NoSuchBucket: {where} does not exist; create it, or correct the setting store"
            raise StoreUnavailable(detail, inside=inside, code=NO_BUCKET) from None

    async def list(self, prefix: str, after: str, limit: int) -> tuple[list[ListedObject], bool]:
        """Returns a page of objects, named by their keys, with this prefix after `after`, at most `limit`, and whether
        there are more. `after` is empty or begins with the prefix: for any other SeaweedFS 4.44 lists other keys, or
        none.

        Leaves out what was not asked for. Raises StoreUnavailable if there are more, but not one in this page: asking
        again would never end.
        """
        found, more = await self._repeat(f"list {prefix}", lambda: self._page(prefix, after, limit))
        asked = [each for each in found if each.name.startswith(prefix) and each.name != after]
        if len(asked) < len(found):
            self.work_around("lists keys outside the prefix, or the key to start after; ignoring them")
        if more and not asked:
            raise StoreUnavailable(
                f"the store states that its listing of {prefix!r} continues after {after!r}, but the next page "
                "contains no new name"
            )
        return asked, more

    async def presign(self, method: str, key: str, expires_s: int, **parameters: Any) -> str:
        """Returns a URL that allows one kind of request without credentials; never log it. Sends no request.

        A put may need headers beyond those of the parameters: see `no_copies`, and those of the encryption.
        """
        try:
            await self._connect()
            client = await self._files.set_session()
            for operation in ("PutObject", "UploadPart"):
                client.meta.events.register(f"before-sign.s3.{operation}", _bar_copies, unique_id=operation)
            stated = {**self.encryption.parameters(method), **parameters}
            url: str = await self._files._url(f"{self.name}/{key}", expires_s, method, **stated)
        except FAILURES as error:
            raise self._unavailable(f"presign {key}", error) from error
        return url

    async def secret(self) -> str:
        """Returns the secret access key that signs."""
        await self._connect()
        found = await (await self._files.set_session())._request_signer._credentials.get_frozen_credentials()
        return str(found.secret_key)

    async def close(self) -> None:
        """Closes the connections; a later request opens new ones."""
        if self._files._s3 is None:
            return
        closing = self._files._s3.__aexit__(None, None, None)
        if self._files.asynchronous:
            await closing
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(closing, self.loop))

    async def _connect(self) -> None:
        """Makes the client before the first request. Raises InvalidRequest if boto's settings are invalid, such as an
        endpoint that is not a URL."""
        if self._files._s3 is None:
            try:
                self._signed.learn(await self._files.set_session())
            except ValueError as error:
                detail = f"{self._where}: {error}; correct s3_endpoints, AWS_ENDPOINT_URL_S3 or another AWS setting"
                raise InvalidRequest(detail, field="s3_endpoints") from error

    async def _put(self, key: str, body: _Body, crc: str) -> None:
        headers = {"if-none-match": "*", "x-amz-checksum-crc32": crc, "x-amz-sdk-checksum-algorithm": "CRC32"}
        tried = self._signed.place
        if await self._send("PUT", key, {}, {**headers, **self.encryption.headers}, body) is None:
            sums = {"ChecksumAlgorithm": "CRC32", "ChecksumCRC32": crc}
            await self._call("put_object", tried, Key=key, Body=body, IfNoneMatch="*", **sums)

    async def _get(self, key: str, span: str | None) -> tuple[bytes, Mapping[str, Any]]:
        """Returns what the store has sent, and its ContentLength and ContentRange. A whole object is botocore's, which
        compares it with the store's checksum."""
        tried = self._signed.place if span else None
        if span and (answer := await self._send("GET", key, {}, {"range": f"bytes={span}"})):
            return answer.body, {
                field: answer.headers[name] for name, field in _RANGE_FIELDS.items() if name in answer.headers
            }
        said = await self._call("get_object", tried, Key=key, **({"Range": f"bytes={span}"} if span else {}))
        async with said["Body"] as body:
            return await body.read(), said

    async def _page(self, prefix: str, after: str, limit: int) -> tuple[Sequence[ListedObject], bool]:
        asked = {"list-type": "2", "prefix": prefix, "max-keys": f"{limit}", "encoding-type": "url"}
        tried = self._signed.place
        if answer := await self._send("GET", None, {**asked, **({"start-after": after} if after else {})}, {}):
            return read_page(answer.body)
        start = {"StartAfter": after} if after else {}
        page = await self._call("list_objects_v2", tried, Prefix=prefix, MaxKeys=limit, **start)
        return [_listed(each) for each in page.get("Contents", ())], bool(page["IsTruncated"])

    async def _send(self, method: str, key: str | None, *asked: Any) -> Answer | None:
        return (
            await self._signed.send(await self._files.set_session(), method, key, *asked)
            if self._signed.place
            else None
        )

    async def _call(self, method: str, tried: SigningPlace | None = None, **parameters: Any) -> dict[str, Any]:
        """Has botocore make a request; `tried` if the store has refused the same one that was made here."""
        await self._connect()
        stated = {**self.encryption.parameters(method), **parameters}
        answer: dict[str, Any] = await self._files._call_s3(method, Bucket=self.name, **stated)
        if not self._signed.record_success(tried):
            self.work_around(
                "refuses requests that this broker signs itself: botocore now signs all of them, which needs more CPU"
            )
        return answer

    async def _repeat(self, what: str, act: Callable[[], Awaitable[T]]) -> T:
        """Calls `act` up to TRIES times. Raises FileNotFoundError, `_RangeBeyondEnd`, and StoreUnavailable for all
        other failures."""
        for last in range(TRIES):
            try:
                return await act()
            except FAILURES as error:
                status, code = _answer(error)
                if status == 416:
                    raise _RangeBeyondEnd from error
                if status == 404 and code != NO_BUCKET:
                    raise FileNotFoundError(f"{what}: the object does not exist") from error
                if last == TRIES - 1 or 300 <= status < 500:
                    raise self._unavailable(what, error) from error
        raise AssertionError("unreachable")

    def work_around(self, what: str) -> None:
        """Logs once what this store does otherwise than S3 specifies."""
        if what not in self._worked_around:
            self._worked_around.add(what)
            logger.warning("%s: the store %s", self._where, what)

    def _unsupported(self, key: str, error: Exception) -> StoreUnavailable | UnfitStore:
        """Returns the error for a create that got 501: it did not happen."""
        now_s = asyncio.get_running_loop().time()
        if self._unsupported_s is None:
            self._unsupported_s = now_s
        if now_s < self._unsupported_s + UNSUPPORTED_S:
            return self._unavailable(f"create {key}", error, UNSUPPORTED)
        return UnfitStore(f"{self._where} no longer supports create-if-absent (If-None-Match: *): {error}")

    def _unavailable(self, what: str, error: Exception, named: str = "") -> StoreUnavailable:
        status, code = _answer(error)
        told = f"{status}" if code == f"{status}" else f"{status} {code}"  # a head's answer has no body with a code
        detail = f"the store answered {told}" if status else "the store did not answer, or its answer was incomplete"
        inside = f"{self._where}, {what}: {error}" if f"{error}" else f"{self._where}, {what}: {type(error).__name__}"
        return StoreUnavailable(detail, inside=inside, code=named or code)


def _listed(each: Mapping[str, Any]) -> ListedObject:
    modified = each["LastModified"]
    return ListedObject(each["Key"], int(each["Size"]), int(modified.timestamp() * 1_000_000))


def no_copies(url: str) -> dict[str, str]:
    """Returns the headers that must accompany a presigned put so that it cannot be turned into a copy."""
    return _NO_COPIES if _NO_COPY in url.partition("X-Amz-SignedHeaders=")[2] else {}


def _bar_copies(request: Any, **_: Any) -> None:
    """Signs a condition that no object meets, and that applies to copies alone.

    MinIO (and others) let the holder of a presigned put add `x-amz-copy-source`, unsigned: it then copies any object
    that the broker may read. AWS refuses headers that are not signed, and may refuse this one in a put.
    """
    if request.context.get("is_presign_request") and not _AWS.search(urlsplit(request.url).hostname or ""):
        request.headers[_NO_COPY] = _NO_COPIES[_NO_COPY]


class _RangeBeyondEnd(Exception):
    """The requested range begins beyond the object's end."""


def _answer(error: Exception) -> tuple[int, str]:
    """Returns status and code of the store's answer; 0 and an empty string if there was none."""
    if isinstance(error, ErrorAnswer):
        return error.status, error.code
    cause = error.__cause__
    if not isinstance(cause, ClientError):
        return 0, ""
    return int(cause.response["ResponseMetadata"].get("HTTPStatusCode", 0)), str(cause.response["Error"].get("Code"))


def _span(said: Mapping[str, Any], length: int) -> tuple[int, int, int]:
    """Returns the first and the last byte of an answer's body within the object, and the object's size. `length` is
    that of the body, if nothing is said."""
    if "ContentRange" not in said:
        size = int(said.get("ContentLength", length))
        return 0, size - 1, size
    span, _, size = said["ContentRange"].removeprefix("bytes ").partition("/")
    first, _, last = span.partition("-")
    return int(first), int(last), int(size)

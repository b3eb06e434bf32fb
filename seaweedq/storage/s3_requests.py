"""Requests to one bucket at one endpoint, and what each answer means. The store above knows nothing of boto.

A create is sent once: not by s3fs, botocore or aiohttp a second time, since the 412 of the second try might answer the
first. Everything else may be sent again, and is, once: a connection that lay idle may be closed as it is taken.

One `Bucket` belongs to one event loop, that of its first request.
"""

import asyncio
import base64
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from s3fs import S3FileSystem

from seaweedq.errors import InvalidRequest, StoreUnavailable, UnfitStore
from seaweedq.storage.interface import Data

T = TypeVar("T")

SLOWEST_BYTES_PER_S = 1024 * 1024  # an upload below this rate is given up
PIECE_BYTES = 256 * 1024
THREAD_BYTES = 1024 * 1024  # a checksum over more is made in a thread
TRIES = 2  # of what may be sent again
_NO_COPY = "x-amz-copy-source-if-match"
_NO_COPIES = {_NO_COPY: '"no-copies"'}
_AWS = re.compile(r"\.amazonaws\.com(\.cn)?$")
# s3fs makes OSErrors of the store's answers; the others are those of a request that got none, or not all of it.
FAILURES = (OSError, BotoCoreError, ResponseParserError, aiohttp.ClientError)


class _Pieces:
    """A body that aiohttp sends without copies, with a turn for the rest of the loop after each piece.

    Bytes would be worse: botocore makes a file of them, which waits for '100 Continue' and is read in threads, and
    aiohttp sends it again when its connection breaks, also after the store has taken it.
    """

    def __init__(self, data: Data) -> None:
        self._data = memoryview(data).cast("B")

    def __len__(self) -> int:
        return len(self._data)

    async def __aiter__(self) -> AsyncIterator[memoryview]:
        for start in range(0, len(self._data), PIECE_BYTES):
            yield self._data[start : start + PIECE_BYTES]


class Bucket:
    """A bucket at an endpoint (None: as boto's variables and files say). `on_loop`: requests are awaited on the
    caller's loop; else s3fs' own thread has the loop, and `sync` waits for it."""

    def __init__(
        self,
        name: str,
        endpoint: str | None,
        addressing: str,
        on_loop: bool,
        connect_timeout_s: float,
        read_timeout_s: float,
        connections: int,
    ) -> None:
        self.name = name
        self._where = f"bucket {name}" + (f" at {endpoint}" if endpoint else "")
        self._patience_s = connect_timeout_s + read_timeout_s
        self._files = S3FileSystem(
            asynchronous=on_loop,
            skip_instance_cache=True,
            use_listings_cache=False,
            endpoint_url=endpoint,
            config_kwargs={
                "connect_timeout": connect_timeout_s,
                "read_timeout": read_timeout_s,
                "max_pool_connections": connections,
                "retries": {"total_max_attempts": 1, "mode": "standard"},
                "signature_version": "s3v4",
                "request_checksum_calculation": "when_required",  # `create` has its own
                "parameter_validation": False,  # it does not know `_Pieces`
                # The CRC guards the content, and TLS the way; hashing 64 MiB would stop the loop for 50 ms or more.
                "s3": {"addressing_style": addressing, "payload_signing_enabled": False},
            },
        )
        self._files.retries = 1

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of s3fs' thread."""
        found: asyncio.AbstractEventLoop = self._files.loop
        return found

    async def create(self, key: str, data: Data) -> bool:
        """Put an object unless the key is taken; False: it is."""
        crc = zlib.crc32(data) if len(data) < THREAD_BYTES else await asyncio.to_thread(zlib.crc32, data)
        checksum = {"ChecksumAlgorithm": "CRC32", "ChecksumCRC32": base64.b64encode(crc.to_bytes(4, "big")).decode()}
        try:
            async with asyncio.timeout(self._patience_s + len(data) / SLOWEST_BYTES_PER_S):
                await self._call("put_object", Key=key, Body=_Pieces(data), IfNoneMatch="*", **checksum)
        except FAILURES as error:
            status, code = _answer(error)
            if status == 412:
                return False
            if status == 501 or code == "NotImplemented":
                raise UnfitStore(
                    f"{self._where} does not support create-if-absent (If-None-Match: *): {error}"
                ) from error
            raise self._unavailable(f"create {key}", error) from error
        return True

    async def read(self, key: str, span: str | None) -> tuple[bytes, int, int]:
        """The bytes of a range such as `0-9`, `5-` or `-100`, where they begin, and the object's size in bytes.

        The range may be cut at the end, and is empty beyond it. Raises FileNotFoundError.
        """

        async def once() -> tuple[bytes, int, int]:
            answer = await self._call("get_object", Key=key, **({"Range": f"bytes={span}"} if span else {}))
            async with answer["Body"] as body:
                data = await body.read()
            first, last, size = _span(answer)
            if len(data) != last + 1 - first:
                raise OSError(f"the store announced {last + 1 - first} bytes, but sent {len(data)}")
            return data, first, size

        try:
            return await self._repeat(f"read {key}", once)
        except _Beyond:
            return b"", 0, 0

    async def size(self, key: str) -> int:
        """Size in bytes. Raises FileNotFoundError."""
        return int((await self.head(key))["ContentLength"])

    async def head(self, key: str, **parameters: Any) -> dict[str, Any]:
        """What is known of an object. Raises FileNotFoundError."""
        try:
            return await self.ask("head_object", key, **parameters)
        except FileNotFoundError:  # its answer has no body to say whether the bucket is there
            await self.read(key, "0-0")
            raise

    async def ask(self, method: str, key: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a request that may be sent again. Raises FileNotFoundError where its object, or its multipart
        upload, is not there."""
        return await self._repeat(f"{method} {key}", lambda: self._call(method, Key=key, **parameters))

    async def delete(self, key: str) -> None:
        """Remove an object; one that is not there is no error."""
        try:
            await self.ask("delete_object", key)
        except FileNotFoundError:
            pass

    async def list(self, prefix: str, after: str, limit: int) -> tuple[list[str], bool]:
        """Returns a page of keys with this prefix behind `after`, at most `limit`, and whether there are more.

        `StartAfter` that does not begin with the prefix is left out: SeaweedFS 4.44 lists other keys then, or none.
        """
        if after > prefix and not after.startswith(prefix):
            return [], False  # `after` is behind all keys with this prefix
        start = {"StartAfter": after} if after.startswith(prefix) else {}
        page = await self._repeat(
            f"list {prefix}",
            lambda: self._call("list_objects_v2", Prefix=prefix, MaxKeys=limit, **start),
        )
        return [each["Key"] for each in page.get("Contents", ())], bool(page["IsTruncated"])

    async def presign(self, method: str, key: str, expires_s: int, **parameters: Any) -> str:
        """A URL that allows one kind of request without credentials; never to be logged. Asks nobody.

        A put may need headers beyond those of the parameters: see `no_copies`.
        """
        try:
            await self._connect()
            client = await self._files.set_session()
            for operation in ("PutObject", "UploadPart"):
                client.meta.events.register(f"before-sign.s3.{operation}", _bar_copies, unique_id=operation)
            url: str = await self._files._url(f"{self.name}/{key}", expires_s, method, **parameters)
        except FAILURES as error:
            raise self._unavailable(f"presign {key}", error) from error
        return url

    async def secret(self) -> str:
        """The secret access key that signs."""
        await self._connect()
        found = await (await self._files.set_session())._request_signer._credentials.get_frozen_credentials()
        return str(found.secret_key)

    async def close(self) -> None:
        """Close the connections; what comes after makes new ones."""
        if self._files._s3 is not None:
            await self._files._s3.__aexit__(None, None, None)

    async def _connect(self) -> None:
        """Make the client before the first request. Raises InvalidRequest where the settings that boto found are none,
        such as an endpoint that is no URL."""
        if self._files._s3 is None:
            try:
                await self._files.set_session()
            except ValueError as error:
                detail = f"{self._where}: {error}; correct s3_endpoints, AWS_ENDPOINT_URL_S3 or another AWS setting"
                raise InvalidRequest(detail, field="s3_endpoints") from error

    async def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        await self._connect()
        answer: dict[str, Any] = await self._files._call_s3(method, Bucket=self.name, **parameters)
        return answer

    async def _repeat(self, what: str, act: Callable[[], Awaitable[T]]) -> T:
        """Raises FileNotFoundError, `_Beyond`, and StoreUnavailable for all else."""
        for last in range(TRIES):
            try:
                return await act()
            except FAILURES as error:
                status, code = _answer(error)
                if status == 416:
                    raise _Beyond from error
                if status == 404 and code != "NoSuchBucket":
                    raise FileNotFoundError(f"{what}: the object does not exist") from error
                if last == TRIES - 1 or 300 <= status < 500:
                    raise self._unavailable(what, error) from error
        raise AssertionError("unreachable")

    def _unavailable(self, what: str, error: Exception) -> StoreUnavailable:
        status, code = _answer(error)
        detail = f"the store answered {status} {code}" if status else "the store did not answer, or not completely"
        inside = f"{self._where}, {what}: {error}" if f"{error}" else f"{self._where}, {what}: {type(error).__name__}"
        return StoreUnavailable(detail, inside=inside, code=code)


def no_copies(url: str) -> dict[str, str]:
    """The headers that a presigned put must be sent with so that it cannot be made into a copy."""
    return _NO_COPIES if _NO_COPY in url.partition("X-Amz-SignedHeaders=")[2] else {}


def _bar_copies(request: Any, **_: Any) -> None:
    """Sign a condition that no object meets, and that concerns copies alone.

    MinIO (and others) let whoever has a presigned put add `x-amz-copy-source`, unsigned: it then copies any object that
    the broker may read. AWS refuses headers that are not signed, and may refuse this one in a put.
    """
    if request.context.get("is_presign_request") and not _AWS.search(urlsplit(request.url).hostname or ""):
        request.headers[_NO_COPY] = _NO_COPIES[_NO_COPY]


class _Beyond(Exception):
    """A range that begins beyond the object's end."""


def _answer(error: Exception) -> tuple[int, str]:
    """Status and code of the store's answer; 0 and nothing if there was none."""
    cause = error.__cause__
    if not isinstance(cause, ClientError):
        return 0, ""
    return int(cause.response["ResponseMetadata"].get("HTTPStatusCode", 0)), str(cause.response["Error"].get("Code"))


def _span(answer: dict[str, Any]) -> tuple[int, int, int]:
    """First and last byte of the answer's body within the object, and the object's size."""
    if "ContentRange" not in answer:
        return 0, answer["ContentLength"] - 1, answer["ContentLength"]
    span, _, size = answer["ContentRange"].removeprefix("bytes ").partition("/")
    first, _, last = span.partition("-")
    return int(first), int(last), int(size)

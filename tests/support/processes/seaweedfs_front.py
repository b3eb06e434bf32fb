"""A front for moto that behaves as SeaweedFS 4.44 does where it is not AWS, and one that goes astray beside.

Both are WSGI applications around moto's own, in its process: what they need to know of the bucket they look up there.
"""

import random
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any
from urllib.parse import parse_qsl, quote
from xml.sax.saxutils import escape

Environ = dict[str, Any]
App = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]
XML = [("Content-Type", "application/xml")]
Query = dict[str, str]


class AsSeaweedFS:
    """A store that differs from AWS in four ways.

    1. `StartAfter` that does not begin with `Prefix`: keys from outside the prefix come, or none. 2. Keys come in the
    order of their path's parts, pages and tokens too. 3. `ListParts` repeats the part of its marker; of an upload that
    is gone it answers 200; the parts of an end that was refused stay listed. 4. A put makes its bucket.
    """

    def __init__(self, moto: App) -> None:
        self._moto = moto
        self._refused: dict[str, list[Any]] = {}  # by upload: the parts of an end that was refused

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        bucket, _, key = environ["PATH_INFO"].encode("latin-1").decode().lstrip("/").partition("/")
        query = dict(parse_qsl(environ["QUERY_STRING"], keep_blank_values=True))
        method = environ["REQUEST_METHOD"]
        if method == "GET" and not key and query.get("list-type") == "2" and bucket in _buckets():
            return self._answer(start_response, _listing(bucket, query))
        if method == "GET" and "uploadId" in query and bucket in _buckets():
            return self._answer(start_response, self._parts(bucket, key, query))
        if method == "PUT" and key and bucket not in _buckets():
            _backend().create_bucket(bucket, "us-east-1")
        if method == "POST" and "uploadId" in query and bucket in _buckets():
            return self._end(bucket, query["uploadId"], environ, start_response)
        return self._moto(environ, start_response)

    def _answer(self, start_response: Callable[..., Any], body: str) -> list[bytes]:
        data = body.encode()
        start_response("200 OK", [*XML, ("Content-Length", str(len(data)))])
        return [data]

    def _parts(self, bucket: str, key: str, query: Query) -> str:
        upload = query["uploadId"]
        there = _buckets()[bucket].multiparts.get(upload)
        parts = list(there.parts.items()) if there else self._refused.get(upload, [])
        most, marker = int(query.get("max-parts", 1000)), int(query.get("part-number-marker", 0))
        left = sorted((number, part) for number, part in parts if number >= marker)
        shown = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(part.etag)}</ETag><Size>{part.size}</Size></Part>"
            for number, part in left[:most]
        )
        more = f"<IsTruncated>{str(len(left) > most).lower()}</IsTruncated>"
        return f"<ListPartsResult><Bucket>{bucket}</Bucket><Key>{escape(key)}</Key>{more}{shown}</ListPartsResult>"

    def _end(self, bucket: str, upload: str, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        there = _buckets()[bucket].multiparts.get(upload)
        parts = list(there.parts.items()) if there else []

        def note(status: str, *rest: Any) -> Any:
            if status.startswith("412"):
                self._refused[upload] = parts
            return start_response(status, *rest)

        return self._moto(environ, note)


class Astray:
    """Answers late, repeats requests, and loses answers.

    Of requests for one path at most one in a row is lost, of a client's own (presigned) none. A request that is
    repeated gets its first answer.
    """

    def __init__(self, app: App, seed: int) -> None:
        self._app, self._rng, self._lost = app, random.Random(seed), set[tuple[str, str]]()
        self._lock = threading.Lock()

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        request = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        with self._lock:
            fate = self._rng.choice(("late", "twice", "lost", "", "", "", "", ""))
            if request in self._lost or "X-Amz-Signature" in environ["QUERY_STRING"]:
                fate = "" if fate == "lost" else fate
                self._lost.discard(request)
            elif fate == "lost":
                self._lost.add(request)
        if fate == "late":
            time.sleep(0.03)
        if fate not in ("twice", "lost"):
            return self._app(environ, start_response)
        return self._again(environ, start_response, fate)

    def _again(self, environ: Environ, start_response: Callable[..., Any], fate: str) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        answer = list(self._app(_with(environ, body), start_response))
        if fate == "twice":
            list(self._app(_with(environ, body), lambda *_: None))
            return answer
        raise ConnectionResetError  # the server ends the connection without a word


def _with(environ: Environ, body: bytes) -> Environ:
    return {**environ, "wsgi.input": BytesIO(body)}


def _backend() -> Any:
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    return s3_backends[DEFAULT_ACCOUNT_ID]["aws"]


def _buckets() -> dict[str, Any]:
    found: dict[str, Any] = _backend().buckets
    return found


def _by_parts(key: str) -> str:
    return key.replace("/", "\0")


def _listing(bucket: str, query: Query) -> str:
    """What `ListObjectsV2` answers."""
    keys, prefix, most = _buckets()[bucket].keys, query.get("prefix", ""), int(query.get("max-keys", 1000))
    token = query.get("continuation-token")
    after = b64decode(token).decode() if token else query.get("start-after", "")
    listed = sorted((key for key in list(keys) if _by_parts(key) > _by_parts(after)), key=_by_parts)
    if after.startswith(prefix) or not after:
        listed = [key for key in listed if key.startswith(prefix)]
    elif not prefix.startswith(after):  # else: keys from outside the prefix
        listed = []
    delimiter = query.get("delimiter", "")
    entries: dict[str, bool] = {}  # by key or common prefix: whether it is a key
    for key in listed:
        head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
        entries[prefix + head + delimiter if found else key] = not found
    page = [*entries.items()][:most]
    code = quote if query.get("encoding-type") == "url" else escape
    body = "".join(_shown(keys[key], code(key)) if own else _common(code(key)) for key, own in page)
    more = len(entries) > len(page)
    next_token = b64encode(_last(page[-1]).encode()).decode() if more and page else ""
    return (
        f"<ListBucketResult><Name>{bucket}</Name><Prefix>{code(prefix)}</Prefix><MaxKeys>{most}</MaxKeys>"
        f"<KeyCount>{len(page)}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>"
        + (f"<NextContinuationToken>{next_token}</NextContinuationToken>" if next_token else "")
        + ("<EncodingType>url</EncodingType>" if code is quote else "")
        + f"{body}</ListBucketResult>"
    )


def _last(entry: tuple[str, bool]) -> str:
    return entry[0] if entry[1] else entry[0] + "\U0010ffff"


def _shown(found: Any, key: str) -> str:
    return (
        f"<Contents><Key>{key}</Key><LastModified>{found.last_modified_ISO8601}</LastModified>"
        f"<ETag>{escape(found.etag)}</ETag><Size>{found.size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )


def _common(prefix: str) -> str:
    return f"<CommonPrefixes><Prefix>{prefix}</Prefix></CommonPrefixes>"

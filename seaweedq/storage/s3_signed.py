"""The requests that most are, signed here: the put of an object, the get of a range, a page of a listing, and presigned
gets.

botocore takes over 1 ms of CPU to make a request and to read its answer (rules of endpoints, hooks, models), which is
more than all else that it costs. So these three are made here, and botocore's HTTP session sends them: with its
connections, proxies, certificates and time limits, and its errors. All that may differ between stores is learnt from a
request that botocore has signed (`SigningPlace.from_request`), and its credentials are asked for each. A place that is
signed in another way than by Signature Version 4 is not learnt: botocore makes all requests there. The signature is
that of https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html. It covers all headers and, as
botocore's is set up to do, no body.

Presigned gets come by the thousand: botocore needs 0.3 ms or more for each, so it signs one, and the others are derived
from that `Example`. No part of a URL is invented here. Two URLs of the same moment differ in the key and in the
signature over it (Signature Version 4, query parameters); everything else is copied. An example is used only if this
code reproduces it letter by letter as botocore signed it.
"""

import hashlib
import hmac
import logging
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any, Protocol
from urllib.parse import parse_qs, quote, unquote_plus, urlsplit

from botocore.awsrequest import AWSPreparedRequest
from botocore.compat import get_current_datetime
from botocore.utils import parse_timestamp

from seaweedq.storage.interface import ListedObject

_DEFAULT_PORTS = {"http": ":80", "https": ":443"}  # which clients leave out of the Host header
_SIGNATURE = "&X-Amz-Signature="
_ALGORITHM = "AWS4-HMAC-SHA256"
_DIGEST = "UNSIGNED-PAYLOAD"
_CODE, _MESSAGE = re.compile(rb"<Code>([^<]*)</Code>"), re.compile(rb"<Message>([^<]*)</Message>")
_PORTS = {"http": 80, "https": 443}
_UNSIGNED = {"user-agent": "seaweedq"}
_KINDS = {"PutObject", "GetObject", "ListObjectsV2"}
_REFUSED = {301, 302, 307, 308, 400, 401, 403}  # of a request that the store did not accept: nothing has happened
_DAMAGED = {"RequestTimeout", "IncompleteBody", "BadDigest"}  # codes of 400 that say nothing about a signature
MOST_REFUSED = 1_000  # keys of refused puts that are remembered


logger = logging.getLogger("seaweedq")


@dataclass(frozen=True, slots=True)
class Example:
    """The parts that presigned URLs of the same moment share."""

    origin: str
    host: str
    folder: str  # the path up to the object's key
    query: str  # without the signature, as it is sent
    sorted_query: str
    moment: str
    scope: str
    secret: bytes = field(repr=False)

    @staticmethod
    def from_url(url: str, key: str, secret: str) -> "Example | None":
        """Parses a presigned GET of `key` into an example; None if its kind is not supported here.

        `secret` is the secret access key that signed it.
        """
        parts = urlsplit(url)
        query, _, _ = parts.query.partition(_SIGNATURE)
        said = {name: values[0] for name, values in parse_qs(query).items()}
        path = quote(key, safe="/~")
        if said.get("X-Amz-Algorithm") != _ALGORITHM or not parts.path.endswith(path):
            return None
        _, _, scope = said.get("X-Amz-Credential", "").partition("/")
        example = Example(
            f"{parts.scheme}://{parts.netloc}",
            parts.netloc.removesuffix(_DEFAULT_PORTS.get(parts.scheme, "")),
            parts.path.removesuffix(path),
            query,
            "&".join(sorted(query.split("&"))),
            said.get("X-Amz-Date", ""),
            scope,
            _signing_key(secret, scope),
        )
        return example if example.url(key) == url else None

    def url(self, key: str) -> str:
        """Returns the presigned GET of another key."""
        path = self.folder + quote(key, safe="/~")
        request = f"GET\n{path}\n{self.sorted_query}\nhost:{self.host}\n\nhost\nUNSIGNED-PAYLOAD"
        said = f"{_ALGORITHM}\n{self.moment}\n{self.scope}\n{sha256(request.encode()).hexdigest()}"
        signature = hmac.new(self.secret, said.encode(), "sha256").hexdigest()
        return f"{self.origin}{path}?{self.query}{_SIGNATURE}{signature}"


class Credentials(Protocol):
    """The keys of botocore."""

    access_key: str
    secret_key: str
    token: str | None


class ErrorAnswer(OSError):
    """Raised for an answer that is an error, with its status and the store's code."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class Answer:
    """A good answer; `headers` have names in lower case."""

    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class SigningPlace:
    """A bucket as requests name it: scheme and host, the path of the bucket itself (empty if the host names it), and
    the region of signatures."""

    origin: str
    host: str
    root: str
    region: str

    @staticmethod
    def from_request(request: Any, signing_name: str, region: str, version: str) -> "SigningPlace | None":
        """Returns the place of a request about an object or a listing, which botocore is about to sign; None if it
        is signed in a way that is not known here."""
        options = request.context.get("auth_options") or ["aws.auth#sigv4"]
        asked = request.context.get("input_params") or {}
        if signing_name != "s3" or version not in ("s3v4", "v4") or options[0] != "aws.auth#sigv4" or not region:
            return None
        parts = urlsplit(request.url)
        name = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else f"{parts.hostname}"
        end = f"/{_quoted(asked['Key'])}" if "Key" in asked else ""
        if not parts.path.endswith(end):
            return None
        root = parts.path.removesuffix(end).rstrip("/")
        plain = parts.port is None or parts.port == _PORTS.get(parts.scheme)
        return SigningPlace(f"{parts.scheme}://{parts.netloc}", name if plain else f"{name}:{parts.port}", root, region)

    def request(
        self,
        method: str,
        key: str | None,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: object,
        keys: Credentials,
        now: datetime,
    ) -> AWSPreparedRequest:
        """Returns a signed request. The names of its headers are in lower case, their values without white space at
        the ends."""
        path = f"{self.root}/{_quoted(key)}" if key is not None else self.root or "/"
        asked = "&".join(f"{name}={quote(query[name], safe='-_.~')}" for name in sorted(query))
        moment = now.strftime("%Y%m%dT%H%M%SZ")
        signed = {**headers, "host": self.host, "x-amz-content-sha256": _DIGEST, "x-amz-date": moment}
        if keys.token:
            signed["x-amz-security-token"] = keys.token
        names = sorted(signed)
        lines = [method, path, asked, *(f"{name}:{signed[name]}" for name in names), "", ";".join(names), _DIGEST]
        scope = f"{moment[:8]}/{self.region}/s3/aws4_request"
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        signature = hmac.new(
            _signing_key(keys.secret_key, scope),
            f"{_ALGORITHM}\n{moment}\n{scope}\n{digest}".encode(),
            hashlib.sha256,
        ).hexdigest()
        del signed["host"]  # which the HTTP session states itself
        signed["authorization"] = (
            f"{_ALGORITHM} Credential={keys.access_key}/{scope}, SignedHeaders={';'.join(names)}, Signature={signature}"
        )
        return AWSPreparedRequest(
            method, f"{self.origin}{path}{'?' if asked else ''}{asked}", {**signed, **_UNSIGNED}, body, False
        )


class SignedRequests:
    """The requests of one bucket that are signed here. `place` is None as long as botocore has to make them all: until
    one of its own has worked, and for ever if the store accepts a request from it that was refused from here, or
    where a version of botocore lacks the private parts that are used here.

    A get that is refused is botocore's at once. A put is sent once, so the next one of that key is.
    """

    def __init__(self) -> None:
        self.place: SigningPlace | None = None
        self.learnt: SigningPlace | None = None
        self._is_known = False
        self._refused: set[str] = set()  # keys of puts

    def learn(self, client: Any) -> None:
        """Looks at what a client of botocore signs from now on."""
        client.meta.events.register("before-sign.s3", self.learn_place, unique_id="seaweedq-place")

    def record_success(self, tried: SigningPlace | None = None) -> bool:
        """Records that a request of botocore's has worked; `tried` if the store had refused the same one from here.
        Returns False if that ends the requests from here."""
        if tried is not None:
            self.place = None
            return False
        if not self._is_known and self.learnt:
            self.place, self._is_known = self.learnt, True
        return True

    async def send(
        self,
        client: Any,
        method: str,
        key: str | None,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: Any = None,
    ) -> Answer | None:
        """Sends a request, and returns its answer; None if botocore has to make it, and nothing was put. Raises
        ErrorAnswer, and botocore's errors if no answer came."""
        if self.place is None or key in self._refused:
            self._refused.discard(key or "")
            return None
        try:
            keys = await client._request_signer._credentials.get_frozen_credentials()
            request = self.place.request(method, key, query, headers, body, keys, get_current_datetime())
            dispatch = client._endpoint.http_session.send
        except (AttributeError, TypeError) as error:  # of another botocore; nothing is sent
            self.place = None
            logger.warning(
                "seaweedq's own code for S3 requests does not work with the installed version of botocore (%r), so "
                "from now on botocore sends all S3 requests",
                error,
            )
            return None
        if body is not None:
            request.headers["content-length"] = str(len(body))
        answer = await dispatch(request)
        data: bytes = await answer.content
        status = int(answer.status_code)
        if status == 200 and body is not None and data and _is_error(data):
            status = 500  # as botocore has it: S3 may find out behind the head that it has failed
        if status < 300:
            return Answer(answer.headers, data)
        failed = ErrorAnswer(status, _found(_CODE, data) or f"{status}", _found(_MESSAGE, data))
        if status in _REFUSED and failed.code not in _DAMAGED:
            if body is None:
                return None
            if len(self._refused) >= MOST_REFUSED:
                self._refused.clear()
            self._refused.add(key or "")
        raise failed

    def learn_place(
        self,
        request: Any,
        signing_name: str,
        region_name: str,
        signature_version: str,
        operation_name: str,
        **_: Any,
    ) -> None:
        """Notes the place of a request that botocore signs, as its event calls it."""
        if self._is_known or operation_name not in _KINDS:
            return
        try:
            if not request.context.get("is_presign_request"):
                self.learnt = SigningPlace.from_request(request, signing_name, region_name, signature_version)
        except (AttributeError, KeyError, TypeError, ValueError):  # of another botocore, which makes the request
            self.learnt = None


def read_page(body: bytes) -> tuple[Sequence[ListedObject], bool]:
    """Returns the objects of a page of a listing, and whether there are more. Raises OSError for another body."""
    try:
        parts = [(_tag(part), part) for part in ET.fromstring(body)]
        said = {tag: part.text for tag, part in parts}
        encoded = said.get("EncodingType") == "url"
        listed = [
            _listed({_tag(field): field.text or "" for field in part}, encoded)
            for tag, part in parts
            if tag == "Contents"
        ]
        return listed, said["IsTruncated"] == "true"
    except (ET.ParseError, KeyError, ValueError) as error:
        raise OSError(f"the store's listing cannot be read: {error!r}") from error


def _listed(fields: Mapping[str, str], encoded: bool) -> ListedObject:
    name, modified = fields["Key"], fields["LastModified"]
    try:
        time = datetime.fromisoformat(modified)
    except ValueError:
        time = parse_timestamp(modified)
    return ListedObject(unquote_plus(name) if encoded else name, int(fields["Size"]), int(time.timestamp() * 1_000_000))


def _is_error(body: bytes) -> bool:
    """Tells whether the body of a good status is an error nevertheless, or none that can be read."""
    try:
        return _tag(ET.fromstring(body)) == "Error"
    except ET.ParseError:
        return True


def _found(part: re.Pattern[bytes], body: bytes) -> str:
    found = part.search(body)
    return found[1].decode(errors="replace") if found else ""


def _tag(part: ET.Element) -> str:
    return part.tag.rpartition("}")[2]


def _quoted(key: str) -> str:
    return quote(key, safe="/-_.~")


@lru_cache(maxsize=8)
def _signing_key(secret: str, scope: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key

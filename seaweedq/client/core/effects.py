"""The effects that the core asks of its shells: a request, a pause, work in a thread. The core itself does no I/O.

A call is a generator: it yields an effect and is sent the result. A transport, real or a test's, drives it.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, TypeVar

from seaweedq.client.files import Slice

T = TypeVar("T")
JSON = "application/json"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; answered with a Reply, or ConnectionFailed is thrown in. `wait_s`: how long the server was
    asked to wait, in addition to the client's own timeout. `urls` are the preferred brokers, the best first; any other
    broker can serve the request too. If the outcome is unknown, only requests that are `repeatable`, and GET and PUT,
    are repeated. `streamed`: the body of a success is not read yet, but comes from the reply's `stream`. `is_hedged`:
    if another broker can be asked, the first one may be silent for `attempts.SILENT_S` only."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    content: bytes | Slice = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    wait_s: float = 0
    urls: tuple[str, ...] = ()
    repeatable: bool = False
    streamed: bool = False
    is_hedged: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a request at one broker; answered as the request is. It ends once the broker was silent for the
    client's own timeout, or for `silent_s` if that is less."""

    url: str
    request: Request
    silent_s: float = inf


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request to a signed URL, with exactly these headers; answered as a Request is.

    Only the caller may see the URL's query: errors have the URL's bare form alone (`problems.bare`).
    """

    url: str = field(repr=False)
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | Slice = b""
    wait_s: float = 0
    streamed: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """Reads the next bytes of a reply's `stream`; answered with none at its end, or ConnectionFailed is thrown in."""

    stream: Any


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes for the reader; only the steps of a payload yield them. Answered with None."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Together:
    """Runs all of these, `most` at a time; answered with None. The first error ends the others, and is thrown in."""

    steps: "Iterable[Steps[None]]"
    most: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Waits for this many seconds; answered with None."""

    seconds: float


@dataclass(frozen=True, slots=True)
class BlockingCall:
    """Blocking work, such as reading files; answered with its return value."""

    run: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer, read whole unless it has a `stream`. Header names are in lower case; `url` is that of the broker
    that answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str = ""
    stream: Any = None


Effect = Request | Attempt | SignedRequest | Read | Chunk | Together | Pause | BlockingCall
Steps = Generator[Effect, Any, T]

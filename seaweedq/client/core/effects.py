"""What the core asks of its shells: a request, a pause, work in a thread. The core itself does no I/O.

A call is a generator: it yields an effect and is sent what came of it. `transport` drives it, for real or in a test.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from seaweedq.client.files.upload_source import Slice

T = TypeVar("T")
JSON = "application/json"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; answered with a Reply, or ConnectionFailed is thrown in. `wait_s`: how long the server was
    asked to wait, on top of the client's own timeout. `urls` are the brokers that know best, the best first: any other
    can do it too. Only what is `repeatable`, and GET and PUT, is sent again where its outcome is open. `streamed`: the
    body of a success is not read yet, but taken from the reply's `stream`."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    content: bytes | Slice = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    wait_s: float = 0
    urls: tuple[str, ...] = ()
    repeatable: bool = False
    streamed: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a request at one broker; answered as the request is."""

    url: str
    request: Request


@dataclass(frozen=True, slots=True)
class Signed:
    """A request to a URL that is its own permission, with exactly these headers; answered as a Request is.

    Nobody but who asked for it may see the URL's query: `signed.bare` is what an error may name.
    """

    url: str = field(repr=False)
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | Slice = b""
    wait_s: float = 0
    streamed: bool = False


@dataclass(frozen=True, slots=True)
class Take:
    """The next bytes of a reply's `stream`; answered with none at its end, or ConnectionFailed is thrown in."""

    stream: Any


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes for whoever reads; only the steps of a payload yield them. Answered with None."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Together:
    """Do all of these, `most` at a time; answered with None. The first error ends the others, and is thrown in."""

    steps: "Iterable[Steps[None]]"
    most: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for this many seconds; answered with None."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """Blocking work, such as reading files; answered with what it returns."""

    run: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer, read whole unless it has a `stream`. Header names are in lower case; `url` is the broker's who
    gave it."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str = ""
    stream: Any = None


Effect = Request | Attempt | Signed | Take | Piece | Together | Pause | Work
Steps = Generator[Effect, Any, T]

"""Reads the bodies of requests: every body on every route is bounded in size, in decoded size, in time and in memory.
uvicorn has no deadline for receiving a request, and FastAPI none of these bounds.

JSON other than messages is decoded strictly into a typed struct; errors name field and bound. Python's own json accepts
more than JSON. Texts of durations and sizes (`"7d"`, `"10GB"`) are taken by fields whose names end in their unit: they
become numbers once a body was refused, so that a body of numbers costs nothing more. Each such field has the body
decoded anew, so a body with texts may have MAX_BYTES_OF_TEXTS.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from seaweedq.api.connections.memory import (
    MEMBER_BYTES,
    SAME_SIZE,
    SLOW_BYTES_PER_S,
    SMALL_BYTES,
    DecodingMemory,
    FairMemory,
    IncompleteBodies,
    IncompleteBody,
    UnreadAnswers,
    needed_to_decompress,
)
from seaweedq.api.problems import Refusals
from seaweedq.api.request import ClientGone, Request
from seaweedq.broker.log import Budget
from seaweedq.clock import Clock
from seaweedq.concurrency.deadline import EagerCoroutine
from seaweedq.errors import (
    InvalidRequest,
    MissingContentType,
    Overloaded,
    RequestTimeout,
    RequestTooLarge,
    UnreadableBody,
    UnsupportedContentType,
)
from seaweedq.json_reasons import in_words, of_field, reword, split_path
from seaweedq.rows.bodies import decode_body
from seaweedq.rows.json_values import MAX_DEPTH, blemish
from seaweedq.settings import Settings
from seaweedq.units import value_of

T = TypeVar("T")
SMALL_JSON_BYTES = 16 * 1024  # a smaller body needs no memory to speak of while it is decoded
NO_MEMORY = nullcontext()
MAX_BYTES_OF_TEXTS = 256 * 1024
SHOWN = 100  # characters of a value that an error shows
_AT = re.compile(r"^(?P<reason>.*) - at `\$\.(?P<path>[^`]+)`$", re.DOTALL)
_TEXT = re.compile(r"Expected `(float|int)\b.*, got `str`")
_STEP = re.compile(r"\[(\d+)\]|\.?([^.\[\]]+)")
DRAIN_BYTES, DRAIN_S = 1024 * 1024, 1.0


def decode_request(content: bytes, stated: str | None, decoder: msgspec.json.Decoder[T]) -> T:
    """Returns the request in a body; an empty body counts as `{}`. `stated` is its content type, if one was given.

    Raises UnsupportedContentType, UnreadableBody (no JSON), InvalidRequest (unknown field, wrong type).
    """
    media = ("application/json" if stated is None else stated).partition(";")[0].strip().lower()
    if media != "application/json":
        raise UnsupportedContentType(
            f"the content type {media[:SHOWN]!r} is not application/json", supported=["application/json"]
        )
    try:
        try:
            return decoder.decode(content or b"{}")
        except msgspec.ValidationError as error:
            if len(content) > MAX_BYTES_OF_TEXTS:
                raise _invalid(str(error), content, decoder.type) from None
            return _with_units(str(error), content, decoder)
    except msgspec.DecodeError as error:
        raise UnreadableBody(f"the body is {in_words(error)}") from None
    except RecursionError:
        raise UnreadableBody(f"the body is nested deeper than {MAX_DEPTH} levels", bound=MAX_DEPTH) from None


def check_free_form(content: bytes) -> None:
    """Raises InvalidRequest if a body that is stored as it came is not JSON that every reader can read."""
    if content and (reason := blemish(content)):
        raise InvalidRequest(f"the request is not valid: {reason}", reason=reason)


def _with_units(reason: str, content: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Returns the request that was refused for this reason, with the texts in place of numbers parsed, one after the
    other. Raises InvalidRequest if that is not the reason."""
    numbers = content
    while True:
        numbers = _with_numbers(reason, numbers) or numbers
        try:
            return decoder.decode(numbers)
        except msgspec.ValidationError as error:
            if str(error) == reason:
                raise _invalid(reason, content, decoder.type) from None
            reason = str(error)


def _with_numbers(reason: str, content: bytes) -> bytes | None:
    """Returns a body with a number in place of the text at the path that msgspec names, and of its neighbours in a
    list; None if no text of a duration or a size is refused. Raises InvalidRequest for one that is neither."""
    found = _AT.match(reason)
    if not found or not _TEXT.match(found["reason"]):
        return None
    steps = [int(index) if index else name for index, name in _STEP.findall(found["path"])]
    whole = at = msgspec.json.decode(content)
    for step in steps[:-1]:
        at = at[step]
    name = next(step for step in reversed(steps) if isinstance(step, str))
    for place in range(len(at)) if isinstance(at, list) else steps[-1:]:
        if isinstance(text := at[place], str):
            try:
                number = value_of(name, text)
            except ValueError as error:
                path = re.sub(r"\d+(?=\]$)", str(place), found["path"])
                bound = str(error).rpartition(", not ")[0]
                raise InvalidRequest(f"{path} {error}", field=path, value=text[:SHOWN], bound=bound) from None
            if number is None:
                return None
            at[place] = number
    return msgspec.json.encode(whole)


def _invalid(reason: str, content: bytes, kind: Any) -> InvalidRequest:
    """Returns the error with the value at the path that msgspec names, and the allowed values of an enum."""
    reason, path = split_path(reason)
    fields = _members(kind, path) if "unknown field" in reason else ()
    said = reword(reason, fields)
    if fields and not path and (fixed := next((name for name in _fixed(kind) if f"`{name}`" in reason), None)):
        said = f"the field {fixed} cannot be changed after creation; the fields that can be changed are "
        said += ", ".join(fields)
    elif fields and "the nearest is" not in said:
        said += f"; the fields are {', '.join(fields)}"
    if not path:
        detail = f"the body {said}" if said.startswith("must ") else f"the request is not valid: {said}"
        return InvalidRequest(detail, reason=said)
    value = _at(content, path)
    choices = _choices(kind, path) if "enum" in reason else []
    bound = f"must be one of {', '.join(map(str, choices))}" if choices else said
    return InvalidRequest(of_field(path, bound, value), field=path, value=value, bound=bound)


def _at(content: bytes, path: str) -> str:
    """Returns the start of the JSON text at a path, if it can be found."""
    try:
        value = msgspec.json.decode(content)
        for index, name in _STEP.findall(path):
            value = value[int(index)] if index else value[name]
        return msgspec.json.encode(value).decode()[:SHOWN]
    except (ValueError, LookupError, TypeError, RecursionError):
        return "not valid"


def _fixed(kind: Any) -> Collection[str]:
    """Returns the fields of a change's struct that can be set only at the creation."""
    return getattr(kind, "FIXED", ())


def _choices(kind: Any, path: str) -> list[Any]:
    """Returns the allowed values at a path in a struct, from its JSON schema; objects by the members that they may
    have."""
    members = [f'{{"{name}": ...}}' for name in _members(kind, path)]
    return [choice for one in _allowed(kind, path) for choice in one.get("enum", ())] + members


def _members(kind: Any, path: str) -> list[str]:
    """Returns the fields that an object at a path of a struct may have."""
    return [name for one in _allowed(kind, path) for name in one.get("properties", ())]


def _allowed(kind: Any, path: str) -> list[dict[str, Any]]:
    """Returns the JSON schemas of the values that a path of a struct may have."""
    (schema,), components = msgspec.json.schema_components((kind,))
    found = list(_forms(schema, components))
    for index, name in _STEP.findall(path):
        inner = (one.get("items") if index else one.get("properties", {}).get(name) for one in found)
        found = [form for one in inner if one for form in _forms(one, components)]
    return found


def _forms(schema: dict[str, Any], components: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the forms that a schema allows."""
    if "$ref" in schema:
        schema = components[schema["$ref"].rpartition("/")[2]]
    yield schema
    for one in schema.get("anyOf", ()):
        yield from _forms(one, components)


class _Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """A request without fields."""


_NOTHING = msgspec.json.Decoder(_Nothing)


@dataclass(frozen=True, slots=True)
class RequestReader:
    """Reads requests within the bounds of the settings. Their bodies take their memory from the budget."""

    settings: Settings
    budget: Budget
    clock: Clock
    refusals: Refusals
    bodies: IncompleteBodies
    decoding: DecodingMemory
    unread: UnreadAnswers
    fair: FairMemory

    @staticmethod
    def of(
        settings: Settings, budget: Budget, clock: Clock, refusals: Refusals, parties: Callable[[], int] = lambda: 1
    ) -> "RequestReader":
        """Returns a reader whose requests share one budget, with their answers. `parties` returns how many principals
        share it."""
        bodies = IncompleteBodies(budget, settings.max_request_bytes, clock.monotonic_s)
        unread = UnreadAnswers(budget, clock, settings.answer_timeout_s, refusals)
        fair = FairMemory(budget, parties)
        decoding = DecodingMemory(budget, fair)
        return RequestReader(settings, budget, clock, refusals, bodies, decoding, unread, fair)

    def body(self, request: Request) -> "Body":
        """Returns the body as a block that holds its memory: `async with reader.body(...) as content`."""
        return Body(self, request, self.settings.max_request_bytes)

    def body_of_peer(self, request: Request, limit_bytes: int) -> "Body":
        """Returns the body of a call of another broker, which has no content type, and is never too slow."""
        return Body(self, request, limit_bytes, of_peer=True)

    async def json(self, request: Request, decoder: msgspec.json.Decoder[T], free_form: bool = False) -> T:
        """Returns the request's JSON body, decoded strictly; `free_form` says that a field may hold any JSON.

        Raises the errors of `Body` and of `decode_request`.
        """
        async with self.body(request) as content:
            with self.decoding_json(content):
                decoded = decode_request(content, request.header(b"content-type"), decoder)
                if free_form:
                    check_free_form(content)
                return decoded

    def decoding_json(self, content: bytes) -> AbstractContextManager[None]:
        """Returns the block in which a request is decoded, with the memory that this needs. Raises RequestTooLarge
        if it needs more than there ever is, and Overloaded."""
        if len(content) < SMALL_JSON_BYTES:
            return NO_MEMORY
        needed = SAME_SIZE * len(content) + MEMBER_BYTES * (content.count(b":") + content.count(b","))
        if needed > self.budget.limit_bytes:
            raise RequestTooLarge(
                f"decoding the body needs {needed} bytes of memory, more than "
                f"memory_budget_bytes={self.budget.limit_bytes}; send several smaller requests",
                limit_bytes=self.budget.limit_bytes,
            )
        return self.budget.holding(needed)

    @contextmanager
    def made(self, request: Request, size: int) -> Iterator[None]:
        """Holds the decoded form of a request's body, for as long as the block runs; unless it is small, it counts for
        its caller's share."""
        caller, counted = request.key, size if size >= SMALL_BYTES else 0
        if counted:
            self.fair.add(caller, counted)
        try:
            with self.budget.made(size):
                yield
        finally:
            if counted:
                self.fair.release(caller, counted)

    async def nothing(self, request: Request) -> None:
        """Reads the body of a request that has no fields: none, or `{}`. Raises the errors of `json`."""
        await self.json(request, _NOTHING)

    def arrived(self, body: IncompleteBody, size: int) -> None:
        """Has an incomplete body hold bytes that came. Raises Overloaded."""
        try:
            self.bodies.add(body, size)
        except Overloaded as error:
            self.refusals.note("bodies", error.detail)
            raise

    def too_slow(self, body: IncompleteBody | None, otherwise: str) -> RequestTimeout:
        """Returns the error for a body that had to go since others needed its memory, or `otherwise` did not come."""
        if body is None or not body.dismissed:
            return RequestTimeout(otherwise, timeout_s=self.timeout_s)
        detail = f"the body arrived at less than {SLOW_BYTES_PER_S} bytes/s while other requests needed its memory"
        self.refusals.note("slow_body", detail)
        return RequestTimeout(detail, bytes_per_s=SLOW_BYTES_PER_S)

    @property
    def timeout_s(self) -> float:
        """The seconds within which a body must arrive, or its next bytes if it is streamed."""
        return self.settings.request_timeout_s


class Body:
    """The decoded body of a request, held in the memory budget for as long as the block runs.

    Raises MissingContentType if a client's is not empty, RequestTooLarge, RequestTimeout, UnsupportedEncoding,
    UnreadableBody, Overloaded, ClientGone.
    """

    __slots__ = (
        "_deadline",
        "_fair",
        "_held",
        "_incomplete",
        "_is_untyped",
        "_limit",
        "_of_peer",
        "_reader",
        "_request",
    )

    def __init__(self, reader: RequestReader, request: Request, limit_bytes: int, of_peer: bool = False) -> None:
        self._reader, self._request = reader, request
        self._limit, self._of_peer = limit_bytes, of_peer
        self._is_untyped = not of_peer and b"content-type" not in request.headers
        self._incomplete: IncompleteBody | None = None
        self._held = self._fair = 0

    async def __aenter__(self) -> bytes:
        try:
            stated = self._request.content_length
            if stated and (stated > self._limit or self._is_untyped):
                self._check(stated)
            work = EagerCoroutine(self._raw())
            raw = work.result if work.is_over else await self._in_time(work)
            encoding = self._request.headers.get(b"content-encoding")
            return raw if encoding is None else await self._decoded(raw, encoding.decode("latin-1"))
        except BaseException:
            self._release()
            raise

    async def __aexit__(self, *error: object) -> None:
        self._release()

    def _release(self) -> None:
        self._reader.budget.release(self._held)
        if self._fair:
            self._reader.fair.release(self._request.key, self._fair)
        self._held = self._fair = 0
        self._incomplete = None  # it refers to this body

    async def _in_time(self, work: EagerCoroutine[bytes]) -> bytes:
        """Waits for a body that is not there yet."""
        try:
            async with asyncio.timeout(self._reader.timeout_s) as self._deadline:
                return await work
        except TimeoutError:
            otherwise = f"the body did not arrive within request_timeout_s={self._reader.timeout_s:g}"
            raise self._reader.too_slow(self._incomplete, otherwise) from None

    async def _raw(self) -> bytes:
        """Returns the body as it was sent. One of several pieces counts as incomplete until its last one."""
        budget, size, more = self._reader.budget, 0, True
        chunks: list[bytes] = []
        try:
            while more:
                message = await self._request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                chunk, more = message.get("body", b""), message.get("more_body", False)
                size += len(chunk)
                if size > self._limit or (chunk and self._is_untyped):
                    self._check(size)
                if more and not chunks and not self._of_peer:
                    self._incomplete = IncompleteBody(self._dismiss)
                if not self._of_peer and (more or chunks or size >= SMALL_BYTES):
                    self._reader.fair.claim(self._request.key, len(chunk))
                    self._fair += len(chunk)
                if self._incomplete is None:
                    budget.hold(len(chunk))
                    self._held += len(chunk)
                else:
                    self._reader.arrived(self._incomplete, len(chunk))
                chunks.append(chunk)
        finally:
            if self._incomplete:
                self._reader.bodies.release(self._incomplete)
        if self._incomplete:
            budget.take(size)  # it was held as an incomplete one
            self._held += size
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _dismiss(self) -> None:
        """Ends the wait for a body that came too slowly."""
        end_now(self._deadline)

    async def _decoded(self, raw: bytes, encoding: str) -> bytes:
        """Returns the body without its content encoding, which holds as much as it has become."""
        caller, limit = None if self._of_peer else self._request.key, self._limit
        decoding, timeout_s = self._reader.decoding, self._reader.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                needed = needed_to_decompress(limit)
                decoded = await decoding.run(caller, self._fair, needed, decode_body, raw, encoding, limit)
        except TimeoutError:
            detail = f"no memory to decode the body was free within request_timeout_s={timeout_s:g}; try again"
            raise Overloaded(detail, budget_bytes=self._reader.budget.limit_bytes) from None
        self._release()
        self._reader.budget.take(len(decoded))
        self._reader.fair.add(caller, len(decoded))
        self._held, self._fair = len(decoded), 0 if self._of_peer else len(decoded)
        return decoded

    def _check(self, size: int) -> None:
        """Raises RequestTooLarge or MissingContentType for a body of so many bytes, or of more."""
        if size > self._limit:
            raise RequestTooLarge(
                f"the body is larger than max_request_bytes={self._limit}; send several smaller "
                "requests, or upload each large payload and publish a reference to the upload",
                limit_bytes=self._limit,
            )
        if self._is_untyped:
            raise MissingContentType("a request with a body needs the header Content-Type")


class StreamedBody:
    """A request's body as it comes, in place of its `receive`; `ended` once it came whole, or the client has gone."""

    def __init__(self, request: Request) -> None:
        self._receive, request.receive = request.receive, self
        self._waiting: asyncio.Timeout | None = None
        self._asks = request.header(b"expect") is not None  # the client sends nothing before it is told to
        self.ended = request.content_length in (None, 0) and request.header(b"transfer-encoding") is None

    async def __call__(self) -> Any:
        message = await self._receive()
        self.ended = not message.get("more_body", False)
        return message

    async def chunks(self, reader: RequestReader, held: IncompleteBody) -> AsyncIterator[bytes]:
        """Yields all of it; `held` holds the memory of its bytes. Raises ClientGone, Overloaded, and
        RequestTimeout if nothing comes for request_timeout_s, or too little while others need the memory."""
        while not self.ended:
            message = await self._next(reader, held)
            if message["type"] == "http.disconnect":
                raise ClientGone
            if chunk := message.get("body"):
                reader.arrived(held, len(chunk))
                yield chunk

    def dismiss(self) -> None:
        """Ends the wait for bytes that come too slowly."""
        if self._waiting:
            end_now(self._waiting)

    async def _next(self, reader: RequestReader, held: IncompleteBody) -> Any:
        try:
            if not held.dismissed:
                async with asyncio.timeout(reader.timeout_s) as self._waiting:
                    return await self()
        except TimeoutError:
            pass
        finally:
            self._waiting = None
        raise reader.too_slow(held, f"no byte of the body arrived within request_timeout_s={reader.timeout_s:g}")

    async def drained(self) -> bool:
        """Returns whether nothing more can come, so that the connection may be used again. A little is read to that
        end: a client that still sends would otherwise see a reset connection in place of the answer."""
        left = DRAIN_BYTES
        try:
            async with asyncio.timeout(DRAIN_S):
                while not self.ended and not self._asks and left > 0:
                    left -= len((await self()).get("body", b""))
        except TimeoutError:
            pass
        return self.ended


def end_now(deadline: asyncio.Timeout) -> None:
    """Ends a wait. One whose time is over already may not have heard of it yet, and cannot be told again."""
    with suppress(RuntimeError):
        deadline.reschedule(asyncio.get_running_loop().time())

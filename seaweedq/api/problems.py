"""Problems: errors, also those of path operations, as RFC 9457 documents; the only place with status codes.

What was refused to strangers is counted by reason and logged: else nobody sees an attack, or a bound that is too low.
The first refusal for a reason is logged, then one line each REFUSALS_EVERY_S with the number of those between.
"""

import logging
from collections.abc import Callable
from math import ceil
from typing import Any

import msgspec
from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ExceptionHandler

from seaweedq import errors
from seaweedq.access.tokens import masked
from seaweedq.api.request import Answer, ClientGone, Request
from seaweedq.clock import Clock
from seaweedq.errors import (
    Forbidden,
    ForeignOrigin,
    MissingContentType,
    RateLimited,
    RouteNotFound,
    SeaweedqError,
    TooManySegments,
    TooManyTopics,
    Unauthenticated,
    Unavailable,
    WrongHost,
)

CONTENT_TYPE = "application/problem+json"
EVERY_S = 5.0
WINDOW_S = 100  # of a quota that is no whole number each second
logger = logging.getLogger(__name__)

STATUS: dict[type[SeaweedqError], int] = {
    errors.UnreadableRequest: 400,
    errors.UnreadableBody: 400,
    errors.InvalidPositions: 400,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.ForeignOrigin: 403,
    errors.PeerRefused: 403,
    errors.RouteNotFound: 404,
    errors.TopicNotFound: 404,
    errors.SegmentNotFound: 404,
    errors.SubscriptionNotFound: 404,
    errors.PrincipalNotFound: 404,
    errors.TokenNotFound: 404,
    errors.DenialNotFound: 404,
    errors.UploadNotFound: 404,
    errors.WriteNotFound: 404,
    errors.PayloadNotFound: 404,
    errors.MethodNotAllowed: 405,
    errors.NotAcceptable: 406,
    errors.RequestTimeout: 408,
    errors.TopicConflict: 409,
    errors.SchemaIncompatible: 409,
    errors.SchemaMismatch: 409,
    errors.SchemaNotFound: 404,
    errors.SubscriptionConflict: 409,
    errors.SegmentConflict: 409,
    errors.TopicBeingDeleted: 409,
    errors.SequenceOutOfOrder: 409,
    errors.NeedsLevel: 409,
    errors.NoDeadLetters: 409,
    errors.JournalConflict: 409,
    errors.LevelConflict: 409,
    errors.RebuildConflict: 409,
    errors.WriteOutOfOrder: 409,
    errors.UploadIncomplete: 409,
    errors.UploadConflict: 409,
    errors.LeaseOfAnother: 409,
    errors.UploadExpired: 410,
    errors.LeaseEnded: 410,
    errors.BelowRetention: 410,
    errors.RequestTooLarge: 413,
    errors.MessageTooLarge: 413,
    errors.PayloadTooLarge: 413,
    errors.UnsupportedContentType: 415,
    errors.UnsupportedEncoding: 415,
    errors.MissingContentType: 415,
    errors.OffsetOutOfRange: 416,
    errors.WrongHost: 421,
    errors.BadRequest: 422,
    errors.InvalidRequest: 422,
    errors.InvalidName: 422,
    errors.InvalidMessages: 422,
    errors.UploadMismatch: 422,
    errors.InvalidUpload: 422,
    errors.InvalidImport: 422,
    errors.TooManyUploads: 429,
    errors.TooManyWriters: 429,
    errors.TooManyTopics: 429,
    errors.TooManySegments: 429,
    errors.RateLimited: 429,
    errors.Unavailable: 503,
    errors.NotReady: 503,
    errors.Restored: 503,
    errors.NotOwner: 503,
    errors.PartlyTaken: 503,
    errors.Overloaded: 503,
    errors.NeedsNewerBroker: 503,
    errors.PeerTooOld: 503,
    errors.JournalUnavailable: 503,
    errors.StoreUnavailable: 503,
    errors.CoordinationUnavailable: 503,
    errors.Fenced: 503,
    errors.SeaweedqError: 500,
    errors.Damaged: 500,
    errors.JournalDamaged: 500,
    errors.ChainDamaged: 500,
    errors.UnfitStore: 500,
    errors.LevelMismatch: 500,
    errors.DataFolderInUse: 500,
    errors.ClientError: 500,
    errors.ServerProblem: 500,
    errors.ConnectionFailed: 500,
    errors.FileMissing: 500,
    errors.MissingExtra: 500,
}


class Problem(BaseModel):
    """An RFC 9457 problem. Some errors have additional members."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(examples=["/problems/topic-not-found"])
    title: str = Field(examples=["Topic not found"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["topic 'flights' does not exist"])


def status_of(error: SeaweedqError) -> int:
    """Returns the status of the answer to an error."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def problem(error: SeaweedqError) -> tuple[int, dict[str, str], bytes]:
    """Returns status, headers and body of the answer to an error. What a client has said may be in it, and be a token
    in the wrong place: its secret is not repeated."""
    status = status_of(error)
    document: dict[str, Any] = {
        **{name: masked(value) if isinstance(value, str) else value for name, value in error.fields.items()},
        "type": f"/problems/{error.slug}",
        "title": error.title,
        "status": status,
        "detail": masked(error.detail),
    }
    headers = {"content-type": CONTENT_TYPE}
    if isinstance(error, Unavailable):
        headers["retry-after"] = str(error.retry_after_s)
    elif status == 503:
        headers["retry-after"] = "1"
    elif status == 401:
        headers["www-authenticate"] = 'Bearer realm="seaweedq"'
    elif allowed := error.fields.get("allowed"):
        headers["allow"] = ", ".join(allowed)
    elif isinstance(error, errors.RateLimited):
        headers |= _limit_headers(error)
    elif status == 408:
        headers["connection"] = "close"  # the rest of the body would be read as the next request
    return status, headers, msgspec.json.encode(document)


def _limit_headers(error: errors.RateLimited) -> dict[str, str]:
    """Returns Retry-After, and the fields of draft-ietf-httpapi-ratelimit-headers: what is left, until when, and the
    quota of a window. All are whole numbers: the window is one second, or as many as make the quota one."""
    limit, rate = error.fields.get("limit", "requests"), error.fields.get("rate") or 0
    wait_s = max(1, ceil(error.fields.get("retry_after_s", 0)))
    window_s = 1 if rate == int(rate) or rate >= WINDOW_S else WINDOW_S
    return {
        "retry-after": str(wait_s),
        "ratelimit": f'"{limit}";r=0;t={wait_s}',
        "ratelimit-policy": f'"{limit}";q={round(rate * window_s)};w={window_s}',
    }


class InsideLog:
    """Logs the parts of errors that clients do not get. It logs one error of each kind every EVERY_S, so that an outage
    does not fill the log."""

    def __init__(self, clock: Clock, masked: Callable[[str], str] = masked) -> None:
        self._clock = clock
        self._masked = masked
        self._next_s: dict[type[SeaweedqError], float] = {}

    def note(self, error: SeaweedqError) -> None:
        """Logs an error with which a client is answered."""
        now_s = self._clock.monotonic_s()
        if error.inside and now_s >= self._next_s.get(type(error), now_s):
            self._next_s[type(error)] = now_s + EVERY_S
            logger.warning("a request was answered with the error %s: %s", error.slug, self._masked(str(error)))


def unexpected(error: Exception) -> tuple[int, dict[str, str], bytes]:
    """Returns the answer to a defect of the broker, and logs its traceback."""
    logger.error("a request failed with an unexpected error", exc_info=error)
    return problem(SeaweedqError("the broker met an unexpected error; see the broker's log for details"))


def problem_answer(error: SeaweedqError) -> Answer:
    """Returns the answer to an error."""
    status, headers, content = problem(error)
    return Answer(status, content, headers)


def unexpected_answer(error: Exception) -> Answer:
    """Returns the answer to a defect of the broker, and logs its traceback."""
    status, headers, content = unexpected(error)
    return Answer(status, content, headers)


Note = Callable[[SeaweedqError, Request], None]


def handlers(note: Note) -> dict[Any, ExceptionHandler]:
    """Returns FastAPI's handlers of errors: each becomes a problem, and `note` hears of the project's own, with their
    requests."""

    async def known(connection: HTTPConnection, error: Exception) -> Response:
        """Answers with an error of the project's own."""
        assert isinstance(error, SeaweedqError)
        note(error, connection.state.request)
        return _response(problem(error))

    async def routing(connection: HTTPConnection, error: Exception) -> Response:
        """Answers that there is no such route. Its route was found: a part of the path is empty, or names no
        file."""
        request: Request = connection.state.request
        return _response(
            problem(RouteNotFound(f"there is no route {request.method} {request.path[:200]}; /docs lists all routes"))
        )

    async def gone(connection: HTTPConnection, error: Exception) -> Response:
        """Ends a request whose client has gone: nobody reads the answer."""
        return Response(status_code=499)

    async def unknown(connection: HTTPConnection, error: Exception) -> Response:
        """Answers 500, and logs the error."""
        return _response(unexpected(error))

    return {SeaweedqError: known, HTTPException: routing, ClientGone: gone, Exception: unknown}


def _response(answer: tuple[int, dict[str, str], bytes]) -> Response:
    status, headers, content = answer
    return Response(content, status, headers)


REASON_OF: dict[type[SeaweedqError], str] = {
    WrongHost: "host",
    ForeignOrigin: "origin",
    MissingContentType: "content_type",
    RateLimited: "rate",
    Unauthenticated: "unauthenticated",
    Forbidden: "forbidden",
    TooManyTopics: "topics",
    TooManySegments: "segments",
}
OF_BODIES, OF_ANSWERS = ("bodies", "slow_body", "unread_body"), ("answers", "slow_reader", "unread_answer")
OF_CONNECTIONS = ("connection", "quiet_connection", "slow_head", "handshake", "staying", "tls", "address", "protocol")
OF_PEERS = ("peer",)
REASONS = (*REASON_OF.values(), *OF_PEERS, *OF_BODIES, *OF_ANSWERS, *OF_CONNECTIONS)
REFUSALS_EVERY_S = 10.0


class Refusals:
    """The counts of one broker, by reason. `throttled_s` are the seconds that limits have told clients to wait."""

    def __init__(self, clock: Clock, masked: Callable[[str], str] = masked) -> None:
        self.counts = dict.fromkeys(REASONS, 0)
        self.throttled_s = 0.0
        self._clock = clock
        self._masked = masked
        self._logged: dict[str, tuple[float, int]] = {}  # when, and the count then

    def note_error(self, error: SeaweedqError) -> None:
        """Counts an error with which a client is answered, if it is one of REASON_OF."""
        if isinstance(error, RateLimited):
            self.throttled_s += error.fields.get("retry_after_s", 0)
        if reason := REASON_OF.get(type(error)):
            self.note(reason, error.detail)

    def note(self, reason: str, detail: str) -> None:
        """Counts a refusal, and logs it if none was logged for a while."""
        self.counts[reason] += 1
        now_s = self._clock.monotonic_s()
        at_s, count = self._logged.get(reason, (-REFUSALS_EVERY_S, 0))
        if now_s - at_s >= REFUSALS_EVERY_S:
            self._logged[reason] = now_s, self.counts[reason]
            between = self.counts[reason] - count - 1
            told = self._masked(detail)
            logger.warning(
                "request refused (%s): %s (since the last line with this reason, %d other refusals were not logged)",
                reason,
                told,
                between,
            )

"""Every error of seaweedq, one tree. Status codes are not here: `api/asgi/problems` maps slugs to them.

    SeaweedqError
    ├── BadRequest                what a client sent cannot be taken
    │   ├── UnreadableRequest, UnreadableBody, UnsupportedContentType, UnsupportedEncoding
    │   ├── InvalidRequest, InvalidName, InvalidMessages
    │   ├── RequestTooLarge, MessageTooLarge, RequestTimeout
    │   ├── RouteNotFound, MethodNotAllowed
    │   ├── TopicNotFound, SegmentNotFound, SubscriptionNotFound, UploadNotFound, PayloadNotFound
    │   ├── UploadIncomplete, UploadMismatch, InvalidUpload, UploadExpired, UploadConflict
    │   ├── PayloadTooLarge, TooManyUploads, InvalidImport
    │   ├── TopicConflict, SubscriptionConflict, TopicBeingDeleted, SegmentConflict,
    │   │   SequenceOutOfOrder
    │   ├── OffsetOutOfRange
    │   └── Forbidden
    ├── Unavailable               try again later; `retry_after_s` says when
    │   ├── NotReady, Overloaded
    │   ├── JournalUnavailable, StoreUnavailable, CoordinationUnavailable
    │   └── NotOwner, PartlyTaken
    ├── Fenced                    another writer has what was ours: stop, and look again
    ├── Damaged                   what is stored is not what was written
    │   └── JournalDamaged, ChainDamaged
    ├── UnfitStore                the store breaks a promise that safety rests on
    ├── DataFolderInUse           another process holds the data folder
    └── ClientError               raised by the Python client alone
        └── ServerProblem, ConnectionFailed

`fields` of an error are what helps to mend it; they go into the problem document as they are.
"""

from typing import Any, ClassVar


class SeaweedqError(Exception):
    """The root. `slug` is stable and ends the problem's `type`; `title` says the same in words.

    `detail` is for whoever asked. `inside` is for logs alone: addresses of the installation, and what answered there.
    """

    slug: ClassVar[str] = "internal"
    title: ClassVar[str] = "Internal error"

    def __init__(self, detail: str, *, inside: str = "", **fields: Any) -> None:
        super().__init__(f"{detail}: {inside}" if inside else detail)
        self.detail = detail
        self.inside = inside
        self.fields = fields


class BadRequest(SeaweedqError):
    """What a client sent cannot be taken as it is."""

    slug, title = "bad-request", "Bad request"


class UnreadableRequest(BadRequest):
    """What came is not HTTP, or its head is too large."""

    slug, title = "unreadable-request", "The request cannot be read"


class UnreadableBody(BadRequest):
    """The body could not be parsed at all."""

    slug, title = "unreadable-body", "The body cannot be read"


class UnsupportedContentType(BadRequest):
    """The content type is not one that this route takes; fields: supported."""

    slug, title = "unsupported-content-type", "Unsupported content type"


class UnsupportedEncoding(BadRequest):
    """The content encoding is neither gzip nor zstd; fields: supported."""

    slug, title = "unsupported-encoding", "Unsupported content encoding"


class InvalidRequest(BadRequest):
    """Readable, but not valid; fields: often `field`, `value`, `bound`."""

    slug, title = "invalid-request", "The request is not valid"


class InvalidName(BadRequest):
    """A topic, subscription or producer name outside its alphabet."""

    slug, title = "invalid-name", "The name is not valid"


class InvalidMessages(BadRequest):
    """Some messages are not valid; fields: `errors` (index and reason of the first 100), `invalid` (how many)."""

    slug, title = "invalid-messages", "Some messages are not valid"


class RequestTooLarge(BadRequest):
    """The decoded body is over `max_request_bytes`; fields: limit_bytes."""

    slug, title = "request-too-large", "The request is too large"


class MessageTooLarge(BadRequest):
    """A message is over `max_message_bytes`; fields: limit_bytes, index."""

    slug, title = "message-too-large", "A message is too large"


class RequestTimeout(BadRequest):
    """The body did not arrive in time; fields: timeout_s."""

    slug, title = "request-timeout", "The request did not arrive in time"


class RouteNotFound(BadRequest):
    """No such path."""

    slug, title = "not-found", "Not found"


class MethodNotAllowed(BadRequest):
    """The path exists, the method does not; fields: allowed."""

    slug, title = "method-not-allowed", "Method not allowed"


class TopicNotFound(BadRequest):
    """No topic of that name; fields: topic."""

    slug, title = "topic-not-found", "Topic not found"


class SegmentNotFound(BadRequest):
    """The topic has no segment of that id; fields: topic, segment."""

    slug, title = "segment-not-found", "Segment not found"


class SubscriptionNotFound(BadRequest):
    """The topic has no subscription of that name; fields: topic, subscription."""

    slug, title = "subscription-not-found", "Subscription not found"


class UploadNotFound(BadRequest):
    """The topic has no such upload, or has it no more; fields: topic, upload_id."""

    slug, title = "upload-not-found", "Upload not found"


class UploadIncomplete(BadRequest):
    """Not all of the upload's bytes are in the store; fields: upload_id, and often `missing`."""

    slug, title = "upload-incomplete", "The upload is not complete"


class UploadMismatch(BadRequest):
    """What was uploaded is not what was said: its size or its SHA-256; fields: upload_id, field, value, bound."""

    slug, title = "upload-mismatch", "The upload is not what was announced"


class InvalidUpload(UploadMismatch):
    """A store's word for it: what came is of another size or digest; fields: field, value, bound."""

    slug, title = "invalid-upload", "The bytes are not those that were announced"


class UploadExpired(BadRequest):
    """Too late for this upload; fields: upload_id, expires_at."""

    slug, title = "upload-expired", "The upload has expired"


class UploadConflict(BadRequest):
    """The upload is in a state that does not allow this; fields: upload_id."""

    slug, title = "upload-conflict", "The upload does not allow this"


class PayloadTooLarge(BadRequest):
    """A payload is over the limit; fields: limit_bytes."""

    slug, title = "payload-too-large", "The payload is too large"


class TooManyUploads(BadRequest):
    """The topic has as many open uploads as it may have; fields: limit, retry_after_s."""

    slug, title = "too-many-uploads", "Too many open uploads"


class InvalidImport(BadRequest):
    """The uploaded file can not be read as what it is said to be; fields: format, reason."""

    slug, title = "invalid-import", "The file can not be imported"


class PayloadNotFound(BadRequest):
    """The message has no payload, or it is not in the store; fields: topic, id."""

    slug, title = "payload-not-found", "Payload not found"


class TopicConflict(BadRequest):
    """The topic exists with another configuration; fields: differences."""

    slug, title = "topic-exists", "The topic exists with another configuration"


class SubscriptionConflict(BadRequest):
    """The subscription exists with another configuration; fields: differences."""

    slug, title = "subscription-exists", "The subscription exists with another configuration"


class TopicBeingDeleted(BadRequest):
    """The topic's files are being removed; its name is free again afterwards."""

    slug, title = "topic-being-deleted", "The topic is being deleted"


class SegmentConflict(BadRequest):
    """Segments cannot be changed so, as they are; fields: segment, and successors where it is sealed."""

    slug, title = "segment-conflict", "The segment cannot be changed so"


class SequenceOutOfOrder(BadRequest):
    """A producer's sequence is neither new nor one that is remembered; fields: producer, sequence, newest."""

    slug, title = "sequence-out-of-order", "The producer's sequence is out of order"


class OffsetOutOfRange(BadRequest):
    """An offset beyond the segment's end; fields: offset, end_offset."""

    slug, title = "offset-out-of-range", "The offset is beyond the end"


class Forbidden(BadRequest):
    """Not for whoever asked."""

    slug, title = "forbidden", "Forbidden"


class Unavailable(SeaweedqError):
    """Nothing is wrong with the request; it can be sent again after `retry_after_s` seconds."""

    slug, title = "unavailable", "Unavailable"

    def __init__(self, detail: str, *, retry_after_s: int = 1, **fields: Any) -> None:
        super().__init__(detail, **fields)
        self.retry_after_s = retry_after_s


class NotReady(Unavailable):
    """The broker is starting, stopping or without its lease."""

    slug, title = "not-ready", "The broker is not ready"


class Overloaded(Unavailable):
    """The memory budget is used up; fields: budget_bytes."""

    slug, title = "overloaded", "The broker is overloaded"


class JournalUnavailable(Unavailable):
    """The journal could not be made durable (disk full, I/O error): nothing was taken."""

    slug, title = "journal-unavailable", "The journal cannot be written"


class StoreUnavailable(Unavailable):
    """The object store did not answer, or its answer leaves open what happened."""

    slug, title = "store-unavailable", "The store is unavailable"


class CoordinationUnavailable(Unavailable):
    """Coordination did not answer."""

    slug, title = "coordination-unavailable", "Coordination is unavailable"


class NotOwner(Unavailable):
    """Another broker has the segment, or the subscription, or is about to; fields: owner where it is known."""

    slug, title = "not-owner", "Another broker has it"


class PartlyTaken(Unavailable):
    """Some segments have taken their rows, others have not; fields: `taken` (segment, first_offset, count).

    The same request of the same producer completes it.
    """

    slug, title = "partly-taken", "Only a part was taken"


class Fenced(SeaweedqError):
    """Another writer took the name that would have been ours; nothing more may be acknowledged."""

    slug, title = "fenced", "Another broker has taken over"


class Damaged(SeaweedqError):
    """Stored bytes are not what was written; the detail says where."""

    slug, title = "damaged", "Stored data is damaged"


class JournalDamaged(Damaged):
    """A commit is bad although a later one is valid; fields: path, position."""

    slug, title = "journal-damaged", "The journal is damaged"


class ChainDamaged(Damaged):
    """A chain has a gap, an overlap or an unreadable entry; fields: name."""

    slug, title = "chain-damaged", "A segment's chain is damaged"


class UnfitStore(SeaweedqError):
    """The store ignores or races create-if-absent."""

    slug, title = "unfit-store", "The store breaks a promise"


class DataFolderInUse(SeaweedqError):
    """Another process holds the data folder's lock; fields: path, pid."""

    slug, title = "data-folder-in-use", "The data folder is in use"


class ClientError(SeaweedqError):
    """The root of what only the Python client raises."""

    slug, title = "client-error", "Client error"


class ServerProblem(ClientError):
    """A problem document that no other class stands for; `status` and `type` are in `fields`."""

    slug, title = "server-problem", "The server answered with a problem"


class ConnectionFailed(ClientError):
    """No broker answered within the client's patience."""

    slug, title = "connection-failed", "No broker could be reached"


def by_slug() -> dict[str, type[SeaweedqError]]:
    """Every class of the tree by its slug."""
    found: dict[str, type[SeaweedqError]] = {}
    todo = [SeaweedqError]
    while todo:
        kind = todo.pop()
        found[kind.slug] = kind
        todo += kind.__subclasses__()
    return found

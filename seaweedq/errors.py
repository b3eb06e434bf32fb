"""Every error of seaweedq, one tree. Status codes are not here: `api/problems` maps slugs to them.

    SeaweedqError
    ├── BadRequest                the client must change the request
    │   ├── UnreadableRequest, UnreadableBody, UnsupportedContentType, UnsupportedEncoding, MissingContentType,
    │   │   NotAcceptable
    │   ├── InvalidRequest, InvalidName, InvalidMessages, InvalidPositions
    │   ├── RequestTooLarge, MessageTooLarge, RequestTimeout
    │   ├── RouteNotFound, MethodNotAllowed
    │   ├── TopicNotFound, SegmentNotFound, SubscriptionNotFound, UploadNotFound, PayloadNotFound
    │   ├── PrincipalNotFound, TokenNotFound
    │   ├── UploadIncomplete, UploadMismatch, InvalidUpload, UploadExpired, UploadConflict
    │   ├── WriteNotFound, WriteOutOfOrder, TooManyWriters
    │   ├── PayloadTooLarge, TooManyUploads, TooManyTopics, TooManySegments, InvalidImport, RateLimited
    │   ├── TopicConflict, SubscriptionConflict, TopicBeingDeleted, SegmentConflict,
    │   │   SequenceOutOfOrder, NeedsLevel, LevelConflict, RebuildConflict
    │   ├── OffsetOutOfRange, BelowRetention, LeaseEnded, LeaseOfAnother, NoDeadLetters
    │   ├── WrongHost, Unauthenticated
    │   └── Forbidden
    │       └── ForeignOrigin, PeerRefused
    ├── Unavailable               the client may retry after `retry_after_s`
    │   ├── NotReady, Restored, Overloaded, NeedsNewerBroker, PeerTooOld
    │   ├── JournalUnavailable, StoreUnavailable, CoordinationUnavailable
    │   └── NotOwner, PartlyTaken
    ├── Fenced                    another writer has replaced this one: stop writing, read the state again
    ├── Damaged                   stored bytes differ from those that were written
    │   └── JournalDamaged, ChainDamaged
    ├── UnfitStore                the store lacks a guarantee that the queue needs
    ├── LevelMismatch             the cluster's level is not one that this version reads
    ├── DataFolderInUse           another process holds the data folder
    ├── ClientError               raised by the Python client alone
    │   └── ServerProblem, ConnectionFailed, FileMissing, MissingExtra
    └── InvariantViolated         a defect of the program, with the slug of the root (seaweedq/checks)

The `fields` of an error help the reader to correct it; they become members of the problem document.
"""

from typing import Any, ClassVar


class SeaweedqError(Exception):
    """The root of the tree. `slug` is stable and ends the problem's `type`; `title` says the same in words.

    The client sees `detail`. Only logs contain `inside`: addresses of the installation, and their answers.
    """

    slug: ClassVar[str] = "internal"
    title: ClassVar[str] = "Internal error"

    def __init__(self, detail: str, *, inside: str = "", **fields: Any) -> None:
        super().__init__(f"{detail}: {inside}" if inside else detail)
        self.detail = detail
        self.inside = inside
        self.fields = fields


def by_slug() -> dict[str, type[SeaweedqError]]:
    """Returns every class of the tree by its slug; of two with one slug that which is nearer to the root."""
    found: dict[str, type[SeaweedqError]] = {}
    todo = [SeaweedqError]
    while todo:
        kind = todo.pop()
        found.setdefault(kind.slug, kind)
        todo += kind.__subclasses__()
    return found


class BadRequest(SeaweedqError):
    """The request cannot succeed unless the client changes it, or the state that it refers to."""

    slug, title = "bad-request", "Bad request"


class UnreadableRequest(BadRequest):
    """The bytes received are not HTTP, or the request's head is too large. The connection is closed."""

    slug, title = "unreadable-request", "The request cannot be read"


class UnreadableBody(BadRequest):
    """The body, or the query string, cannot be parsed."""

    slug, title = "unreadable-body", "The body cannot be read"


class UnsupportedContentType(BadRequest):
    """The route does not accept this content type; fields: supported."""

    slug, title = "unsupported-content-type", "Unsupported content type"


class MissingContentType(BadRequest):
    """The body is not empty and has no content type, as the bodies of web pages may be."""

    slug, title = "missing-content-type", "The body has no content type"


class UnsupportedEncoding(BadRequest):
    """The content encoding is neither gzip nor zstd; fields: supported."""

    slug, title = "unsupported-encoding", "Unsupported content encoding"


class InvalidRequest(BadRequest):
    """The request can be parsed, and a value in it is not valid; fields: field, value, bound."""

    slug, title = "invalid-request", "The request is not valid"


class NotAcceptable(BadRequest):
    """The client accepts no type that the route has; fields: supported."""

    slug, title = "not-acceptable", "No acceptable type"


class InvalidPositions(BadRequest):
    """The positions of a stream are none, not this topic's, or leave out some of its keys; fields: value."""

    slug, title = "invalid-positions", "Invalid positions"


class InvalidName(BadRequest):
    """The name of a topic, subscription or producer has characters or a length that are not allowed."""

    slug, title = "invalid-name", "The name is not valid"


class InvalidMessages(BadRequest):
    """Some messages are not valid, so none was published; fields: `errors` (index and reason of the first 1,000),
    `invalid` (how many; from 10,000 on, and of a file from 100 on, there may be more), `hint` (what mends the first,
    where that is clear)."""

    slug, title = "invalid-messages", "Some messages are not valid"


class RequestTooLarge(BadRequest):
    """The decoded body is over `max_request_bytes`; fields: limit_bytes."""

    slug, title = "request-too-large", "The request is too large"


class MessageTooLarge(BadRequest):
    """A message is over `max_message_bytes`; fields: limit_bytes, index."""

    slug, title = "message-too-large", "A message is too large"


class RequestTimeout(BadRequest):
    """The body did not arrive in time, or too slowly while others needed its memory. The connection is closed; fields:
    timeout_s, bytes_per_s."""

    slug, title = "request-timeout", "The request did not arrive in time"


class RouteNotFound(BadRequest):
    """No route has this path."""

    slug, title = "not-found", "Not found"


class MethodNotAllowed(BadRequest):
    """The path exists, but not with this method; fields: allowed."""

    slug, title = "method-not-allowed", "Method not allowed"


class TopicNotFound(BadRequest):
    """No topic has this name; fields: topic."""

    slug, title = "topic-not-found", "Topic not found"


class SegmentNotFound(BadRequest):
    """The topic has no segment of that id; fields: topic, segment."""

    slug, title = "segment-not-found", "Segment not found"


class SubscriptionNotFound(BadRequest):
    """The topic has no subscription of that name; fields: topic, subscription."""

    slug, title = "subscription-not-found", "Subscription not found"


class PrincipalNotFound(BadRequest):
    """No principal has this name; fields: principal."""

    slug, title = "principal-not-found", "Principal not found"


class TokenNotFound(BadRequest):
    """No token has this id; fields: token."""

    slug, title = "token-not-found", "Token not found"


class UploadNotFound(BadRequest):
    """The topic has no upload of that id: it was aborted, has expired, or an earlier topic of this name had it; fields:
    topic, upload_id."""

    slug, title = "upload-not-found", "Upload not found"


class UploadIncomplete(BadRequest):
    """Not all of the upload's bytes are in the store; fields: upload_id, missing (parts, the first 100)."""

    slug, title = "upload-incomplete", "The upload is not complete"


class UploadMismatch(BadRequest):
    """The uploaded bytes differ in size or SHA-256 from the announced ones; fields: upload_id, field, value, bound."""

    slug, title = "upload-mismatch", "The upload differs from what was announced"


class InvalidUpload(UploadMismatch):
    """The store refused the bytes: their size or digest is not the announced one; fields: field, value, bound."""

    slug, title = "invalid-upload", "The bytes differ from those that were announced"


class UploadExpired(BadRequest):
    """The upload expired before it was completed or published; fields: upload_id, expires_at."""

    slug, title = "upload-expired", "The upload has expired"


class UploadConflict(BadRequest):
    """The upload was published or imported, is in parts or is not, was completed with other bytes, or is for a write;
    fields: upload_id."""

    slug, title = "upload-conflict", "The upload's state does not allow this"


class WriteNotFound(BadRequest):
    """The topic has no write of that writer, or no longer has it; fields: topic, writer."""

    slug, title = "write-not-found", "Write not found"


class WriteOutOfOrder(BadRequest):
    """The write's number is below the writer's newest; fields: writer, number, newest."""

    slug, title = "write-out-of-order", "The write's number is out of order"


class TooManyWriters(BadRequest):
    """The topic remembers as many writers as it may; fields: limit, retry_after_s."""

    slug, title = "too-many-writers", "Too many writers"


class PayloadTooLarge(BadRequest):
    """A payload is over the limit; fields: limit_bytes."""

    slug, title = "payload-too-large", "The payload is too large"


class TooManyUploads(BadRequest):
    """The topic has `max_open_uploads` open uploads, or `max_write_uploads` for writes; fields: limit,
    retry_after_s."""

    slug, title = "too-many-uploads", "Too many open uploads"


class TooManyTopics(BadRequest):
    """The cluster has `max_topics` topics, or the principal as many as it may; fields: limit, setting."""

    slug, title = "too-many-topics", "The cluster has too many topics"


class RateLimited(BadRequest):
    """A limit of the principal or the topic is reached, as `Retry-After` and `RateLimit` say; fields: limit (its
    name), rate (a second), retry_after_s, topic."""

    slug, title = "rate-limited", "A limit is reached"


class TooManySegments(BadRequest):
    """The cluster has `max_segments` segments, or the principal as many as it may; fields: limit, setting."""

    slug, title = "too-many-segments", "The cluster has too many segments"


class InvalidImport(BadRequest):
    """The uploaded file cannot be read in the format that the request names; fields: format, reason."""

    slug, title = "invalid-import", "The file cannot be imported"


class PayloadNotFound(BadRequest):
    """The message has no payload, or the store no longer holds it as it was published; fields: topic, id."""

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
    """The segment is sealed or being changed, or would have too many producer tables; fields: segment, successors,
    parts."""

    slug, title = "segment-conflict", "The segment's state does not allow this change"


class SequenceOutOfOrder(BadRequest):
    """A producer's sequence is not new, and too old to be compared; fields: producer, sequence, newest."""

    slug, title = "sequence-out-of-order", "The producer's sequence is out of order"


class NeedsLevel(BadRequest):
    """The request needs a higher level than the cluster has; fields: level, needs, too_old (brokers that do not read
    it). Nothing raises it as long as there is one level: it is the problem of the first request that needs another."""

    slug, title = "needs-cluster-level", "The cluster's level is too low"


class LevelConflict(BadRequest):
    """The cluster's level cannot become the requested one; fields: level, to, too_old (brokers that do not
    read it)."""

    slug, title = "level-conflict", "The cluster's level cannot change to this"


class RebuildConflict(BadRequest):
    """Coordination cannot be rebuilt now: this broker serves, another rebuild is under way, a journal that may be
    needed cannot be read, or one that is to be left out is unknown; fields: journals, unknown."""

    slug, title = "rebuild-conflict", "Coordination cannot be rebuilt now"


class OffsetOutOfRange(BadRequest):
    """The offset is beyond the segment's end, or the range has no byte of the payload; fields: offset, end_offset,
    size."""

    slug, title = "offset-out-of-range", "The offset is beyond the end"


class BelowRetention(BadRequest):
    """Retention has removed the offset: go on from `start_offset`; fields: segment, offset, start_offset."""

    slug, title = "below-retention", "Retention has removed the offset"


class Unauthenticated(BadRequest):
    """The request has no token, or one that is invalid, expired or revoked."""

    slug, title = "unauthenticated", "Not authenticated"


class Forbidden(BadRequest):
    """The caller lacks a right, or the signed URL has expired or is for another method, payload or size; fields:
    action, resource."""

    slug, title = "forbidden", "Forbidden"


class PeerRefused(Forbidden):
    """The request claims to come from a broker of this cluster, and is not recognized as one; fields: reason."""

    slug, title = "peer-refused", "Not recognized as a broker"


class ForeignOrigin(Forbidden):
    """A web page of another origin has sent the request, or may have sent it; fields: origin, setting, header."""

    slug, title = "foreign-origin", "Pages of other origins may not do this"


class LeaseEnded(BadRequest):
    """All of the lease is answered or past its deadline, a seek ended it, or another dispatcher gave it; fields:
    lease."""

    slug, title = "lease-ended", "The lease has ended"


class LeaseOfAnother(BadRequest):
    """The lease belongs to another consumer; fields: lease, consumer."""

    slug, title = "lease-of-another", "The lease is another consumer's"


class NoDeadLetters(BadRequest):
    """A message was rejected and the subscription has no `dead_letter_topic`, or that was to be removed while messages
    are dying; fields: topic, subscription."""

    slug, title = "no-dead-letter-topic", "There is no topic for dead letters"


class WrongHost(BadRequest):
    """The request names a host that is not this broker's; fields: host, setting."""

    slug, title = "wrong-host", "The broker does not answer to this host"


class Unavailable(SeaweedqError):
    """The request is valid but cannot be served now; the client may retry after `retry_after_s` seconds."""

    slug, title = "unavailable", "Unavailable"

    def __init__(self, detail: str, *, retry_after_s: int = 1, **fields: Any) -> None:
        super().__init__(detail, **fields)
        self.retry_after_s = retry_after_s


class NotReady(Unavailable):
    """The broker is starting or stopping, or has lost its lease."""

    slug, title = "not-ready", "The broker is not ready"


class Restored(Unavailable):
    """Coordination was lost, or restored to an earlier state: the broker, or the topic, waits for a rebuild; fields:
    command, found (reasons), topic."""

    slug, title = "restored", "Coordination was lost or restored"


class Overloaded(Unavailable):
    """The memory budget is used up, or the connections are, or streams and waiting requests have their share of them;
    fields: budget_bytes, max_connections."""

    slug, title = "overloaded", "The broker is overloaded"


class NeedsNewerBroker(Unavailable):
    """A later version wrote a record that the request needs, and this broker does not read its form."""

    slug, title = "needs-newer-broker", "A newer broker is needed"


class PeerTooOld(Unavailable):
    """The broker that could answer is of an earlier version; works once all brokers are upgraded."""

    slug, title = "peer-too-old", "Another broker is too old"


class JournalUnavailable(Unavailable):
    """A write to the journal could not be made durable (disk full, I/O error); nothing was appended."""

    slug, title = "journal-unavailable", "The journal cannot be written"


class StoreUnavailable(Unavailable):
    """The object store did not answer, or its answer does not say whether the request took effect."""

    slug, title = "store-unavailable", "The store is unavailable"


class CoordinationUnavailable(Unavailable):
    """Coordination did not answer."""

    slug, title = "coordination-unavailable", "Coordination is unavailable"


class NotOwner(Unavailable):
    """Another broker owns the segment or the subscription, or is about to, and did not answer; fields: owner."""

    slug, title = "not-owner", "Another broker is the owner"


class PartlyTaken(Unavailable):
    """Some segments have stored their messages, others have not in time. The same request with its Producer-Sequence
    completes it; without one a repeat would publish the stored messages twice; fields: taken (segment, first_offset,
    count)."""

    slug, title = "partly-taken", "Only some of the messages were published"


class Fenced(SeaweedqError):
    """Another writer created the object or the record that this one was to create; it must acknowledge nothing more."""

    slug, title = "fenced", "Another broker has taken over"


class Damaged(SeaweedqError):
    """Stored bytes differ from those that were written; the detail says where."""

    slug, title = "damaged", "Stored data is damaged"


class JournalDamaged(Damaged):
    """A commit is bad although a later one is valid; fields: path, position."""

    slug, title = "journal-damaged", "The journal is damaged"


class ChainDamaged(Damaged):
    """A chain has a gap, an overlap or an unreadable entry; fields: name."""

    slug, title = "chain-damaged", "A segment's chain is damaged"


class UnfitStore(SeaweedqError):
    """The store ignores create-if-absent, lets several concurrent creates of one name succeed, or lists, reads or
    deletes otherwise than the queue needs."""

    slug, title = "unfit-store", "The store lacks a guarantee that the queue needs"


class LevelMismatch(SeaweedqError):
    """This version does not read the cluster's level (fields: level, lowest, highest), or the draft of the forms that
    an unreleased version wrote (fields: draft, reads)."""

    slug, title = "level-mismatch", "This version does not read the cluster's level"


class DataFolderInUse(SeaweedqError):
    """Another process holds the data folder's lock; fields: path, pid."""

    slug, title = "data-folder-in-use", "The data folder is in use"


class ClientError(SeaweedqError):
    """The root of the errors that only the Python client raises."""

    slug, title = "client-error", "Client error"


class ServerProblem(ClientError):
    """A problem document whose type has no class of its own here; `status` and `type` are in `fields`."""

    slug, title = "server-problem", "The server answered with an error"


class ConnectionFailed(ClientError):
    """No broker answered within the client's timeout."""

    slug, title = "connection-failed", "No broker could be reached"


class FileMissing(ClientError):
    """A file of a topic's that brokers have listed is not there, or not visible from this machine."""

    slug, title = "file-missing", "A file of the topic is not there"


class MissingExtra(ClientError):
    """A package is not installed that only some of the program needs; fields: extra, which brings it, and package."""

    slug, title = "missing-extra", "A package is not installed"

"""Every error of seaweedq, one tree. Status codes are not here: `api/problems` maps slugs to them.

    SeaweedqError
    ├── BadRequest                the client must change the request
    │   ├── UnreadableRequest, UnreadableBody, UnsupportedContentType, UnsupportedEncoding, MissingContentType,
    │   │   NotAcceptable
    │   ├── InvalidRequest, InvalidName, InvalidMessages, InvalidPositions
    │   ├── RequestTooLarge, MessageTooLarge, RequestTimeout
    │   ├── RouteNotFound, MethodNotAllowed
    │   ├── TopicNotFound, SchemaNotFound, SegmentNotFound, SubscriptionNotFound, UploadNotFound,
    │   │   PayloadNotFound
    │   ├── PrincipalNotFound, TokenNotFound
    │   ├── UploadIncomplete, UploadMismatch, InvalidUpload, UploadExpired, UploadConflict
    │   ├── WriteNotFound, WriteOutOfOrder, TooManyWriters
    │   ├── PayloadTooLarge, TooManyUploads, TooManyTopics, TooManySegments, InvalidImport, RateLimited
    │   ├── TopicConflict, SchemaIncompatible, SchemaMismatch, SubscriptionConflict, TopicBeingDeleted,
    │   │   SegmentConflict, SequenceOutOfOrder, NeedsLevel, LevelConflict, JournalConflict, RebuildConflict
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
    """The root of all errors. `slug` is stable, and ends the problem's `type`; `title` is the same in words.

    Clients see `detail`. `inside` appears only in logs, because it may contain internal addresses or other servers'
    answers."""

    slug: ClassVar[str] = "internal"
    title: ClassVar[str] = "Internal error"

    def __init__(self, detail: str, *, inside: str = "", **fields: Any) -> None:
        super().__init__(f"{detail}: {inside}" if inside else detail)
        self.detail = detail
        self.inside = inside
        self.fields = fields


def by_slug() -> dict[str, type[SeaweedqError]]:
    """Returns every class of the tree by its slug. If two classes share a slug, returns the class closer to the
    root."""
    found: dict[str, type[SeaweedqError]] = {}
    todo = [SeaweedqError]
    while todo:
        kind = todo.pop()
        found.setdefault(kind.slug, kind)
        todo += kind.__subclasses__()
    return found


class BadRequest(SeaweedqError):
    """The request cannot succeed unless the client changes the request, or the state to which it refers."""

    slug, title = "bad-request", "Bad request"


class UnreadableRequest(BadRequest):
    """The bytes are not HTTP, or the headers are too large. The broker closes the connection."""

    slug, title = "unreadable-request", "The request cannot be read"


class UnreadableBody(BadRequest):
    """The body or the query string cannot be parsed."""

    slug, title = "unreadable-body", "The body cannot be read"


class UnsupportedContentType(BadRequest):
    """The route does not accept this content type; fields: supported."""

    slug, title = "unsupported-content-type", "Unsupported content type"


class MissingContentType(BadRequest):
    """The body has no content type. Web pages could send such a body across origins."""

    slug, title = "missing-content-type", "The body has no content type"


class UnsupportedEncoding(BadRequest):
    """The content encoding is neither gzip nor zstd; fields: supported."""

    slug, title = "unsupported-encoding", "Unsupported content encoding"


class InvalidRequest(BadRequest):
    """The request can be parsed, but one of its values is not valid; fields: field, value, bound."""

    slug, title = "invalid-request", "The request is not valid"


class NotAcceptable(BadRequest):
    """The route offers no content type that the client accepts; fields: supported."""

    slug, title = "not-acceptable", "No acceptable type"


class InvalidPositions(BadRequest):
    """The stream positions are malformed, belong to another topic, or omit some of this topic's keys; fields: value."""

    slug, title = "invalid-positions", "Invalid positions"


class InvalidName(BadRequest):
    """The name of a topic, subscription or producer has a forbidden character, or the wrong length."""

    slug, title = "invalid-name", "The name is not valid"


class InvalidMessages(BadRequest):
    """Some messages are not valid, so none was published; fields: `errors` (index and reason of the first 1,000),
    `invalid` (their number; a lower bound from 10,000 on, for files from 100 on), `hint` (a likely fix for the
    first)."""

    slug, title = "invalid-messages", "Some messages are not valid"


class RequestTooLarge(BadRequest):
    """The decoded body is larger than `max_request_bytes`; fields: limit_bytes."""

    slug, title = "request-too-large", "The request is too large"


class MessageTooLarge(BadRequest):
    """A message is larger than `max_message_bytes`; fields: limit_bytes, index."""

    slug, title = "message-too-large", "A message is too large"


class RequestTimeout(BadRequest):
    """The body arrived too late, or too slowly while other requests needed memory. The broker closes the connection;
    fields: timeout_s, bytes_per_s."""

    slug, title = "request-timeout", "The request did not arrive in time"


class RouteNotFound(BadRequest):
    """No route has this path."""

    slug, title = "not-found", "Not found"


class MethodNotAllowed(BadRequest):
    """The path exists but does not accept this method; fields: allowed."""

    slug, title = "method-not-allowed", "Method not allowed"


class TopicNotFound(BadRequest):
    """No topic has this name; fields: topic."""

    slug, title = "topic-not-found", "Topic not found"


class SegmentNotFound(BadRequest):
    """The topic has no segment with this id; fields: topic, segment."""

    slug, title = "segment-not-found", "Segment not found"


class SubscriptionNotFound(BadRequest):
    """The topic has no subscription with this name; fields: topic, subscription."""

    slug, title = "subscription-not-found", "Subscription not found"


class PrincipalNotFound(BadRequest):
    """No principal has this name; fields: principal."""

    slug, title = "principal-not-found", "Principal not found"


class TokenNotFound(BadRequest):
    """No token has this id; fields: token."""

    slug, title = "token-not-found", "Token not found"


class UploadNotFound(BadRequest):
    """The topic has no upload with this id: it was aborted, has expired, or belonged to a deleted topic; fields: topic,
    upload_id."""

    slug, title = "upload-not-found", "Upload not found"


class UploadIncomplete(BadRequest):
    """Some of the upload's bytes are not in the store yet; fields: upload_id, missing (parts, the first 100)."""

    slug, title = "upload-incomplete", "The upload is not complete"


class UploadMismatch(BadRequest):
    """The size or SHA-256 of the uploaded bytes differs from the announced value; fields: upload_id, field, value,
    bound."""

    slug, title = "upload-mismatch", "The upload differs from what was announced"


class InvalidUpload(UploadMismatch):
    """The store refused the bytes because their size or digest differs from the announced value; fields: field, value,
    bound."""

    slug, title = "invalid-upload", "The bytes differ from those that were announced"


class UploadExpired(BadRequest):
    """The upload expired before it was completed or published; fields: upload_id, expires_at."""

    slug, title = "upload-expired", "The upload has expired"


class UploadConflict(BadRequest):
    """The upload was already published, imported, or completed with other bytes, is (or is not) in parts, or is
    reserved for a write; fields: upload_id."""

    slug, title = "upload-conflict", "The upload's state does not allow this"


class WriteNotFound(BadRequest):
    """The topic has no write by this writer, or no longer remembers it; fields: topic, writer."""

    slug, title = "write-not-found", "Write not found"


class WriteOutOfOrder(BadRequest):
    """The write's number is lower than the writer's newest number; fields: writer, number, newest."""

    slug, title = "write-out-of-order", "The write's number is out of order"


class TooManyWriters(BadRequest):
    """The topic remembers the maximum number of writers; fields: limit, retry_after_s."""

    slug, title = "too-many-writers", "Too many writers"


class PayloadTooLarge(BadRequest):
    """A payload is larger than the limit; fields: limit_bytes."""

    slug, title = "payload-too-large", "The payload is too large"


class TooManyUploads(BadRequest):
    """The topic already has `max_open_uploads` open uploads (`max_write_uploads` for writes); fields: limit,
    retry_after_s."""

    slug, title = "too-many-uploads", "Too many open uploads"


class TooManyTopics(BadRequest):
    """The cluster already has `max_topics` topics, or the principal has reached its own limit; fields: limit,
    setting."""

    slug, title = "too-many-topics", "The cluster has too many topics"


class RateLimited(BadRequest):
    """The principal or the topic has reached a limit; see the headers `Retry-After` and `RateLimit`; fields: limit (its
    name), rate (per second), retry_after_s, topic."""

    slug, title = "rate-limited", "A limit is reached"


class TooManySegments(BadRequest):
    """The cluster already has `max_segments` segments, or the principal has reached its own limit; fields: limit,
    setting."""

    slug, title = "too-many-segments", "The cluster has too many segments"


class InvalidImport(BadRequest):
    """The uploaded file cannot be read in the requested format; fields: format, reason."""

    slug, title = "invalid-import", "The file cannot be imported"


class PayloadNotFound(BadRequest):
    """The message has no payload, or the store no longer holds the payload as it was published; fields: topic, id."""

    slug, title = "payload-not-found", "Payload not found"


class TopicConflict(BadRequest):
    """The topic exists with another configuration; fields: differences."""

    slug, title = "topic-exists", "The topic exists with another configuration"


class SchemaIncompatible(BadRequest):
    """The schema is not a valid next version of the topic's schema; fields: differences (one per field, with the broken
    rule)."""

    slug, title = "schema-incompatible", "The topic's schema cannot become this one"


class SchemaMismatch(BadRequest):
    """A message has a value in a field that a later version of the topic's schema has dropped, or the schema has no
    version with the Schema-Id of the request; fields: topic, schema_id (of the newest version), field, `taken` (as for
    partly-taken)."""

    slug, title = "schema-mismatch", "The messages do not fit the topic's newest schema"


class SchemaNotFound(BadRequest):
    """The topic's schema has no version with this id; fields: topic, schema_id."""

    slug, title = "schema-not-found", "The schema has no such version"


class SubscriptionConflict(BadRequest):
    """The subscription exists with another configuration; fields: differences."""

    slug, title = "subscription-exists", "The subscription exists with another configuration"


class TopicBeingDeleted(BadRequest):
    """The topic is being deleted. The name can be reused afterwards."""

    slug, title = "topic-being-deleted", "The topic is being deleted"


class SegmentConflict(BadRequest):
    """The segment is sealed or is being changed, or the result would have too many producer tables; fields: segment,
    successors, parts."""

    slug, title = "segment-conflict", "The segment's state does not allow this change"


class SequenceOutOfOrder(BadRequest):
    """A producer's sequence is neither new nor a recent duplicate; fields: producer, sequence, newest."""

    slug, title = "sequence-out-of-order", "The producer's sequence is out of order"


class NeedsLevel(BadRequest):
    """The request needs a higher cluster level; fields: level, needs, too_old (brokers that cannot read that level). No
    broker sends this while only one level exists."""

    slug, title = "needs-cluster-level", "The cluster's level is too low"


class LevelConflict(BadRequest):
    """The cluster cannot be upgraded to the requested level; fields: level, to, too_old (brokers that cannot read
    it)."""

    slug, title = "level-conflict", "The cluster's level cannot change to this"


class JournalConflict(BadRequest):
    """The loss of this journal cannot be accepted: its broker is running, nothing of it is lost, or it is not mirrored;
    fields: broker."""

    slug, title = "journal-conflict", "The journal's loss cannot be accepted"


class RebuildConflict(BadRequest):
    """Coordination cannot be rebuilt: this broker is serving, another rebuild is running, a journal that may be needed
    cannot be read, or a journal to leave out is unknown; fields: journals, unknown."""

    slug, title = "rebuild-conflict", "Coordination cannot be rebuilt now"


class OffsetOutOfRange(BadRequest):
    """The offset is beyond the segment's end, or the range contains no byte of the payload; fields: offset, end_offset,
    size."""

    slug, title = "offset-out-of-range", "The offset is beyond the end"


class BelowRetention(BadRequest):
    """Retention has deleted this offset; continue at `start_offset`; fields: segment, offset, start_offset."""

    slug, title = "below-retention", "Retention has removed the offset"


class Unauthenticated(BadRequest):
    """The request has no token, or its token is invalid, expired or revoked."""

    slug, title = "unauthenticated", "Not authenticated"


class Forbidden(BadRequest):
    """The caller lacks a right, or the signed URL has expired or is for another method, payload or size; fields:
    action, resource."""

    slug, title = "forbidden", "Forbidden"


class PeerRefused(Forbidden):
    """The sender claims to be a broker of this cluster, but cannot prove it; fields: reason."""

    slug, title = "peer-refused", "Not recognized as a broker"


class ForeignOrigin(Forbidden):
    """A web page from another origin sent the request, or may have; fields: origin, setting, header."""

    slug, title = "foreign-origin", "Pages of other origins may not do this"


class LeaseEnded(BadRequest):
    """All messages of the lease were answered or have passed their deadline, a seek ended the lease, or another
    dispatcher granted it. If the dispatcher died during an ack, its messages may be acked nevertheless; fields:
    lease."""

    slug, title = "lease-ended", "The lease has ended"


class LeaseOfAnother(BadRequest):
    """The lease belongs to another consumer; fields: lease, consumer."""

    slug, title = "lease-of-another", "The lease is another consumer's"


class NoDeadLetters(BadRequest):
    """The request rejects a message without a `dead_letter_topic`, or removes a `dead_letter_topic` that messages still
    need; fields: topic, subscription."""

    slug, title = "no-dead-letter-topic", "There is no topic for dead letters"


class WrongHost(BadRequest):
    """The broker does not serve this host; fields: host, setting."""

    slug, title = "wrong-host", "The broker does not serve this host"


class Unavailable(SeaweedqError):
    """The request is valid but cannot be served now; retry after `retry_after_s` seconds."""

    slug, title = "unavailable", "Unavailable"

    def __init__(self, detail: str, *, retry_after_s: int = 1, **fields: Any) -> None:
        super().__init__(detail, **fields)
        self.retry_after_s = retry_after_s


class NotReady(Unavailable):
    """The broker is starting or stopping, or has lost its lease."""

    slug, title = "not-ready", "The broker is not ready"


class Restored(Unavailable):
    """Coordination was lost or restored, so the broker or the topic waits for a rebuild; fields: command, found
    (reasons), topic."""

    slug, title = "restored", "Coordination was lost or restored"


class Overloaded(Unavailable):
    """Memory, connections, or the share of streams and waiting requests are used up; fields: budget_bytes,
    max_connections."""

    slug, title = "overloaded", "The broker is overloaded"


class NeedsNewerBroker(Unavailable):
    """The request needs a record that a later version wrote and this broker cannot read."""

    slug, title = "needs-newer-broker", "A newer broker is needed"


class PeerTooOld(Unavailable):
    """Only a broker of an earlier version could answer this request. Retry after the upgrade."""

    slug, title = "peer-too-old", "Another broker is too old"


class JournalUnavailable(Unavailable):
    """The journal write failed (disk full, I/O error). Nothing was stored."""

    slug, title = "journal-unavailable", "The journal cannot be written"


class StoreUnavailable(Unavailable):
    """The store did not answer, or it is unknown whether the request took effect."""

    slug, title = "store-unavailable", "The store is unavailable"


class CoordinationUnavailable(Unavailable):
    """Coordination did not answer."""

    slug, title = "coordination-unavailable", "Coordination is unavailable"


class NotOwner(Unavailable):
    """Another broker owns or takes over the segment or the subscription, and did not answer; fields: owner."""

    slug, title = "not-owner", "Another broker is the owner"


class PartlyTaken(Unavailable):
    """Some segments have stored their messages, others have not. With a Producer-Sequence, repeat the request unchanged
    to publish the rest; without one, a repeat publishes the stored messages twice; fields: taken (segment,
    first_offset, count)."""

    slug, title = "partly-taken", "Only some of the messages were published"


class Fenced(SeaweedqError):
    """Another writer has replaced this one, which must not acknowledge anything more."""

    slug, title = "fenced", "Another broker has taken over"


class Damaged(SeaweedqError):
    """Stored bytes differ from the written bytes. The detail names the place."""

    slug, title = "damaged", "Stored data is damaged"


class JournalDamaged(Damaged):
    """A journal commit is damaged although a later commit is valid; fields: path, position."""

    slug, title = "journal-damaged", "The journal is damaged"


class ChainDamaged(Damaged):
    """A segment's chain of files has a gap, an overlap or an unreadable file; fields: name."""

    slug, title = "chain-damaged", "A segment's chain is damaged"


class UnfitStore(SeaweedqError):
    """The store ignores create-if-absent, lets several concurrent creates with the same name succeed, or does not list,
    read or delete as the queue requires."""

    slug, title = "unfit-store", "The store lacks a guarantee that the queue needs"


class LevelMismatch(SeaweedqError):
    """This version cannot read the cluster's level (fields: level, lowest, highest), or the draft format that an
    unreleased version wrote (fields: draft, reads)."""

    slug, title = "level-mismatch", "This version cannot read the cluster's level"


class DataFolderInUse(SeaweedqError):
    """Another process holds the data folder's lock; fields: path, pid."""

    slug, title = "data-folder-in-use", "The data folder is in use"


class ClientError(SeaweedqError):
    """The root of the errors that only the Python client raises."""

    slug, title = "client-error", "Client error"


class ServerProblem(ClientError):
    """A problem document with a type for which this client has no class; `status` and `type` are in `fields`."""

    slug, title = "server-problem", "The server answered with an error"


class ConnectionFailed(ClientError):
    """No broker answered within the client's timeout."""

    slug, title = "connection-failed", "No broker could be reached"


class FileMissing(ClientError):
    """A file that brokers list for a topic does not exist, or cannot be read from this machine."""

    slug, title = "file-missing", "A file of the topic is not there"


class MissingExtra(ClientError):
    """A package that only parts of seaweedq need is not installed; fields: extra (the extra that installs it),
    package."""

    slug, title = "missing-extra", "A package is not installed"

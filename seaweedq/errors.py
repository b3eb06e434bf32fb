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
    │   ├── PrincipalNotFound, TokenNotFound, DenialNotFound
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
    """The received bytes are not HTTP, or the headers are too large."""

    slug, title = "unreadable-request", "The request cannot be read"


class UnreadableBody(BadRequest):
    """The broker cannot parse the request's body or query string."""

    slug, title = "unreadable-body", "The body cannot be read"


class UnsupportedContentType(BadRequest):
    """The route does not accept the body's `content-type`; fields: supported."""

    slug, title = "unsupported-content-type", "Unsupported content type"


class MissingContentType(BadRequest):
    """The request's body has no `content-type`."""

    slug, title = "missing-content-type", "The body has no content type"


class UnsupportedEncoding(BadRequest):
    """The body's `content-encoding` is neither gzip nor zstd; fields: supported."""

    slug, title = "unsupported-encoding", "Unsupported content encoding"


class InvalidRequest(BadRequest):
    """A value in the request is not valid; fields: field, value, bound."""

    slug, title = "invalid-request", "The request is not valid"


class NotAcceptable(BadRequest):
    """The route cannot answer with any content type in the `accept` header; fields: supported."""

    slug, title = "not-acceptable", "No acceptable type"


class InvalidPositions(BadRequest):
    """The stream's start positions are malformed, belong to another topic, or do not cover all keys; fields: value."""

    slug, title = "invalid-positions", "Invalid positions"


class InvalidName(BadRequest):
    """A name in the request is empty or too long, or contains a forbidden character."""

    slug, title = "invalid-name", "The name is not valid"


class InvalidMessages(BadRequest):
    """Some messages in the request are not valid, so the broker stored none; fields: errors (of at most 1,000 invalid
    messages), invalid (number of invalid messages), hint."""

    slug, title = "invalid-messages", "Some messages are not valid"


class RequestTooLarge(BadRequest):
    """The request's decompressed body is larger than the setting `max_request_bytes`; fields: limit_bytes."""

    slug, title = "request-too-large", "The request is too large"


class MessageTooLarge(BadRequest):
    """A message is larger than the setting `max_message_bytes`; fields: limit_bytes, index (of the message)."""

    slug, title = "message-too-large", "A message is too large"


class RequestTimeout(BadRequest):
    """The body did not arrive in time, or arrived too slowly while other requests needed memory; fields: timeout_s,
    bytes_per_s."""

    slug, title = "request-timeout", "The request did not arrive in time"


class RouteNotFound(BadRequest):
    """No route has this path."""

    slug, title = "not-found", "Not found"


class MethodNotAllowed(BadRequest):
    """The path does not accept this method; fields: allowed."""

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


class DenialNotFound(BadRequest):
    """No denial has this id; fields: denial."""

    slug, title = "denial-not-found", "Denial not found"


class UploadNotFound(BadRequest):
    """The topic has no upload with this id, or the upload was aborted or has expired; fields: topic, upload_id."""

    slug, title = "upload-not-found", "Upload not found"


class UploadIncomplete(BadRequest):
    """Some of the upload's bytes are not stored yet; fields: upload_id, missing (the first 100 missing parts)."""

    slug, title = "upload-incomplete", "The upload is not complete"


class UploadMismatch(BadRequest):
    """The size or SHA-256 of the stored bytes is not the one that the client stated when it began the upload; fields:
    upload_id, field, value, bound."""

    slug, title = "upload-mismatch", "The upload differs from what was announced"


class InvalidUpload(UploadMismatch):
    """The store refused the uploaded bytes, because their size or SHA-256 is not the one that the client stated when
    it began the upload; fields: field, value, bound."""

    slug, title = "invalid-upload", "The bytes differ from those that were announced"


class UploadExpired(BadRequest):
    """The upload expired before it was completed or published; fields: upload_id, expires_at."""

    slug, title = "upload-expired", "The upload has expired"


class UploadConflict(BadRequest):
    """The upload's state forbids the request, for example because the upload is already published; fields:
    upload_id."""

    slug, title = "upload-conflict", "The upload's state does not allow this"


class WriteNotFound(BadRequest):
    """No write by this writer is recorded for the topic; fields: topic, writer."""

    slug, title = "write-not-found", "Write not found"


class WriteOutOfOrder(BadRequest):
    """The writer has already begun a write with a higher write number; fields: writer, number, newest."""

    slug, title = "write-out-of-order", "The write's number is out of order"


class TooManyWriters(BadRequest):
    """Brokers already remember the maximum number of writers for the topic; fields: limit, retry_after_s."""

    slug, title = "too-many-writers", "Too many writers"


class PayloadTooLarge(BadRequest):
    """A payload is larger than `max_payload_bytes` of the broker or of the topic; fields: limit_bytes."""

    slug, title = "payload-too-large", "The payload is too large"


class TooManyUploads(BadRequest):
    """The topic already has `max_write_uploads` open uploads that belong to writes, or `max_open_uploads` open uploads
    that do not; fields: limit, retry_after_s."""

    slug, title = "too-many-uploads", "Too many open uploads"


class TooManyTopics(BadRequest):
    """The cluster has reached `max_topics`, or the principal has reached its own limit; fields: limit, setting."""

    slug, title = "too-many-topics", "The cluster has too many topics"


class RateLimited(BadRequest):
    """The principal or the topic has reached a rate limit; fields: limit (its name), rate (per second), retry_after_s,
    topic."""

    slug, title = "rate-limited", "A limit is reached"


class TooManySegments(BadRequest):
    """The cluster has reached `max_segments`, or the principal has reached its own limit; fields: limit, setting."""

    slug, title = "too-many-segments", "The cluster has too many segments"


class InvalidImport(BadRequest):
    """The uploaded file cannot be read in the requested format; fields: format, reason."""

    slug, title = "invalid-import", "The file cannot be imported"


class PayloadNotFound(BadRequest):
    """The message has no payload, or the store no longer has the payload; fields: topic, id."""

    slug, title = "payload-not-found", "Payload not found"


class TopicConflict(BadRequest):
    """The topic exists with another configuration; fields: differences."""

    slug, title = "topic-exists", "The topic exists with another configuration"


class SchemaIncompatible(BadRequest):
    """The given schema is not a valid next version of the topic's schema; fields: differences (the broken rule of each
    field), value, bound (only if the schema exceeds a limit), schema_id (the newest version, only if if_schema_id
    differs)."""

    slug, title = "schema-incompatible", "The topic's schema cannot become this one"


class SchemaMismatch(BadRequest):
    """A message has a value in a field that the topic's schema has dropped, or no version has the given `Schema-Id`;
    fields: topic, schema_id (the newest version), field, taken (as in partly-taken)."""

    slug, title = "schema-mismatch", "The messages do not fit the topic's newest schema"


class SchemaNotFound(BadRequest):
    """The topic's schema has no version with this id; fields: topic, schema_id."""

    slug, title = "schema-not-found", "The schema has no such version"


class SubscriptionConflict(BadRequest):
    """The subscription exists with another configuration; fields: differences."""

    slug, title = "subscription-exists", "The subscription exists with another configuration"


class TopicBeingDeleted(BadRequest):
    """The topic is being deleted. Afterwards, a new topic can have its name."""

    slug, title = "topic-being-deleted", "The topic is being deleted"


class SegmentConflict(BadRequest):
    """The segment is sealed or is being changed, or a merge would combine too many segments; fields: segment,
    successors, parts."""

    slug, title = "segment-conflict", "The segment's state does not allow this change"


class SequenceOutOfOrder(BadRequest):
    """The `Producer-Sequence` is not above the producer's highest sequence number, and is not that of a recent request
    either; fields: producer, sequence, newest."""

    slug, title = "sequence-out-of-order", "The producer's sequence is out of order"


class NeedsLevel(BadRequest):
    """The request needs a higher format level than the cluster has; fields: level, needs, too_old (brokers that cannot
    read the level)."""

    slug, title = "needs-cluster-level", "The cluster's level is too low"


class LevelConflict(BadRequest):
    """The cluster cannot be upgraded to this format level; fields: level, to, too_old (brokers that cannot read the
    level)."""

    slug, title = "level-conflict", "The cluster's level cannot change to this"


class JournalConflict(BadRequest):
    """The loss of this journal cannot be accepted, for example because its broker is running; fields: broker."""

    slug, title = "journal-conflict", "The journal's loss cannot be accepted"


class RebuildConflict(BadRequest):
    """Coordination cannot be rebuilt now, for example because the broker has not noticed a loss of coordination;
    fields: journals, unknown."""

    slug, title = "rebuild-conflict", "Coordination cannot be rebuilt now"


class OffsetOutOfRange(BadRequest):
    """The offset is beyond the segment's end, or the range contains no byte of the payload; fields: offset, end_offset,
    size."""

    slug, title = "offset-out-of-range", "The offset is beyond the end"


class BelowRetention(BadRequest):
    """Retention has deleted the message at this offset. Continue reading at the `start_offset` that the error contains;
    fields: segment, offset, start_offset."""

    slug, title = "below-retention", "Retention has removed the offset"


class Unauthenticated(BadRequest):
    """The token is missing, invalid, expired or revoked.

    `reason` and `token`, the id of a token whose signature is good, are for the audit: no client sees them."""

    slug, title = "unauthenticated", "Not authenticated"

    def __init__(self, detail: str, *, inside: str = "", reason: str = "", token: str | None = None, **fields: Any):
        super().__init__(detail, inside=inside, **fields)
        self.reason = reason or self.slug
        self.token = token


class Forbidden(BadRequest):
    """The caller lacks the access right that the request needs, or the signed URL has expired or permits a different
    request; fields: action, resource."""

    slug, title = "forbidden", "Forbidden"


class PeerRefused(Forbidden):
    """The sender claims to be a broker of this cluster, but cannot prove this; fields: reason."""

    slug, title = "peer-refused", "Not recognized as a broker"


class ForeignOrigin(Forbidden):
    """A web page of another origin sent the request, or may have sent it; fields: origin, setting, header."""

    slug, title = "foreign-origin", "Pages of other origins may not do this"


class LeaseEnded(BadRequest):
    """The lease has ended, for example because its deadline has passed. If a broker died while it handled
    an ack, the messages of this ack may be acked despite this error; fields: lease."""

    slug, title = "lease-ended", "The lease has ended"


class LeaseOfAnother(BadRequest):
    """The lease belongs to another consumer; fields: lease, consumer."""

    slug, title = "lease-of-another", "The lease is another consumer's"


class NoDeadLetters(BadRequest):
    """The request rejects a message, but the subscription has no `dead_letter_topic`; or the request removes the
    `dead_letter_topic` before all dead letters are published to it; fields: topic, subscription."""

    slug, title = "no-dead-letter-topic", "There is no topic for dead letters"


class WrongHost(BadRequest):
    """The broker does not serve the host in the `Host` header; fields: host, setting."""

    slug, title = "wrong-host", "The broker does not serve this host"


class Unavailable(SeaweedqError):
    """The broker cannot serve the request now."""

    slug, title = "unavailable", "Unavailable"

    def __init__(self, detail: str, *, retry_after_s: int = 1, **fields: Any) -> None:
        super().__init__(detail, **fields)
        self.retry_after_s = retry_after_s


class NotReady(Unavailable):
    """The broker is starting or stopping, or has lost its lease in coordination."""

    slug, title = "not-ready", "The broker is not ready"


class Restored(Unavailable):
    """Coordination was lost, or was restored from a backup, and the broker or the topic waits for a rebuild; fields:
    command, found (reasons), topic."""

    slug, title = "restored", "Coordination was lost or restored"


class Overloaded(Unavailable):
    """The broker has too little free memory, or too many connections, streams or waiting requests; fields:
    budget_bytes, max_connections."""

    slug, title = "overloaded", "The broker is overloaded"


class NeedsNewerBroker(Unavailable):
    """A later version of seaweedq wrote a record that the request needs and that this broker cannot read."""

    slug, title = "needs-newer-broker", "A newer broker is needed"


class PeerTooOld(Unavailable):
    """The request needs an answer from another broker, whose version of seaweedq is too old for the request. Retry
    after the upgrade of all brokers."""

    slug, title = "peer-too-old", "Another broker is too old"


class JournalUnavailable(Unavailable):
    """The broker could not write to its journal, for example because the disk is full."""

    slug, title = "journal-unavailable", "The journal cannot be written"


class StoreUnavailable(Unavailable):
    """The object store did not answer, or did not say whether it carried out the request."""

    slug, title = "store-unavailable", "The store is unavailable"


class CoordinationUnavailable(Unavailable):
    """Coordination (etcd, or the SQLite file) did not answer."""

    slug, title = "coordination-unavailable", "Coordination is unavailable"


class NotOwner(Unavailable):
    """The broker that owns the segment or delivers the subscription's messages did not answer; fields: owner."""

    slug, title = "not-owner", "Another broker is the owner"


class PartlyTaken(Unavailable):
    """Some of the request's messages were stored; the other messages may not have been. With a
    `Producer-Sequence`, repeat the request unchanged. Without a `Producer-Sequence`, a repeat stores some messages
    twice; fields: taken (segment, first_offset, count)."""

    slug, title = "partly-taken", "Only some of the messages were published"


class Fenced(SeaweedqError):
    """Another broker has taken over from this broker."""

    slug, title = "fenced", "Another broker has taken over"


class Damaged(SeaweedqError):
    """Stored bytes differ from the bytes that were written. The error's `detail` names the file."""

    slug, title = "damaged", "Stored data is damaged"


class JournalDamaged(Damaged):
    """A commit in a journal is damaged, and a valid commit follows it; fields: path, position."""

    slug, title = "journal-damaged", "The journal is damaged"


class ChainDamaged(Damaged):
    """A file of the segment is missing or unreadable, or two files of the segment contain the same offset; fields: name
    (of the file or folder)."""

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

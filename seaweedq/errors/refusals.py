"""Errors of requests that cannot succeed unless the client changes them, or the state that they refer to."""

from seaweedq.errors.root import SeaweedqError


class BadRequest(SeaweedqError):
    """The request cannot succeed unless the client changes it, or the state that it refers to."""

    slug, title = "bad-request", "Bad request"


class UnreadableRequest(BadRequest):
    """The bytes received are not HTTP, or the request's head is too large."""

    slug, title = "unreadable-request", "The request cannot be read"


class UnreadableBody(BadRequest):
    """The body could not be parsed at all."""

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
    """The request can be parsed, and a value in it is not valid; fields: often `field`, `value`, `bound`."""

    slug, title = "invalid-request", "The request is not valid"


class NotAcceptable(BadRequest):
    """The client accepts no type that the route has; fields: supported."""

    slug, title = "not-acceptable", "No acceptable type"


class InvalidPositions(BadRequest):
    """A stream cannot begin where its client says that it was; fields: value."""

    slug, title = "invalid-positions", "Invalid positions"


class InvalidName(BadRequest):
    """The name of a topic, subscription or producer has characters or a length that are not allowed."""

    slug, title = "invalid-name", "The name is not valid"


class InvalidMessages(BadRequest):
    """Some messages are not valid; fields: `errors` (index and reason of the first 1,000), `invalid` (how many),
    `hint` (what mends the first, where that is clear)."""

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
    """The topic has no upload of that id, or its record has been removed; fields: topic, upload_id."""

    slug, title = "upload-not-found", "Upload not found"


class UploadIncomplete(BadRequest):
    """Not all of the upload's bytes are in the store; fields: upload_id, and often `missing`."""

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
    """The upload's state does not allow the request; fields: upload_id."""

    slug, title = "upload-conflict", "The upload's state does not allow this"


class PayloadTooLarge(BadRequest):
    """A payload is over the limit; fields: limit_bytes."""

    slug, title = "payload-too-large", "The payload is too large"


class TooManyUploads(BadRequest):
    """The topic has reached its limit of open uploads; fields: limit, retry_after_s."""

    slug, title = "too-many-uploads", "Too many open uploads"


class TooManyTopics(BadRequest):
    """The cluster has as many topics as it may; fields: limit, setting."""

    slug, title = "too-many-topics", "The cluster has too many topics"


class RateLimited(BadRequest):
    """A limit of the principal or the topic is reached for now; fields: limit (its name), rate (a second),
    retry_after_s."""

    slug, title = "rate-limited", "A limit is reached"


class TooManySegments(BadRequest):
    """The cluster has as many segments as it may; fields: limit, setting."""

    slug, title = "too-many-segments", "The cluster has too many segments"


class InvalidImport(BadRequest):
    """The uploaded file cannot be read in the format that the request names; fields: format, reason."""

    slug, title = "invalid-import", "The file cannot be imported"


class PayloadNotFound(BadRequest):
    """The message has no payload, or the store no longer holds it; fields: topic, id."""

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
    """The segments' state does not allow the change; fields: segment, and successors if it is sealed."""

    slug, title = "segment-conflict", "The segment's state does not allow this change"


class SequenceOutOfOrder(BadRequest):
    """A producer's sequence is not new, and too old to be compared with; fields: producer, sequence, newest."""

    slug, title = "sequence-out-of-order", "The producer's sequence is out of order"


class NeedsLevel(BadRequest):
    """The request needs a higher level than the cluster has; fields: level, needs, too_old (brokers that do not read
    it)."""

    slug, title = "needs-cluster-level", "The cluster's level is too low"


class LevelConflict(BadRequest):
    """The cluster's level cannot become the one that is asked for; fields: level, to, and `too_old`, the brokers that
    do not read it."""

    slug, title = "level-conflict", "The cluster's level cannot change to this"


class OffsetOutOfRange(BadRequest):
    """The request names an offset beyond the segment's end; fields: offset, end_offset."""

    slug, title = "offset-out-of-range", "The offset is beyond the end"


class BelowRetention(BadRequest):
    """The request names an offset that retention has removed; fields: segment, offset, start_offset."""

    slug, title = "below-retention", "Retention has removed the offset"


class Unauthenticated(BadRequest):
    """The request has no token, or one that does not count (any more)."""

    slug, title = "unauthenticated", "Not authenticated"


class Forbidden(BadRequest):
    """The caller may not do this; fields: action and resource, where a right is missing."""

    slug, title = "forbidden", "Forbidden"


class PeerRefused(Forbidden):
    """The request claims to come from a broker of this cluster, and is not taken for one (`reason`)."""

    slug, title = "peer-refused", "Not taken for a broker"


class ForeignOrigin(Forbidden):
    """A web page of another origin has sent the request, or may have sent it; fields: origin, setting, header."""

    slug, title = "foreign-origin", "Pages of other origins may not do this"


class LeaseEnded(BadRequest):
    """The lease has ended, or was another dispatcher's; fields: lease."""

    slug, title = "lease-ended", "The lease has ended"


class LeaseOfAnother(BadRequest):
    """The lease is another consumer's; fields: lease, consumer."""

    slug, title = "lease-of-another", "The lease is another consumer's"


class NoDeadLetters(BadRequest):
    """A message was rejected, and the subscription has no topic for it; fields: topic, subscription."""

    slug, title = "no-dead-letter-topic", "There is no topic for dead letters"


class WrongHost(BadRequest):
    """The request names a host that is not this broker's; fields: host, setting."""

    slug, title = "wrong-host", "The broker does not answer to this host"

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
    │   ├── PayloadTooLarge, TooManyUploads, TooManyTopics, TooManySegments, InvalidImport, RateLimited
    │   ├── TopicConflict, SubscriptionConflict, TopicBeingDeleted, SegmentConflict,
    │   │   SequenceOutOfOrder, NeedsLevel, LevelConflict
    │   ├── OffsetOutOfRange, BelowRetention, LeaseEnded, LeaseOfAnother, NoDeadLetters
    │   ├── WrongHost, Unauthenticated
    │   └── Forbidden
    │       └── ForeignOrigin, PeerRefused
    ├── Unavailable               the client may retry after `retry_after_s`
    │   ├── NotReady, Overloaded, NeedsNewerBroker, PeerTooOld
    │   ├── JournalUnavailable, StoreUnavailable, CoordinationUnavailable
    │   └── NotOwner, PartlyTaken
    ├── Fenced                    another writer has replaced this one: stop writing, read the state again
    ├── Damaged                   stored bytes differ from those that were written
    │   └── JournalDamaged, ChainDamaged
    ├── UnfitStore                the store lacks a guarantee that the queue needs
    ├── LevelMismatch             the cluster's level is not one that this version reads
    ├── DataFolderInUse           another process holds the data folder
    └── ClientError               raised by the Python client alone
        └── ServerProblem, ConnectionFailed, FileMissing, MissingExtra

InvariantViolated (seaweedq/invariants) is below the root, too: a defect of the program, with the slug of the root.

The `fields` of an error help the reader to correct it; they become members of the problem document.
"""

from seaweedq.errors.failures import *  # noqa: F403
from seaweedq.errors.refusals import *  # noqa: F403
from seaweedq.errors.root import *  # noqa: F403

"""Errors that no request caused (absence, overload, replacement, damage), and those of the Python client alone."""

from typing import Any

from seaweedq.errors.root import SeaweedqError


class Unavailable(SeaweedqError):
    """The request is valid but cannot be served now; the client may retry after `retry_after_s` seconds."""

    slug, title = "unavailable", "Unavailable"

    def __init__(self, detail: str, *, retry_after_s: int = 1, **fields: Any) -> None:
        super().__init__(detail, **fields)
        self.retry_after_s = retry_after_s


class NotReady(Unavailable):
    """The broker is starting or stopping, or has lost its lease."""

    slug, title = "not-ready", "The broker is not ready"


class Overloaded(Unavailable):
    """The memory budget is used up; fields: budget_bytes."""

    slug, title = "overloaded", "The broker is overloaded"


class NeedsNewerBroker(Unavailable):
    """A later version of this program wrote what the request needs, in a form that this broker does not read."""

    slug, title = "needs-newer-broker", "A newer broker is needed"


class PeerTooOld(Unavailable):
    """The broker that was asked is of an earlier version, which does not know what it is asked for."""

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
    """Another broker owns the segment or the subscription, or is about to; fields: owner if it is known."""

    slug, title = "not-owner", "Another broker is the owner"


class PartlyTaken(Unavailable):
    """Some segments have appended their rows, others have not; fields: `taken` (segment, first_offset, count).

    If the same producer repeats the request, the missing rows are appended, and no other row twice.
    """

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

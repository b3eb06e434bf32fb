"""Invariants: rules that hold by construction, checked where a write would break them for good.

A failed check is a defect of the program. The write is refused, nothing acknowledged is lost, the log names the facts.
Its error is one of the tree: loops log it and go on, calls between brokers carry it, and requests are told. What cannot
go on after it (a commit that is durable, and does not fit its segment) ends the life of the broker.
"""

import logging

from seaweedq.errors import SeaweedqError

logger = logging.getLogger(__name__)


class InvariantViolated(SeaweedqError):
    """A rule does not hold. Clients get the problem `internal`: they have done nothing wrong."""


def require(holds: bool, rule: str, *facts: object) -> None:
    """Logs and raises InvariantViolated unless `rule` holds; the `facts` are formatted into it, and only then."""
    if not holds:
        logger.error("invariant violated: " + rule, *facts)
        raise InvariantViolated("the broker found an invariant broken; its log has the details", inside=rule % facts)

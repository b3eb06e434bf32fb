"""Invariants: rules that hold by construction, checked where a write would break them for good.

A failed check is a defect of the program. The write is refused, nothing acknowledged is lost, the log names the facts.
"""

import logging

logger = logging.getLogger(__name__)


class InvariantViolated(AssertionError):
    """A rule does not hold. Requests answer it with 500: neither the client nor the cluster has done anything wrong."""


def require(holds: bool, rule: str, *facts: object) -> None:
    """Logs and raises InvariantViolated unless `rule` holds; the `facts` are formatted into it, and only then."""
    if not holds:
        logger.error("invariant violated: " + rule, *facts)
        raise InvariantViolated(rule % facts)

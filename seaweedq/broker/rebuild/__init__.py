"""The return of coordination to an earlier state, or to none: how it is noticed, and the rebuild from the store."""

from seaweedq.broker.rebuild.looking import LeaderLook, Look, record_signs
from seaweedq.broker.rebuild.plan import TopicPlan, losses, lowered
from seaweedq.broker.rebuild.rebuilding import Report, Wish
from seaweedq.broker.rebuild.signs import COMMAND, Sign
from seaweedq.broker.rebuild.waiting import Waiting

__all__ = [
    "COMMAND",
    "LeaderLook",
    "Look",
    "Report",
    "Sign",
    "TopicPlan",
    "Waiting",
    "Wish",
    "losses",
    "lowered",
    "record_signs",
]

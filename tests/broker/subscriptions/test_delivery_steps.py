"""Every step of an offset that docs/internals/states.md draws is taken by some verb, and no verb takes another one."""

from collections.abc import Callable

import numpy as np
import pytest

from seaweedq.broker.subscriptions.delivery import REJECTED, DeadLetterReason, SegmentDelivery
from seaweedq.broker.subscriptions.leases import Asker
from seaweedq.broker.subscriptions.policy import PullLimits, Rules
from tests.support.brokers.drawn_states import END, Step, drawn
from tests.support.delivery_steps import recorded_steps

ONE = np.array([0], np.int64)
LEASE, CONSUMER, DUE_S = 5, 1, 10.0
DRAWN = {step for step in drawn("Offset of a subscription") if END not in step}
Verb = Callable[[SegmentDelivery], object]


def leased(delivery: SegmentDelivery) -> None:
    delivery.leases.lease(delivery.available(PullLimits(CONSUMER, 1), 1), LEASE, CONSUMER, DUE_S)


def delayed(delivery: SegmentDelivery) -> None:
    leased(delivery)
    delivery.nack(ONE, 0.0, delay_s=DUE_S)


def dying(delivery: SegmentDelivery) -> None:
    leased(delivery)
    delivery.reject(ONE, 0.0)


def acking(delivery: SegmentDelivery) -> None:
    leased(delivery)
    delivery.begin_ack(ONE)


def dead(delivery: SegmentDelivery) -> None:
    dying(delivery)
    delivery.begin_ack(ONE)


def free(delivery: SegmentDelivery) -> None:
    """As an offset that came back: its ack is late."""
    leased(delivery)
    delivery.nack(ONE, 0.0, delay_s=0.0)


def late_ack(delivery: SegmentDelivery) -> None:
    judged = delivery.judge(ONE, Asker(CONSUMER, LEASE))
    assert judged.late == 1
    delivery.begin_ack(judged.taken)


def tired(delivery: SegmentDelivery) -> None:
    """Its attempts are fewer now than it has had."""
    delivery.rules = Rules("shared", max_attempts=1)
    delivery.hold_last(DUE_S)


def expire_tired(delivery: SegmentDelivery) -> None:
    delivery.rules = Rules("shared", max_attempts=1)
    delivery.expire(DUE_S)


def retired(delivery: SegmentDelivery) -> int:
    return delivery.window.retire(1)


VERBS: dict[Step, list[tuple[Verb, Verb]]] = {
    ("available", "leased"): [(lambda one: None, leased)],
    ("leased", "acking"): [(leased, lambda one: one.begin_ack(one.judge_lease(Asker(CONSUMER, LEASE)).taken))],
    ("leased", "available"): [
        (leased, lambda one: one.expire(DUE_S)),
        (leased, lambda one: one.nack(ONE, 0.0, delay_s=0.0)),
        (leased, lambda one: one.give_back(ONE)),
        (leased, lambda one: one.give_again(CONSUMER)),
    ],
    ("leased", "delayed"): [(leased, lambda one: one.nack(ONE, 0.0, delay_s=DUE_S))],
    ("delayed", "available"): [(delayed, lambda one: one.expire(DUE_S))],
    ("available", "acking"): [(free, late_ack)],
    ("delayed", "acking"): [(delayed, late_ack)],
    ("leased", "dying"): [(leased, lambda one: one.reject(ONE, 0.0)), (leased, expire_tired)],
    ("delayed", "dying"): [(delayed, expire_tired)],
    ("available", "delayed"): [(free, tired)],
    ("available", "dying"): [(lambda one: None, lambda one: one.restore_dying(ONE, DeadLetterReason(REJECTED), 0.0))],
    ("dying", "acking"): [(dying, lambda one: one.begin_ack(ONE))],
    ("acking", "acked"): [(acking, lambda one: one.end_ack(ONE, durable=True)), (acking, retired)],
    ("acking", "available"): [(acking, lambda one: one.end_ack(ONE, durable=False))],
    ("acking", "dying"): [(dead, lambda one: one.end_ack(ONE, durable=False))],
    ("available", "acked"): [(free, retired), (free, lambda one: one.leave_out(ONE))],
    ("leased", "acked"): [(leased, retired)],
    ("delayed", "acked"): [(delayed, retired)],
    ("dying", "acked"): [(dying, retired)],
}


def test_every_step_that_is_drawn_has_a_verb() -> None:
    assert VERBS.keys() == DRAWN


@pytest.mark.parametrize("step", VERBS, ids="-".join)
def test_a_verb_takes_its_step_and_no_other(step: Step) -> None:
    for before, verb in VERBS[step]:
        delivery = SegmentDelivery(0, delivered_to=2, rules=Rules("shared"))
        before(delivery)
        with recorded_steps() as made:
            verb(delivery)
        assert made == {step}

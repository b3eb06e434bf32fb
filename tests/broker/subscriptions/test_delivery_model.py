"""Delivery against a model: whatever is pulled, acked, failed and timed out, nobody gets what he must not."""

from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from seaweedq.broker.log.intervals import runs_of
from seaweedq.broker.subscriptions import delivery as module
from seaweedq.broker.subscriptions.delivery import Delivery
from seaweedq.broker.subscriptions.invariants import broken_by
from tests.support.tiers import examples

CONSUMERS = st.sampled_from(["a", "b"])
DEADLINE_S = 10.0
WINDOW = 12
END = 40


class DeliveryMachine(RuleBasedStateMachine):
    """The model: who holds which offset until when, what is on its way to the journal, what is acked."""

    @initialize(start=st.integers(0, 5), acked=st.sets(st.integers(6, 12)))
    def begin(self, start: int, acked: set[int]) -> None:
        self.patch = patch.object(module, "WINDOW", WINDOW)
        self.patch.start()
        self.delivery = Delivery(start, runs_of(acked), {}, 0)
        self.start = start
        self.checkpoint = self.delivery.record(1)
        self.now_s = 0.0
        self.end = start
        self.acked = set(range(start)) | acked
        self.acking: list[set[int]] = []
        self.leased: dict[int, float] = {}
        self.holder = ""
        self.last: dict[int, str] = {}
        self.times = dict.fromkeys(range(start, max(acked, default=start)), 1)  # they came before what is acked
        self.before = start

    def teardown(self) -> None:
        self.patch.stop()

    @rule(count=st.integers(1, 10))
    def publish(self, count: int) -> None:
        self.end = min(END, self.end + count)

    @rule(consumer=CONSUMERS, limit=st.integers(1, 8), data=st.data())
    def pull(self, consumer: str, limit: int, data: st.DataObject) -> None:
        self.expire()
        found = self.delivery.available(consumer, self.end, limit)
        if not len(found):
            if not self.leased and not self.acking:
                unacked = [o for o in range(self.end) if o not in self.acked]
                assert not unacked, f"{unacked} are with nobody, and are not delivered"
            return
        given = found.tolist()
        offsets = set(given)
        assert given == sorted(offsets)
        assert given[-1] < min(self.end, self.acked_to() + WINDOW)
        assert len(given) <= limit
        assert not self.leased or self.holder == consumer, "two consumers at a time"
        assert not offsets & self.acked, "acked, and delivered again"
        assert not offsets & set().union(*self.acking), "delivered while its ack is on its way"
        assert not offsets & self.leased.keys(), "delivered twice at a time"
        earlier = {o for o in range(given[-1]) if o not in self.acked and o not in offsets}
        assert earlier <= self.leased.keys() | set().union(*self.acking), "an earlier one was passed over"
        self.delivery.lease(found, consumer)
        if data.draw(st.integers(0, 9)) == 0:  # the client went before it got them
            self.delivery.cancel_leases()
            for offset in offsets:
                self.last.pop(offset, None)
            return
        self.delivery.begin_leases(self.now_s + DEADLINE_S)
        self.holder = consumer
        self.last |= dict.fromkeys(given, consumer)
        for offset in offsets:
            self.leased[offset] = self.now_s + DEADLINE_S
            self.times[offset] = self.times.get(offset, 0) + 1
        assert self.delivery.attempts_of(found).tolist() == [self.times[offset] for offset in given]

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        self.expire()
        under_way = set().union(*self.acking)  # acking those again, and failing once, delivers them again: allowed
        free = [o for o in range(self.end + 2) if o not in under_way]
        known = [o for o in self.leased if o not in under_way] or free
        offsets = data.draw(st.lists(st.sampled_from(free) | st.sampled_from(known), max_size=6))
        consumer = data.draw(st.sampled_from(["a", "b", None]))
        judged = self.delivery.judge(offsets, consumer)
        taken = set(judged.taken.tolist())
        held = {o for o in offsets if o in self.leased and consumer in (None, self.holder)}
        due = [o for o in offsets if o not in self.leased and o not in self.acked]
        late = {o for o in due if o in self.last and consumer in (None, self.last[o])}
        assert taken == held | late
        assert judged.late == len(late)
        assert set(judged.unknown) == set(offsets) - self.acked - taken
        assert judged.known + len(judged.unknown) == len(set(offsets))
        if taken:
            self.delivery.begin_ack(judged.taken)
            self.acking.append(taken)
            for offset in taken:
                self.leased.pop(offset, None)

    @rule(durable=st.booleans(), data=st.data())
    def journal(self, durable: bool, data: st.DataObject) -> None:
        if self.acking:
            taken = self.acking.pop(data.draw(st.integers(0, len(self.acking) - 1)))
            self.delivery.end_ack(np.array(sorted(taken)), durable)
            if durable:
                self.acked |= taken
            elif left := taken - self.acked:  # retention may have removed some meanwhile
                self.rewind(min(left))

    @rule(step_s=st.sampled_from([1.0, 6.0, 11.0]))
    def wait(self, step_s: float) -> None:
        self.now_s += step_s

    @rule(below=st.integers(0, END))
    def retire(self, below: int) -> None:
        self.expire()
        below = min(below, self.end)
        under_way = set().union(*self.acking)
        skipped = set(range(self.acked_to(), below)) - self.acked - under_way
        assert self.delivery.retire(below) == len(skipped)
        self.acked |= set(range(below))
        self.leased = {offset: deadline for offset, deadline in self.leased.items() if offset >= below}

    @invariant()
    def its_checkpoints_break_no_invariant(self) -> None:
        if hasattr(self, "delivery"):
            now = self.delivery.record(1)
            assert broken_by(self.checkpoint, now) == []
            self.checkpoint = now

    @invariant()
    def acked_to_never_goes_back_and_is_exact(self) -> None:
        if hasattr(self, "delivery"):
            assert self.delivery.acked_to == self.acked_to() >= self.before
            self.before = self.delivery.acked_to
            beyond = {o for o in self.acked if o >= self.delivery.acked_to}
            assert {o for low, high in self.delivery.acked_runs() for o in range(low, high)} == beyond
            assert self.delivery.acked_count == len(beyond)

    def expire(self) -> None:
        self.delivery.expire(self.now_s)
        over = [o for o, deadline in self.leased.items() if deadline <= self.now_s and o not in self.acked]
        if over:
            self.rewind(min(over))

    def rewind(self, offset: int) -> None:
        self.leased = {o: deadline for o, deadline in self.leased.items() if o < offset}

    def acked_to(self) -> int:
        return next(o for o in range(self.start, END + 100) if o not in self.acked)


DeliveryMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
test_delivery = DeliveryMachine.TestCase


def test_very_many_acked_runs_are_taken_in_at_once() -> None:
    """Each alone took 30 us of the event loop: a cursor of 50,000 holds it for more than a second."""
    runs = [(n, n + 1) for n in range(0, 20_000, 2)]
    with patch.object(Delivery, "_settle", autospec=True, side_effect=Delivery._settle) as settled:
        found = Delivery(0, runs[1:])
        found.pass_over_all(runs)
    assert settled.call_count < 10
    assert (found.acked_to, found.acked_runs(), found.delivered_to) == (1, runs[1:], 19_999)


@given(st.integers(0, 5), st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_runs_taken_in_at_once_are_as_if_taken_in_one_after_another(
    start: int, before: set[int], more: set[int]
) -> None:
    acked = runs_of(offset for offset in before if offset > start)
    at_once, alone = Delivery(start, acked), Delivery(start, acked)
    at_once.pass_over_all(runs_of(more))
    for low, high in runs_of(more):
        alone.pass_over(low, high)
    assert at_once.record(1) == alone.record(1)
    assert set(range(at_once.acked_to)) | {o for run in at_once.acked_runs() for o in range(*run)} >= more

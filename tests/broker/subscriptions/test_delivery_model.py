"""Delivery against a dictionary model, in simulated time, in all modes and with all verbs: whatever is pulled, acked,
nacked, extended, failed and timed out, nobody gets what he must not, and everybody what he may.
"""

from dataclasses import dataclass, field
from math import inf
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from seaweedq.broker.log.intervals import runs_of
from seaweedq.broker.subscriptions import delivery as module
from seaweedq.broker.subscriptions.cursor import broken_by
from seaweedq.broker.subscriptions.delivery import MAX_ATTEMPTS, REJECTED, SegmentDelivery
from seaweedq.broker.subscriptions.leases import Asker
from seaweedq.broker.subscriptions.policy import PullLimits, Rules
from seaweedq.broker.subscriptions.window import ACKING, DELAYED, DYING, HELD, Window
from seaweedq.coordination.packed_forms import SegmentSeek, cursor_after
from tests.support.brokers.drawn_states import drawn
from tests.support.delivery_steps import recorded_steps
from tests.support.tiers import examples

CONSUMERS = st.sampled_from([1, 2])
SLOTS = st.sampled_from([-1, 3, 7, 65_535])
DEADLINE_S = 10.0
WINDOW = 12
END = 40


@dataclass
class One:
    """An offset: its state, whose it is or was last, until when, its attempts, the slot of its key, why it died, and
    the lease `before`, of which its consumer has it again."""

    slot: int
    state: str = "free"
    lease: int = 0
    consumer: int = 0
    due_s: float = inf
    attempts: int = 0
    why: str = ""
    before: int = 0


@dataclass
class Model:
    """The same rules as SegmentDelivery's, offset by offset."""

    rules: Rules
    ones: dict[int, One]
    end: int = 0
    read_to: int = 0
    sought_below: int = 0
    acking: list[set[int]] = field(default_factory=list)

    def those(self, *states: str) -> list[int]:
        return [offset for offset, one in self.ones.items() if one.state in states]

    @property
    def acked_to(self) -> int:
        return next(offset for offset, one in self.ones.items() if one.state != "acked")

    def kind(self, offset: int) -> int:
        coming = self.ones[offset].attempts + 1
        if self.rules.max_attempts >= 3 and coming >= self.rules.max_attempts:
            return 2
        return 1 if coming >= 3 else 0

    def due(self, consumer: int, limit: int, wanted: int | None) -> list[int]:
        """What a pull must get."""
        found = self._candidates(consumer)[:limit]
        if not found:
            return []
        wanted = self.kind(found[0]) if wanted is None else wanted
        given: list[int] = []
        kept: set[int] = set()
        for offset in found:
            slot = self.ones[offset].slot
            if self.kind(offset) != wanted or (self.rules.mode == "keyed" and slot in kept):
                if self.rules.mode == "ordered":
                    break
                kept |= {slot} - {-1}
            else:
                given.append(offset)
        return given[: {0: limit, 1: 16, 2: 1}[wanted]]

    def _candidates(self, consumer: int) -> list[int]:
        mode, here = self.rules.mode, range(self.acked_to, min(self.end, self.acked_to + WINDOW))
        if mode == "shared":
            return [offset for offset in here if self.ones[offset].state == "free"]
        if mode == "keyed":
            with_whom = self.those("held", "delayed", "acking")
            busy = {self.ones[offset].slot for offset in with_whom if offset < self.read_to} - {-1}
            free = [offset for offset in here if self.ones[offset].state == "free" and offset < self.read_to]
            return [offset for offset in free if self.ones[offset].slot not in busy]
        if any(self.ones[offset].consumer != consumer for offset in self.those("held", "delayed")):
            return []
        first_delayed = min(self.those("delayed"), default=END)
        return [offset for offset in here if self.ones[offset].state == "free" and offset < first_delayed]

    def give_up(self, offsets: list[int], now_s: float) -> list[int]:
        most = self.rules.max_attempts
        over = [offset for offset in offsets if most and self.ones[offset].attempts >= most]
        self.die(over, MAX_ATTEMPTS, now_s)
        return [offset for offset in offsets if offset not in over]

    def die(self, offsets: list[int], why: str, now_s: float) -> None:
        for offset in offsets:
            one = self.ones[offset]
            one.state, one.why, one.lease, one.consumer, one.due_s = "dying", why, 0, 0, now_s

    def fail(self, failed: list[int], now_s: float, delay_s: float | None) -> None:
        failed = self.give_up(failed, now_s)
        self.drag(failed)
        for offset in failed:
            one, steps = self.ones[offset], self.rules.backoff_s
            pause_s = delay_s
            if pause_s is None:
                pause_s = steps[min(max(one.attempts, 1), len(steps)) - 1] if steps else 0
            one.state, one.due_s = ("delayed", now_s + pause_s) if pause_s else ("free", inf)

    def drag(self, failed: list[int]) -> None:
        for offset in set(self.those("held")) - set(failed):
            before = [one for one in failed if one < offset]
            if self.rules.mode == "keyed":
                slot = self.ones[offset].slot
                before = [one for one in before if slot != -1 and self.ones[one].slot == slot]
            if before and self.rules.mode != "shared":
                self.ones[offset].state = "free"
                self.ones[offset].attempts -= 1

    def expire(self, now_s: float) -> None:
        over = [offset for offset in self.those("held", "delayed") if self.ones[offset].due_s <= now_s]
        held = [offset for offset in over if self.ones[offset].state == "held"]
        for offset in self.give_up([offset for offset in over if offset not in held], now_s):
            self.ones[offset].state = "free"
        self.fail(held, now_s, None)

    def is_of(self, offset: int, asker: Asker) -> bool:
        one = self.ones[offset]
        mine = one.consumer != 0 if asker.consumer is None else one.consumer == asker.consumer
        return mine and asker.lease in (None, one.lease, one.before)


class DeliveryMachine(RuleBasedStateMachine):
    """All verbs, of two consumers with a lease for each pull."""

    @initialize(
        start=st.integers(0, 5),
        acked=st.sets(st.integers(6, 12)),
        slots=st.lists(SLOTS, min_size=END, max_size=END),
        mode=st.sampled_from(["ordered", "shared", "keyed"]),
        backoff=st.sampled_from([(), (2.0,), (0.0, 3.0, 20.0)]),
        most=st.sampled_from([0, 1, 2, 3, 5]),
    )
    def begin(
        self, start: int, acked: set[int], slots: list[int], mode: str, backoff: tuple[float, ...], most: int
    ) -> None:
        self.patch = patch.object(module, "WINDOW", WINDOW)
        self.patch.start()
        self.steps = recorded_steps()
        self.made = self.steps.__enter__()
        rules = Rules(mode, backoff, most)  # type: ignore[arg-type]
        self.delivery = SegmentDelivery(start, runs_of(acked), {}, 0, rules)
        self.epoch = 1
        self.checkpoint = self.delivery.window.record(1)
        self.now_s, self.leases, self.before = 0.0, 0, start
        ones = {offset: One(slots[offset]) for offset in range(END)} | {END: One(-1)}
        self.model = Model(rules, ones, end=max(acked, default=start - 1) + 1, read_to=start)
        for offset in [*range(start), *acked]:
            ones[offset].state = "acked"
        for offset in range(start, max(acked, default=start)):
            ones[offset].attempts = 1  # they came before what is acked

    def teardown(self) -> None:
        self.patch.stop()
        self.steps.__exit__(None, None, None)
        assert self.made <= drawn("Offset of a subscription")

    @rule(count=st.integers(1, 10))
    def publish(self, count: int) -> None:
        self.model.end = min(END, self.model.end + count)

    @rule(count=st.integers(0, 8), back=st.integers(0, 2))
    def read_keys(self, count: int, back: int) -> None:
        model = self.model
        model.read_to = max(model.read_to, model.acked_to)
        assert self.delivery.read_to == model.read_to
        first = max(model.read_to - back, 0)
        last = min(model.end, model.read_to + count, model.acked_to + WINDOW)
        if model.rules.mode == "keyed" and last > first:
            slots = [model.ones[offset].slot for offset in range(first, last)]
            self.delivery.set_slots(first, np.array(slots, np.int32))
            model.read_to = max(model.read_to, last)

    @rule(consumer=CONSUMERS, limit=st.integers(1, 8), kind=st.sampled_from([None, None, 0, 1]), data=st.data())
    def pull(self, consumer: int, limit: int, kind: int | None, data: st.DataObject) -> None:
        self.expire()
        model = self.model
        found = self.delivery.available(PullLimits(consumer, limit, kind), model.end)
        given = found.tolist()
        assert given == model.due(consumer, limit, kind)
        lower = data.draw(st.integers(0, model.end))  # as a pull asks that has read less than was due
        with patch.object(model, "end", lower):
            assert self.delivery.available(PullLimits(consumer, limit, kind), lower).tolist() == model.due(
                consumer, limit, kind
            )
        if not given:
            return
        assert self.delivery.kind_of(given[0]) == model.kind(given[0])
        self.leases += 1
        self.delivery.leases.lease(found, self.leases, consumer)
        for offset in given:
            one = model.ones[offset]
            one.before = one.before if one.consumer == consumer else 0
            one.state, one.lease, one.consumer, one.due_s = "held", self.leases, consumer, self.now_s + DEADLINE_S
            one.attempts += 1
        if data.draw(st.integers(0, 9)) == 0:  # the client went before it got them
            self.delivery.leases.cancel()
            for offset in given:
                one = model.ones[offset]
                one.state, one.lease, one.consumer = "free", one.before, consumer if one.before else 0
                one.attempts -= 1
            return
        self.delivery.leases.begin(self.now_s + DEADLINE_S)
        assert self.delivery.window.values("attempts", found).tolist() == [
            model.ones[offset].attempts for offset in given
        ]

    def draw_ids(self, data: st.DataObject) -> tuple[list[int], Asker]:
        model = self.model
        under_way = set(model.those("acking"))  # acking those again, and failing once, delivers them again: allowed
        free = [offset for offset in range(model.end + 2) if offset not in under_way]
        held = model.those("held") or free
        offsets = data.draw(st.lists(st.sampled_from(free) | st.sampled_from(held), max_size=6))
        lease = data.draw(st.none() | st.integers(1, self.leases + 1))
        return offsets, Asker(data.draw(st.none() | CONSUMERS), lease)

    @rule(data=st.data(), whole=st.booleans(), anything=st.integers(0, 9))
    def ack(self, data: st.DataObject, whole: bool, anything: int) -> None:
        self.expire()
        model = self.model
        offsets, asker = self.draw_ids(data)
        if whole and asker.lease is not None:
            offsets = self.delivery.leases.last_had_by(asker).tolist()
            mine = model.those("held", "free", "delayed", "acking")
            assert offsets == [o for o in mine if model.is_of(o, asker) and o < model.end]
            offsets = [o for o in offsets if model.ones[o].state != "acking"]
        if anything == 0:  # just taken over
            asker = Asker(None, None, anything=True)
        judged = self.delivery.judge(offsets, asker, model.end)
        bound = min(model.end, model.acked_to + WINDOW)
        waiting = [o for o in set(offsets) if o < END and model.ones[o].state in ("free", "delayed", "held")]
        given = {o for o in waiting if o >= model.sought_below or model.ones[o].consumer}
        mine = [o for o in waiting if (o in given and o < bound if asker.anything else model.is_of(o, asker))]
        assert judged.taken.tolist() == sorted(mine)
        assert judged.late == sum(model.ones[o].state != "held" for o in mine)
        acked = {o for o in offsets if o < END and model.ones[o].state == "acked"}
        assert set(judged.unknown) == set(offsets) - acked - set(mine)
        assert judged.known + len(judged.unknown) == len(set(offsets))
        if mine:
            self.delivery.begin_ack(judged.taken)
            model.acking.append(set(mine))
            for offset in mine:
                model.ones[offset].state = "acking"

    @rule(durable=st.booleans(), data=st.data())
    def journal(self, durable: bool, data: st.DataObject) -> None:
        model = self.model
        if model.acking:
            taken = model.acking.pop(data.draw(st.integers(0, len(model.acking) - 1)))
            self.delivery.end_ack(np.array(sorted(taken)), durable)
            for offset in taken:
                if model.ones[offset].state == "acking":  # retention may have taken it meanwhile
                    model.ones[offset].state = "acked" if durable else "dying" if model.ones[offset].why else "free"
            if not durable:
                model.drag([offset for offset in taken if model.ones[offset].state == "free"])

    @rule(data=st.data(), delay_s=st.sampled_from([None, 0.0, 4.0, 15.0]))
    def nack(self, data: st.DataObject, delay_s: float | None) -> None:
        held = self.held_of(data)
        self.delivery.nack(np.array(held, np.int64), self.now_s, delay_s)
        self.model.fail(held, self.now_s, delay_s)

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        held = self.held_of(data)
        self.delivery.give_back(np.array(held, np.int64))
        self.model.drag(held)
        for offset in held:
            self.model.ones[offset].state = "free"
            self.model.ones[offset].attempts -= 1

    @rule(consumer=CONSUMERS)
    def come_back(self, consumer: int) -> None:
        """A consumer gets again what it holds, but for what has had its last attempt."""
        self.expire()
        model, most = self.model, self.model.rules.max_attempts
        mine = [o for o in model.those("held") if model.ones[o].consumer == consumer]
        mine = [o for o in mine if not most or model.ones[o].attempts < most]
        assert self.delivery.give_again(consumer) == bool(mine)
        for offset in mine:
            one = model.ones[offset]
            one.state, one.before = "free", one.lease
        if mine and model.rules.mode == "ordered" and not model.those("delayed"):
            first = min(model.those("free"))
            assert first <= mine[0]
            assert self.delivery.available(PullLimits(consumer, 1), model.end).tolist() == [first]

    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        held = self.held_of(data)
        self.delivery.reject(np.array(held, np.int64), self.now_s, "no good")
        self.model.die(held, REJECTED, self.now_s)

    @rule(pause_s=st.sampled_from([0.0, 5.0]))
    def publish_letters(self, pause_s: float) -> None:
        """Those that are due are durable, and acked; or none is, and all wait."""
        self.expire()
        ones, queue = self.model.ones, self.delivery.dead_letters
        due = queue.due(self.now_s)
        assert due.tolist() == [offset for offset in self.model.those("dying") if ones[offset].due_s <= self.now_s]
        assert [queue.reason_of(offset).reason for offset in due.tolist()] == [ones[o].why for o in due.tolist()]
        if pause_s:
            queue.postpone(due, self.now_s + pause_s)
            for offset in due.tolist():
                ones[offset].due_s = self.now_s + pause_s
        elif len(due):
            self.delivery.begin_ack(due)
            self.model.acking.append(set(due.tolist()))
            for offset in due.tolist():
                ones[offset].state = "acking"

    @rule(most=st.sampled_from([0, 1, 3]), patience_s=st.sampled_from([0.0, 10.0]))
    def change_attempts(self, most: int, patience_s: float) -> None:
        """As a change of the settings does, and, with patience, a take-over."""
        self.expire()
        model, backoff_s = self.model, self.model.rules.backoff_s
        model.rules = self.delivery.rules = Rules(model.rules.mode, backoff_s, most)
        self.delivery.hold_last(self.now_s + patience_s)
        for offset in [offset for offset in model.those("free") if offset < self.delivery.window.delivered_to]:
            one = model.ones[offset]
            if most and one.attempts >= most:
                one.state, one.due_s = "delayed", self.now_s + patience_s
        self.expire()

    @rule(data=st.data(), more_s=st.sampled_from([1.0, 5.0, 30.0]))
    def extend(self, data: st.DataObject, more_s: float) -> None:
        held = self.held_of(data)
        self.delivery.leases.extend(np.array(held, np.int64), self.now_s + more_s)
        for offset in held:
            self.model.ones[offset].due_s = self.now_s + more_s

    def held_of(self, data: st.DataObject) -> list[int]:
        """What an asker has of some offsets."""
        self.expire()
        offsets, asker = self.draw_ids(data)
        held = self.delivery.leases.held_among(np.array(offsets, np.int64), asker).tolist()
        ones = self.model.ones
        here = [o for o in set(offsets) if o < END and ones[o].state == "held"]
        mine = [o for o in here if self.model.is_of(o, asker)]
        assert held == sorted(o for o in mine if asker.lease in (None, ones[o].lease))
        return [int(offset) for offset in held]

    @rule(below=st.integers(0, END))
    def retire(self, below: int) -> None:
        self.expire()
        below = min(below, self.model.end)
        gone = [offset for offset in range(below) if self.model.ones[offset].state != "acked"]
        skipped = [offset for offset in gone if self.model.ones[offset].state != "acking"]
        assert self.delivery.window.retire(below) == len(skipped)
        for offset in gone:
            self.model.ones[offset].state = "acked"

    @rule(to=st.none() | st.integers(0, END))
    def seek(self, to: int | None) -> None:
        """Once no ack is under way; the cursor goes elsewhere, or stays."""
        model, before = self.model, self.delivery.window.record(self.epoch)
        if model.acking:
            return
        self.epoch += 1
        to = None if to is None else min(to, model.end)
        record = cursor_after(SegmentSeek(0, model.end, to), self.epoch, before)
        assert record or before.acked_to == model.end
        for offset, one in model.ones.items():
            one.lease, one.consumer, one.before, one.due_s = 0, 0, 0, inf
            if to is not None and record:
                one.state, one.attempts = "acked" if offset < to else "free", 0
            elif one.state != "acked":
                one.state = "free"
        self.delivery = SegmentDelivery.from_record(record or before, model.rules)
        model.sought_below, model.read_to = model.end, model.acked_to
        self.before = model.acked_to
        self.checkpoint = self.delivery.window.record(self.epoch)
        assert broken_by(before, self.checkpoint, model.end) == []
        assert self.delivery.judge(range(model.acked_to, model.end), Asker(anything=True), model.end).known == sum(
            model.ones[offset].state == "acked" for offset in range(model.acked_to, model.end)
        )

    @rule(step_s=st.sampled_from([1.0, 6.0, 11.0]))
    def wait(self, step_s: float) -> None:
        self.now_s += step_s

    @invariant()
    def its_checkpoints_break_no_invariant(self) -> None:
        if hasattr(self, "delivery"):
            now = self.delivery.window.record(self.epoch)
            assert broken_by(self.checkpoint, now) == []
            self.checkpoint = now
            unacked = [offset for offset in range(now.acked_to, now.delivered_to) if self.is_unacked(offset)]
            known = {offset: now.attempts.get(str(offset), 1) for offset in unacked}
            assert known == {offset: self.model.ones[offset].attempts for offset in unacked}

    def is_unacked(self, offset: int) -> bool:
        return self.model.ones[offset].state != "acked"

    @invariant()
    def each_offset_has_the_state_of_the_model(self) -> None:
        if not hasattr(self, "delivery"):
            return
        model, delivery = self.model, self.delivery
        assert delivery.window.acked_to == model.acked_to >= self.before
        self.before = delivery.window.acked_to
        beyond = {offset for offset in model.those("acked") if offset >= delivery.window.acked_to}
        assert {offset for low, high in delivery.window.acked_runs() for offset in range(low, high)} == beyond
        assert delivery.window.acked_count == len(beyond)
        for state, name in ((HELD, "held"), (DELAYED, "delayed"), (ACKING, "acking"), (DYING, "dying")):
            assert delivery.window.count(state) == len(model.those(name))
        assert delivery.dead_letters.dying().tolist() == model.those("dying")
        waiting = delivery.leases.waiting()
        assert waiting.tolist() == model.those("held", "delayed")
        leases, consumers, due_s = (found.tolist() for found in delivery.leases.holds_of(waiting))
        for offset, *hold in zip(waiting.tolist(), leases, consumers, due_s, strict=True):
            one = model.ones[offset]
            assert hold == [one.lease, one.consumer, one.due_s] or hold == [0, 0, one.due_s]
            assert (hold[0] == 0) == (one.state == "delayed")
        next_s = delivery.leases.next_deadline()
        if waiting.size:
            assert next_s is not None
            assert next_s <= min(due_s)

    def expire(self) -> None:
        self.delivery.expire(self.now_s)
        self.model.expire(self.now_s)


DeliveryMachine.TestCase.settings = settings(max_examples=examples(120), stateful_step_count=40, deadline=None)
test_delivery = DeliveryMachine.TestCase


def test_very_many_acked_runs_are_taken_in_at_once() -> None:
    """Each alone took 30 us of the event loop: a cursor of 50,000 holds it for more than a second."""
    runs = [(n, n + 1) for n in range(0, 20_000, 2)]
    with patch.object(Window, "mark_acked", autospec=True, side_effect=Window.mark_acked) as settled:
        found = Window(0, runs[1:])
        found.pass_over_all(runs)
    assert settled.call_count < 10
    assert (found.acked_to, found.acked_runs(), found.delivered_to) == (1, runs[1:], 19_999)


@given(st.integers(0, 5), st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_runs_taken_in_at_once_are_as_if_taken_in_one_after_another(
    start: int, before: set[int], more: set[int]
) -> None:
    acked = runs_of(offset for offset in before if offset > start)
    at_once, alone = Window(start, acked), Window(start, acked)
    at_once.pass_over_all(runs_of(more))
    for low, high in runs_of(more):
        alone.pass_over(low, high)
    assert at_once.record(1) == alone.record(1)
    assert set(range(at_once.acked_to)) | {o for run in at_once.acked_runs() for o in range(*run)} >= more

"""A producer's streams against brokers whose segments move, split and merge, whose answers get lost, who take parts:
every message is there once, and those of a key are in order. Some keep their place until what they name is uploaded."""

from itertools import count

import httpx
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from seaweedq.client.core import streams
from seaweedq.client.core.batching import Limits
from seaweedq.client.core.broker_choice import Brokers
from seaweedq.client.core.delivery import Route
from seaweedq.client.core.effects import NDJSON, Attempt, Pause, Reply, Request, Work
from seaweedq.client.core.offload import Sent
from seaweedq.client.core.retry import Patience
from seaweedq.client.core.rows import row_of
from seaweedq.client.core.streams import Partition
from seaweedq.client.core.wire import envelope
from seaweedq.errors import ConnectionFailed
from tests.support.client.fake_brokers import CELLS, URLS, FakeBrokers, key_in
from tests.support.client.fake_cluster import problem
from tests.support.tiers import examples

KEYS = [*(key_in(cell) for cell in range(CELLS)), None]
OWNERS = st.sampled_from([0, 1, 2, None])


class Delivery:
    def __init__(self):
        self.outcome = None


class Flight:
    """Steps that wait for the answer to one attempt."""

    def __init__(self, steps, brokers):
        self._brokers, self._stack, self.result, self.done = brokers, [steps], None, False
        self.attempt = None
        self.answer(None)

    def answer(self, reply):
        while self._stack:
            failure = reply if isinstance(reply, Exception) else None
            try:
                effect = self._stack[-1].throw(failure) if failure else self._stack[-1].send(reply)
            except StopIteration as end:
                self._stack.pop()
                reply = end.value
            except ConnectionFailed as error:
                self._stack.pop()
                if not self._stack:
                    raise
                reply = error
            else:
                if isinstance(effect, Attempt):
                    self.attempt = effect
                    return
                if isinstance(effect, Request):
                    self._stack.append(self._brokers.send(effect))
                    reply = None
                else:
                    assert isinstance(effect, Pause | Work)
                    reply = effect.run() if isinstance(effect, Work) else None
        self.result, self.done = reply, True


class Machine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now, ids = 0.0, count()
        self.cluster = FakeBrokers(segment_of=[0] * CELLS, owners={0: 0})
        self.brokers = Brokers(URLS, lambda: self.now)
        self.route = Route("t", Patience(1e9, lambda: self.now, lambda: 0.0), lambda: f"p{next(ids)}")
        self.limits = Limits(linger_ms=0, batch_messages=3)
        self.partition = Partition(self.limits, Delivery, self.route.new_id)
        self.flights, self.sent, self.looks, self.held = [], [], [], []
        self.values = count()
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(streams, "FEWEST", 1)

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=8))
    def send(self, keys):
        for key in keys:
            value = next(self.values)
            self.partition.add_line(key, envelope(value, key), self.now)
            self.sent.append((key, value))

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=8))
    def send_rows(self, keys):
        for key in keys:
            value = next(self.values)
            data, is_binary, size = row_of(value, key, 1000)
            self.partition.add_row(key, data, is_binary, size, lambda: self.now)
            self.sent.append((key, value))

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=12))
    def send_table(self, keys):
        values = [next(self.values) for _ in keys]
        table = pa.table({"value": [str(value) for value in values], "_key": pa.array(keys, pa.string())})
        self.partition.add_rows(self.partition.routing.cut(table, 4096), self.now)
        self.sent += zip(keys, values, strict=True)

    @rule(key=st.sampled_from(KEYS))
    def hold(self, key):
        self.held.append((self.partition.hold(key, b"", self.now), key, next(self.values)))
        self.sent.append(self.held[-1][1:])

    @rule(n=st.integers(0, 20), fails=st.booleans())
    def release(self, n, fails):
        if self.held:
            held, key, value = self.held.pop(n % len(self.held))
            held.release(OSError() if fails else Sent(envelope(value, key), None), self.now)
            if fails:
                self.sent.remove((key, value))

    @rule()
    def let_go(self):
        while self.partition.ready_in_s(self.now) == 0:
            stream, batch = self.partition.next_batch(self.now)
            if batch.error:
                self.partition.finish(stream, batch)
                continue
            steps = self.route.deliver(stream, batch)
            self.flights.append((Flight(steps, self.brokers), stream, batch))

    @rule(
        n=st.integers(0, 20),
        fault=st.sampled_from(["", "", "", "lost", "down", "busy", "partly", "unfit"]),
        cell=st.integers(0, 7),
    )
    def answer(self, n, fault, cell):
        if not self.flights:
            return
        flight, stream, batch = self.flights[n % len(self.flights)]
        self.now += 0.01
        self.cluster.refused = {cell} if fault == "partly" else set()
        flight.answer(self._reply(flight.attempt, fault))
        if flight.done:
            self.flights.remove((flight, stream, batch))
            self.partition.finish(stream, batch)

    def _reply(self, attempt, fault):
        request = attempt.request
        if fault == "down":
            return ConnectionFailed("refused", sent=False)
        if fault == "busy":
            return Reply(503, {}, b"", attempt.url)
        if fault == "unfit" and request.params.get("ids"):  # rows, which may have been taken before
            refusal = problem(422, "invalid-request")
            return Reply(422, refusal.headers, refusal.content, attempt.url)
        sent = httpx.Request(
            request.method, attempt.url + request.path, headers=request.headers, content=request.content
        )
        response = self.cluster(sent)
        if fault == "lost":
            return ConnectionFailed("reset", sent=True)
        return Reply(response.status_code, response.headers, response.content, attempt.url)

    @rule(segment=st.integers(0, 20), owner=OWNERS)
    def move(self, segment, owner):
        present = sorted(set(self.cluster.segment_of))
        self.cluster.owners[present[segment % len(present)]] = owner

    @rule(at=st.integers(1, CELLS - 1), owners=st.tuples(OWNERS, OWNERS))
    def split(self, at, owners):
        before = self.cluster.segment_of
        if before[at] == before[at - 1]:
            self.cluster.split(before[at], at, owners)

    @rule(at=st.integers(1, CELLS - 1), owner=OWNERS)
    def merge(self, at, owner):
        before = self.cluster.segment_of
        if before[at] != before[at - 1]:
            self.cluster.merge((before[at - 1], before[at]), owner)

    @rule()
    def look(self):
        """The map is read now, and known later."""
        steps = self.route.fetch_map()
        self.looks.append(Flight(steps, self.brokers))
        while not self.looks[-1].done:
            self.looks[-1].answer(self._reply(self.looks[-1].attempt, ""))

    @rule()
    def follow(self):
        if self.looks:
            seen, key_rule = self.looks.pop(0).result
            self.partition.follow(seen, key_rule, URLS)

    @rule(segment=st.integers(0, 20), owner=OWNERS)
    def move_and_follow(self, segment, owner):
        self.looks.clear()
        self.move(segment, owner)
        self.look()
        self.follow()

    @invariant()
    def a_stream_has_one_request_in_flight(self):
        sending = [stream for _, stream, _ in self.flights]
        assert len(sending) == len(set(sending))

    @invariant()
    def a_key_has_one_request_in_flight(self):
        keys = [key for flight, _, _ in self.flights for key in {key for key, _ in _rows(self.cluster, flight.attempt)}]
        assert len(keys) == len(set(keys))

    def teardown(self):
        try:
            self._settle()
        finally:
            self._patch.undo()

    def _settle(self):
        while self.held:
            self.release(0, fails=False)
        self.partition.close_open()
        for _ in range(10_000):
            self.let_go()
            if not self.flights:
                break
            self.answer(0, "", 0)
        assert self.partition.idle
        assert self.partition.pending_bytes == 0
        assert sorted(self.cluster.published()) == sorted(value for _, value in self.sent)
        for key in KEYS[:-1]:
            assert self.cluster.values_of(key) == [value for each, value in self.sent if each == key]


def _rows(cluster, attempt):
    request = attempt.request
    return cluster._rows(httpx.Request("POST", "http://b0", headers=request.headers, content=request.content))


TestPartition = Machine.TestCase
TestPartition.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("fault", ["lost", "partly"])
def test_rows_that_were_taken_in_part_and_then_refused_are_lines_under_the_same_sequences(fault):
    machine = Machine()
    machine.look()
    machine.follow()
    machine.send_rows(KEYS[:3])
    machine.let_go()
    machine.answer(0, fault, 1)
    machine.answer(0, "unfit", 0)
    assert machine.flights[0][0].attempt.request.headers["Content-Type"] == NDJSON
    assert len(machine.cluster.taken) == (3 if fault == "lost" else 2)
    machine.teardown()

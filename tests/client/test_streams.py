"""A producer's streams: when there are several, where they go, who waits for whom, when all is made anew; and a machine
of brokers whose segments move, split and merge, whose answers get lost, who take parts: every message is there once,
and those of a key are in order. Some keep their place until their upload has ended.
"""

import json
from itertools import count

import httpx
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from seaweedq.client.core import streams
from seaweedq.client.core.arrow_batches import keys_of
from seaweedq.client.core.attempts import Brokers, Patience
from seaweedq.client.core.batching import Limits, SentLine, row_of
from seaweedq.client.core.delivery import Route
from seaweedq.client.core.effects import NDJSON, Attempt, BlockingCall, Pause, Reply, Request
from seaweedq.client.core.segment_map import KeyRule, Keys, MapRefresh, Segment, SegmentMap
from seaweedq.client.core.streams import Partitioner
from seaweedq.client.core.wire import envelope
from seaweedq.errors import ConnectionFailed
from seaweedq.segments.keyrange import KEY_SPACE
from tests.support.client.fake_brokers import CELLS, URLS, FakeBrokers, key_in
from tests.support.client.fake_cluster import problem
from tests.support.tiers import examples


@pytest.fixture
def cluster():
    return FakeBrokers()


@pytest.fixture
def partition():
    ids = count()
    return Partitioner(Limits(linger_ms=0), object, lambda: f"p{next(ids)}")


def _seen(cluster):
    fields = Segment.__struct_fields__
    return SegmentMap.from_segments([Segment(**{name: each[name] for name in fields}) for each in cluster.segments()])


def _send(partition, *cells):
    for cell in cells:
        partition.add_line(key_in(cell), envelope(cell, key_in(cell)), 0.0)


def _leave(partition):
    """What may leave now: for each batch its stream, and where it goes first."""
    left = []
    while partition.ready_in_s(0.0) == 0:
        stream, batch = partition.next_batch(0.0)
        left.append((stream, batch))
    return left


def _finish(partition, left):
    for stream, batch in left:
        partition.finish(stream, batch)


def _urls(left):
    return {int(line[9:-1].split(b",")[0]): stream.urls[0] for stream, batch in left for line in batch.lines}


def test_one_owner_means_one_stream_and_the_brokers_that_were_given(cluster, partition):
    cluster.owners = {0: 1, 1: 1, 2: 1}
    whole = partition.routing.keyless
    partition.follow(_seen(cluster), given=("http://proxy",))
    assert whole.urls == ()
    partition.follow(_seen(cluster), given=("http://proxy", URLS[1]))
    assert whole.urls == (URLS[1],)
    assert partition.routing.keyless is whole
    assert len(partition) == 1


def test_each_owner_gets_its_own_keys_with_the_others_behind_it(cluster, partition):
    partition.follow(_seen(cluster))
    for cell in range(CELLS):
        stream = partition.routing.stream_of_line(key_in(cell), b"")
        at = cluster.owners[cluster.segment_of[cell]]
        assert stream.urls == (*URLS[at:], *URLS[:at])
        assert stream.segments == {cluster.segment_of[cell]}
    assert len({stream.producer_id for stream in partition.routing.streams}) == 3


def test_messages_without_key_go_in_turn_and_one_batch_at_a_time(cluster, partition):
    partition.follow(_seen(cluster))
    firsts = []
    for n in range(6):
        partition.add_line(None, envelope(n), 0.0)
        left = _leave(partition)
        partition.add_line(None, envelope(n), 0.0)
        assert partition.ready_in_s(0.0) is None
        _finish(partition, left)
        left += _leave(partition)
        firsts += [stream.urls[0] for stream, _ in left]
        _finish(partition, left[1:])
    assert len({id(stream) for stream in [partition.routing.keyless]}) == 1
    assert {firsts.count(url) for url in URLS} == {4}


def test_who_gets_keys_waits_for_who_had_them_and_nobody_else_does(cluster, partition):
    partition.follow(_seen(cluster))
    _send(partition, 0, 7)
    before = _leave(partition)
    cluster.split(0, 2, (0, 1))
    partition.follow(_seen(cluster))
    _send(partition, 0, 2, 3, 7)
    others = _leave(partition)
    assert [stream for stream, _ in others] == [partition.routing.stream_of_line(key_in(3), b"")]
    _finish(partition, before)
    left = _leave(partition)
    assert _urls(left) == {0: URLS[0], 2: URLS[1], 7: URLS[2]}


def test_a_move_of_all_that_a_stream_has_changes_only_where_it_goes(cluster, partition):
    partition.follow(_seen(cluster))
    before = partition.routing.streams
    cluster.owners[0] = 2
    cluster.split(1, 4, (1, 1))
    partition.follow(_seen(cluster))
    assert partition.routing.streams == before
    assert partition.routing.stream_of_line(key_in(0), b"").urls[0] == URLS[2]
    cluster.owners[0] = None
    partition.follow(_seen(cluster))
    assert partition.routing.streams == before


def test_too_many_streams_are_made_anew_after_all_that_had_their_keys(cluster, partition):
    cluster.segment_of, cluster.owners = list(range(CELLS)), dict.fromkeys(range(CELLS), 0) | {7: 1}
    partition.follow(_seen(cluster))
    for cell in (0, 1):  # each leaves a stream of its own at its next owner
        cluster.owners[cell] = 1
        partition.follow(_seen(cluster))
    _send(partition, 0, 1, 3, 7)
    left = _leave(partition)
    assert len(left) == 4
    cluster.owners[2] = 1
    partition.follow(_seen(cluster))
    assert len(set(partition.routing.streams)) == 2
    _send(partition, *range(CELLS))
    assert _leave(partition) == []
    at_first_owner = [(stream, batch) for stream, batch in left if stream.urls[0] == URLS[0]]
    _finish(partition, at_first_owner)
    now = _leave(partition)
    assert _urls(now) == dict.fromkeys((3, 4, 5, 6), URLS[0])
    for turn in left:
        if turn not in at_first_owner:
            assert _leave(partition) == []
            _finish(partition, [turn])
    assert _urls(_leave(partition)) == dict.fromkeys((0, 1, 2, 7), URLS[1])


def test_a_table_is_cut_as_its_messages_would_be(cluster, partition):
    partition.follow(_seen(cluster))
    keys = [key_in(cell) for cell in range(CELLS)] * 3 + [None]
    table = pa.table({"value": [str(n) for n in range(len(keys))], "_key": keys})
    pieces = partition.routing.cut(table, 1 << 20)
    found = {}
    for piece in pieces:
        values = pa.ipc.open_stream(piece.content).read_all().to_pydict()
        assert len(values["value"]) == piece.rows
        assert [int(value) for value in values["value"]] == sorted(int(value) for value in values["value"])
        found |= dict.fromkeys((int(value) for value in values["value"]), piece.through)
    expected = {n: partition.routing.stream_of_line(key, b"") for n, key in enumerate(keys)}
    assert found == expected
    assert len(pieces) == 4


def test_a_table_whose_keys_cannot_be_read_goes_as_one_without_keys(cluster, partition):
    partition.follow(_seen(cluster))
    table = pa.table({"value": ["1"], "_key": pa.array([{"a": 1}])})
    assert [piece.through for piece in partition.routing.cut(table, 1 << 20)] == [partition.routing.keyless]


def test_small_tables_that_wait_go_together_and_share_a_delivery(cluster, partition):
    partition.follow(_seen(cluster))
    keys = [key_in(cell) for cell in range(CELLS)]
    tables = [pa.table({"value": [str(n)] * CELLS, "_key": keys}) for n in range(4)]
    first, second, third = (partition.add_rows(partition.routing.cut(t, 1 << 20), 0.0) for t in tables[:3])
    other = tables[3].replace_schema_metadata({"other": "schema"})
    partition.add_rows(partition.routing.cut(other, 1 << 20), 0.0)
    assert first == second == third
    left = _leave(partition)
    assert [stream.batcher.ready_in_s(0.0) for stream, _ in left] == [None] * 3
    values = [pa.ipc.open_stream(batch.content(batch.lines)).read_all()["value"].to_pylist() for _, batch in left]
    assert sorted(map(tuple, values)) == sorted(tuple("0" * n + "1" * n + "2" * n) for n in (3, 3, 2))
    assert [batch.count for _, batch in left] == [len(each) for each in values]
    _finish(partition, left)
    assert sum(batch.count for _, batch in _leave(partition)) == CELLS


def test_tables_are_joined_within_a_batchs_bounds_not_with_dictionaries(cluster):
    partition = Partitioner(Limits(batch_messages=2), object, iter("abcdefgh").__next__)
    partition.follow(_seen(cluster))
    row = pa.table({"value": ["1"], "_key": [key_in(0)]})
    coded = pa.table({"value": pa.array(["1"]).dictionary_encode(), "_key": [key_in(0)]})
    for table in (row, row, row, coded, coded):
        partition.add_rows(partition.routing.cut(table, 1 << 20), 0.0)
    sizes = []
    while left := _leave(partition):
        sizes += [batch.count for _, batch in left]
        _finish(partition, left)
    assert sizes == [2, 1, 1, 1]


def test_room_is_counted_over_all_streams(cluster, partition, monkeypatch):
    partition.follow(_seen(cluster))
    _send(partition, *range(CELLS))
    held = partition.pending_bytes
    assert held == sum(len(envelope(cell, key_in(cell))) + 1 for cell in range(CELLS))
    monkeypatch.setattr(partition, "_limits", Limits(max_buffer_bytes=held + 10))
    assert partition.has_room(10)
    assert not partition.has_room(11)
    settled = partition.close_open()
    left = _leave(partition)
    _finish(partition, left[1:])
    assert not settled()
    _send(partition, 0)
    _finish(partition, left[:1])
    assert settled()


def test_a_map_with_holes_leaves_them_to_anybody(partition):
    third = KEY_SPACE // 3
    holed = [
        Segment(1, third, 2 * third, "open", "b1.1", "http://b1"),
        Segment(2, 2 * third, KEY_SPACE, "open", "b2.1", None),
    ]
    partition.follow(SegmentMap.from_segments(holed))
    assert [stream.urls for stream in partition.routing.streams] == [("http://b1",)] * 3
    assert [stream.segments for stream in partition.routing.streams] == [set(), {1}, {2}]


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ({"k": "ü"}, "ü"),
        ({"k": 7}, "7"),
        ({"k": True}, "true"),
        ({"k": None}, None),
        ({}, None),
        ([1], None),
        (3, None),
    ],
)
def test_keys_in_values_are_what_brokers_take_for_them(value, key):
    keys = Keys(KeyRule("k"))
    assert keys.key_of_line(None, envelope(value)) == key
    assert keys.key_of_line("mine", envelope(value)) == "mine"
    rows = pa.RecordBatch.from_pydict({"value": [envelope(value)[9:-1].decode()]})
    assert keys_of(rows, keys).to_pylist() == [key]


@pytest.mark.parametrize(
    "value", ["-0", "0", "-7", "1e2", "1.0", "false", "{}", "[1]", r'"\ud800"', r'"\u00e4"', "9" * 5000]
)
def test_a_key_is_the_text_that_a_value_has_for_it_however_it_is_written(value):
    keys = Keys(KeyRule("k"))
    for text in (f'{{"k":{value}}}', f'{{"n": 1, "k" : {value} }}', f'{{"k":1,"k":{value}}}', f"[{value}]", value):
        assert keys.key_of_value(text) == keys.key_of_line(None, b'{"value":%s}' % text.encode())


@given(st.integers(-(2**70), 2**70) | st.text() | st.floats(allow_nan=False, allow_infinity=False))
def test_keys_of_all_numbers_and_texts_are_found_alike(key):
    keys, text = Keys(KeyRule("k")), json.dumps({"k": key})
    assert keys.key_of_value(text) == keys.key_of_line(None, b'{"value":%s}' % text.encode())


def test_keys_of_typed_tables_and_explicit_ones_before_them():
    keys = Keys(KeyRule("k", typed=True))
    rows = pa.RecordBatch.from_pydict({"k": [5, 6, None], "_key": ["a", None, None]})
    assert keys_of(rows, keys).to_pylist() == ["a", "6", None]
    assert keys_of(pa.RecordBatch.from_pydict({"k": [True]}), keys).to_pylist() == ["true"]
    assert keys_of(pa.RecordBatch.from_pydict({"n": [5]}), keys).to_pylist() == [None]


def test_the_map_is_read_at_first_now_and_then_and_soon_when_stale():
    lookout = MapRefresh()
    assert lookout.due(0.0)
    lookout.begin()
    assert not lookout.due(100.0)
    lookout.end(100.0, seen=True)
    assert not lookout.due(129.0)
    assert lookout.due(130.0)
    lookout.invalidate()
    assert not lookout.due(100.5)
    assert lookout.due(101.0)
    lookout.begin()
    lookout.end(102.0, seen=False)
    assert lookout.due(103.0)


def test_a_namesake_topic_gets_its_keys_by_its_own_rule_after_the_first(cluster, partition):
    partition.follow(_seen(cluster), KeyRule("a"))
    value = b'{"a":"%s","b":"%s"}' % (key_in(0).encode(), key_in(7).encode())

    def send():
        partition.add_row(None, value, False, 100, lambda: 0.0)

    send()
    before = _leave(partition)
    assert [stream.urls[0] for stream, _ in before] == [URLS[0]]
    partition.follow(_seen(cluster), KeyRule("a"))
    send()
    assert not _leave(partition), "the same rule, the same stream: one batch at a time"
    partition.follow(_seen(cluster), KeyRule("b"))
    send()
    assert not _leave(partition)
    _finish(partition, before)
    again = _leave(partition)
    assert [stream for stream, _ in again] == [stream for stream, _ in before], "what the old stream had left"
    _finish(partition, again)
    after = _leave(partition)
    assert [stream.urls[0] for stream, _ in after] == [URLS[2]]
    _finish(partition, after)
    assert partition.pending_bytes == 0
    assert not _leave(partition)


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
                    assert isinstance(effect, Pause | BlockingCall)
                    reply = effect.run() if isinstance(effect, BlockingCall) else None
        self.result, self.done = reply, True


class Machine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now, ids = 0.0, count()
        self.cluster = FakeBrokers(segment_of=[0] * CELLS, owners={0: 0})
        self.brokers = Brokers(URLS, lambda: self.now)
        self.route = Route("t", Patience(1e9, lambda: self.now, lambda: 0.0), lambda: f"p{next(ids)}")
        self.limits = Limits(linger_ms=0, batch_messages=3)
        self.partition = Partitioner(self.limits, Delivery, self.route.new_id)
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
            held.release(OSError() if fails else SentLine(envelope(value, key), None), self.now)
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
def test_rows_taken_in_part_then_refused_are_lines_of_the_same_sequences(fault):
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

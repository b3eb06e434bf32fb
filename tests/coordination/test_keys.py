"""The catalogue: every kind's path and record survive the round trip, and no kind's keys are another's."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from seaweedq.access.limits import Limits
from seaweedq.access.rights import Action, Grant
from seaweedq.coordination import records
from seaweedq.coordination.interface import Entry
from seaweedq.coordination.keys import (
    BROKERS,
    CATALOGUE,
    CLUSTER,
    COUNTERS,
    CREATIONS,
    CURSORS,
    DENIALS,
    GROWTH,
    IMPORTS,
    JOURNALS,
    LEADER,
    MIRRORS,
    PRINCIPALS,
    RETENTION,
    REVOCATIONS,
    REWINDS,
    SCHEMAS,
    SEGMENTS,
    SNAPSHOTS,
    STARTS,
    SUBSCRIPTIONS,
    SUSPICIONS,
    TOKENS,
    TOMBSTONES,
    TOPICS,
    UPLOADS,
    URL_SECRET,
    WAITING,
    WATERMARK,
    WRITES,
    KeyKind,
    is_in_snapshots,
)
from seaweedq.coordination.versioned import Unreadable, Versioned
from seaweedq.errors import NeedsNewerBroker
from tests.support.brokers.stored import record_of

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,126}", fullmatch=True)
NUMBERS = st.integers(0, 10**10 - 1)
COUNTS = st.integers(0, 2**63 - 1)
SECONDS = st.floats(0, 1e9)
JSON = st.dictionaries(st.text(), st.none() | st.booleans() | COUNTS | st.text() | st.lists(COUNTS), max_size=3)
CONFIGS = st.builds(
    records.TopicConfig,
    format=st.sampled_from(["json", "bytes", "typed"]),
    schema=st.none() | JSON,
    key_field=st.none() | st.text(),
    initial_segments=COUNTS,
    scaling=JSON,
    flush=st.builds(
        records.FlushPolicy,
        max_bytes=st.none() | COUNTS,
        min_bytes=st.none() | COUNTS,
        max_age_s=st.none() | SECONDS,
    ),
    retention=st.builds(records.RetentionPolicy, max_age_s=st.none() | SECONDS, max_bytes=st.none() | COUNTS),
    columns=st.none() | st.text(),
)
GRANTS = st.lists(
    st.builds(
        Grant,
        st.lists(st.sampled_from(Action)).map(tuple),
        st.lists(st.text()).map(tuple),
        st.lists(st.text()).map(tuple),
    )
).map(tuple)
ATTEMPTS = st.dictionaries(st.integers(0, 500), st.integers(2, 65_535), max_size=20)


def cursor(acked_to: int, runs: list[int], attempts: dict[int, int]) -> records.CursorRecord:
    """A cursor with runs of acks, each behind a gap as long as it is."""
    ends = [acked_to + 2 * sum(runs[: n + 1]) for n in range(len(runs))]
    acked = tuple((end - length, end) for end, length in zip(ends, runs, strict=True))
    counts = {str(acked_to + offset): attempts[offset] for offset in sorted(attempts)}
    return records.CursorRecord(7, acked_to, acked, counts, acked_to + 1_000)


CASES: dict[KeyKind[Any], tuple[list[st.SearchStrategy[Any]], st.SearchStrategy[Any]]] = {
    BROKERS: (
        [NAMES],
        st.builds(records.BrokerRecord, url=st.text(), name=st.text(), started_us=COUNTS, zone=st.text()),
    ),
    PRINCIPALS: (
        [NAMES],
        st.builds(
            records.PrincipalRecord,
            uid=st.text(),
            grants=GRANTS,
            created_us=COUNTS,
            disabled=st.booleans(),
            limits=st.builds(Limits, requests=st.none() | SECONDS, topics=st.none() | COUNTS),
        ),
    ),
    TOKENS: (
        [NAMES],
        st.builds(
            records.TokenRecord,
            digest=st.text(),
            principal=NAMES,
            uid=st.text(),
            created_us=COUNTS,
            expires_us=st.none() | COUNTS,
            grants=st.none() | GRANTS,
            parent=st.none() | NAMES,
        ),
    ),
    DENIALS: (
        [NAMES],
        st.builds(
            records.DenialRecord,
            kind=st.sampled_from(["jti", "sub"]),
            value=st.text(),
            created_us=COUNTS,
            expires_us=st.none() | COUNTS,
        ),
    ),
    SUSPICIONS: ([NAMES, NAMES], st.builds(records.SuspicionRecord, url=st.text())),
    REVOCATIONS: (
        [NAMES],
        st.builds(records.RevocationRecord, by=st.text(), reporters=st.tuples(st.text()), lease_s=SECONDS),
    ),
    CLUSTER: ([], st.builds(records.ClusterRecord, cluster=st.text())),
    LEADER: ([], st.builds(records.LeaderRecord, broker=NAMES)),
    JOURNALS: ([NAMES], st.builds(records.JournalRecord, kind=st.sampled_from(["file", "object"]), place=st.text())),
    MIRRORS: (
        [NAMES],
        st.builds(
            records.MirrorsRecord,
            state=st.sampled_from(["open", "closed", "decided"]),
            members=st.lists(st.builds(records.MirrorMember, broker=NAMES, holding=st.text()), max_size=3).map(tuple),
            change=COUNTS,
            copy=st.text(),
            slots=COUNTS,
        ),
    ),
    WAITING: (
        [NAMES],
        st.builds(
            records.WaitingRecord,
            url=st.text(),
            journals=st.lists(
                st.builds(
                    records.ReportedJournal,
                    broker=NAMES,
                    record=st.builds(records.JournalRecord, kind=st.just("file"), place=st.text(), path=st.text()),
                    terms=st.lists(st.tuples(NAMES, NUMBERS, COUNTS, COUNTS), max_size=2).map(tuple),
                ),
                max_size=2,
            ).map(tuple),
        ),
    ),
    TOPICS: (
        [NAMES],
        st.builds(
            records.TopicRecord,
            incarnation=COUNTS,
            state=st.sampled_from(["active", "deleting"]),
            config=CONFIGS,
            created_us=COUNTS,
            pending=st.sampled_from([UNSET, 1]),
        ),
    ),
    SCHEMAS: (
        [NAMES, NUMBERS, NUMBERS],
        st.builds(records.SchemaRecord, schema=st.dictionaries(NAMES, COUNTS), created_us=COUNTS),
    ),
    SEGMENTS: (
        [NAMES, NUMBERS, NUMBERS],
        st.builds(
            records.SegmentRecord,
            low=COUNTS,
            high=COUNTS,
            state=st.sampled_from(["open", "sealed"]),
            predecessors=st.lists(COUNTS).map(tuple),
            successors=st.lists(COUNTS).map(tuple),
            owner=st.none() | NAMES,
            end_offset=st.none() | COUNTS,
            created_us=COUNTS,
        ),
    ),
    STARTS: (
        [NAMES, NUMBERS, NUMBERS],
        st.builds(
            records.StartRecord,
            sequence=COUNTS,
            offset=COUNTS,
            raised=st.lists(st.tuples(COUNTS, COUNTS)).map(tuple),
        ),
    ),
    TOMBSTONES: (
        [NAMES, NUMBERS, NUMBERS],
        st.builds(
            records.TombstoneRecord,
            low=COUNTS,
            high=COUNTS,
            end_offset=COUNTS,
            predecessors=st.lists(COUNTS).map(tuple),
            successors=st.lists(COUNTS).map(tuple),
            created_us=COUNTS,
            sealed_us=COUNTS,
            removed_us=COUNTS,
        ),
    ),
    CREATIONS: ([NAMES, NUMBERS], st.builds(records.CreationRecord, broker=NAMES, count=COUNTS)),
    REWINDS: ([NAMES, NUMBERS], st.builds(records.RewindRecord, subscription=NAMES)),
    RETENTION: ([], st.builds(records.Counter, next=COUNTS)),
    COUNTERS: ([NAMES], st.builds(records.Counter, next=COUNTS)),
    SUBSCRIPTIONS: (
        [NAMES, NUMBERS, NAMES],
        st.builds(
            records.SubscriptionRecord,
            mode=st.sampled_from(["ordered", "shared", "keyed"]),
            start=st.sampled_from(["latest", "earliest", {"timestamp": "2013-01-01T00:00:00Z"}]),
            ack_deadline_s=SECONDS,
            max_attempts=COUNTS,
            dead_letter_topic=st.none() | NAMES,
            created_us=COUNTS,
            epoch=COUNTS,
            backoff_s=st.lists(SECONDS).map(tuple),
            max_in_flight=COUNTS,
            filter=st.none() | st.builds(records.MessageFilter, st.none() | st.text(), st.just({"h": "v"})),
            expires_after_s=st.none() | SECONDS,
            paused=st.booleans(),
        ),
    ),
    CURSORS: (
        [NAMES, NUMBERS, NAMES, NUMBERS],
        st.builds(
            cursor, acked_to=st.integers(0, 10**18), runs=st.lists(st.integers(1, 50), max_size=10), attempts=ATTEMPTS
        ),
    ),
    UPLOADS: (
        [NAMES, NUMBERS, NAMES],
        st.builds(
            records.UploadRecord,
            name=st.text(),
            size=COUNTS,
            content_type=st.text(),
            sha256=st.none() | st.text(),
            created_us=COUNTS,
            expires_us=COUNTS,
            state=st.sampled_from(["open", "published", "removed"]),
        ),
    ),
    IMPORTS: (
        [NAMES, NUMBERS, NAMES],
        st.builds(
            records.ImportRecord,
            format=st.sampled_from(["parquet", "ndjson", "arrow"]),
            bare=st.booleans(),
            name=st.text(),
            size=COUNTS,
            sha256=st.text(),
            started_us=COUNTS,
            expires_us=COUNTS,
            max_message_bytes=COUNTS,
            batch_rows=COUNTS,
            broker=st.none() | NAMES,
            state=st.sampled_from(["checking", "running", "done", "failed"]),
            rows=st.none() | COUNTS,
            rows_done=COUNTS,
            segments=st.lists(st.builds(records.ImportedSegment, COUNTS, COUNTS, COUNTS, COUNTS)).map(tuple),
            problem=st.none() | st.builds(records.ImportProblem, st.text(), st.text(), JSON),
        ),
    ),
    WRITES: (
        [NAMES, NUMBERS, NAMES],
        st.builds(
            records.WriteRecord,
            number=COUNTS,
            format=st.sampled_from(["parquet", "ndjson", "arrow"]),
            bare=st.booleans(),
            uploads=COUNTS,
            uploads_sha256=st.text(),
            listed=st.none() | st.text(),
            drawn=st.booleans(),
            started_us=COUNTS,
            max_message_bytes=COUNTS,
            batch_rows=COUNTS,
            nonce=st.text(),
            first=COUNTS,
            broker=st.none() | NAMES,
            state=st.sampled_from(["checking", "running", "done", "failed"]),
            rows=st.none() | COUNTS,
            rows_done=COUNTS,
            segments=st.lists(st.builds(records.ImportedSegment, COUNTS, COUNTS, COUNTS, COUNTS)).map(tuple),
            problem=st.none() | st.builds(records.ImportProblem, st.text(), st.text(), JSON),
            ended_us=st.none() | COUNTS,
            ended_by=st.none() | NAMES,
        ),
    ),
    GROWTH: ([], st.builds(records.Counter, next=COUNTS)),
    WATERMARK: ([], st.just(records.WatermarkRecord())),
    SNAPSHOTS: ([], st.builds(records.Counter, next=COUNTS)),
    URL_SECRET: ([], st.builds(records.SecretRecord, secret=st.text())),
}


def kinds(test: Any) -> Any:
    return pytest.mark.parametrize("kind", CATALOGUE, ids=lambda kind: kind.pattern)(test)


def test_every_kind_has_a_case() -> None:
    assert set(CASES) == set(CATALOGUE)
    assert all(kind.writer and kind.lifetime for kind in CATALOGUE)


@kinds
@given(data=st.data())
def test_path_and_record_survive_the_round_trip(kind: KeyKind[Any], data: st.DataObject) -> None:
    parts = tuple(data.draw(strategy) for strategy in CASES[kind][0])
    key = kind.key(*parts)
    assert kind.parse(key) == parts
    assert all(key.startswith(kind.prefix(*parts[:n])) for n in range(len(parts)))
    record = data.draw(CASES[kind][1])
    assert record_of(kind, kind.encode(Versioned.new(record))) == record


@kinds
@given(data=st.data())
def test_no_key_is_of_two_kinds(kind: KeyKind[Any], data: st.DataObject) -> None:
    key = kind.key(*(data.draw(strategy) for strategy in CASES[kind][0]))
    for other in CATALOGUE:
        if other is not kind:
            assert not key.startswith(other.prefix())
            with pytest.raises(ValueError, match="does not match the key pattern"):
                other.parse(key)


def test_the_paths_are_those_on_disk() -> None:
    assert SEGMENTS.key("flights", 3, 12) == "segments/flights/0000000003/0000000012"
    assert CURSORS.key("flights", 3, "billing", 12) == "cursors/flights/0000000003/billing/0000000012"
    assert (LEADER.key(), LEADER.prefix()) == ("leader", "leader")
    assert SEGMENTS.prefix("flights") == "segments/flights/"
    assert CURSORS.prefix("flights", 3, "billing") == "cursors/flights/0000000003/billing/"


@given(st.lists(NUMBERS, unique=True))
def test_keys_stand_in_numeric_order(numbers: list[int]) -> None:
    keys = sorted(SEGMENTS.key("t", 1, number) for number in numbers)
    assert [SEGMENTS.parse(key)[2] for key in keys] == sorted(numbers)


@pytest.mark.parametrize(
    "parts", [("a/b", 1, 1), ("", 1, 1), ("t", -1, 1), ("t", 1, 10**10), ("t", "1", 1), ("t", 1), ("t", 1, 1, 1)]
)
def test_parts_that_do_not_fit_are_programming_errors(parts: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError):
        SEGMENTS.key(*parts)


def test_a_whole_key_is_no_prefix_since_others_may_begin_with_it() -> None:
    with pytest.raises(ValueError, match="must have at most 0 parts"):
        TOPICS.prefix("orders")


@kinds
def test_fields_of_later_versions_are_ignored(kind: KeyKind[Any]) -> None:
    assert not kind.record.__struct_config__.forbid_unknown_fields
    assert kind.record.__struct_config__.frozen


def test_a_field_of_a_later_version_is_ignored() -> None:
    assert record_of(COUNTERS, b'{"next": 3, "new": []}') == records.Counter(3)


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b'{"next": "3"}', b"\xff"])
def test_an_unreadable_value_needs_a_newer_broker(value: bytes) -> None:
    entry = Entry(COUNTERS.key("t"), value, 3)
    found = COUNTERS.read(entry)
    assert isinstance(found, Unreadable)
    assert (found.key, found.revision) == (entry.key, 3)
    with pytest.raises(NeedsNewerBroker, match="counters/t") as raised:
        COUNTERS.require(entry)
    assert raised.value.fields == {"topic": "t", "record": "counters/t"}


def test_snapshots_have_all_kinds_but_leased_ones_and_a_few() -> None:
    left_out = {kind.name for kind in CATALOGUE if not is_in_snapshots(kind.pattern)}
    assert left_out == {
        "brokers",
        "suspicions",
        "leader",
        "creations",
        "url-secret",
        "snapshots",
        "watermark",
        "waiting",
        "mirrors",
    }
    assert is_in_snapshots("a-kind-of-a-later-version/x")
    assert is_in_snapshots("topics/url-secret")
    assert {kind.name for kind in CATALOGUE if kind.backup in ("changes", "neither")} == left_out

"""What the broker's own code decides in the rebuild model: its pure functions, given the facts of a world.

Of the code are: what is a sign (signs.find_signs), which state is taken (plan.choose), what becomes of the records, the
segment's owner, uploads and the keys of journals (plan.plan and, in it, lineage.trace), what a seal proves
(intents.resume), who puts a first entry and which term is next (terms), what a recovery does with rows (terms.judge),
and what the sweep of uploads does. Each answer is kept:
a world has few different questions, and many states.
"""

from functools import cache

from msgspec.structs import replace

from seaweedq.broker.rebuild.lineage import ChainEnd, Chains
from seaweedq.broker.rebuild.plan import Found, FoundJournal, Journals, OwnState, StateView, choose, plan, wanted
from seaweedq.broker.rebuild.signs import CoordinationFacts, SeenJournal, StoreFacts, find_signs
from seaweedq.broker.reshape import intents
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.uploads.rules import Step, step
from seaweedq.coordination import backup, keys
from seaweedq.coordination.interface import Entry as Stored
from seaweedq.coordination.records import (
    ClusterRecord,
    Counter,
    Intent,
    JournalRecord,
    SegmentRecord,
    Successor,
    TopicConfig,
    TopicRecord,
    UploadRecord,
)
from seaweedq.coordination.versioned import Versioned
from seaweedq.segments.entry import EntryName, SealedIntent, SealedSuccessor
from seaweedq.segments.keyrange import KEY_SPACE
from seaweedq.segments.terms import Tenure, Term, Verdict, judge
from tests.support.model.rebuild_world import Coordination, Entry, end_of

RECORD = TopicRecord(1, "active", TopicConfig(), 0)
TOPIC = Topic.from_record("t", Versioned(RECORD, 1))
INTENT = Intent(2, "committed", (1,), (Successor(2, 0, KEY_SPACE),))
SEALED = SealedIntent(2, (1,), (SealedSuccessor(2, 0, KEY_SPACE),))
PLACE, UPLOADED = ("t", 1, 1), ("t", 1, "u")
JOURNAL = JournalRecord("object", "place")


@cache
def signs(
    generation: int, stored: Coordination, done: int, c: Coordination, journals: frozenset[tuple[str, int, int]]
) -> tuple[str, ...]:
    """The reasons of the signs that coordination went back, given the store's newest generation and state, the highest
    watermark of journals that are done, and the needed journals: broker, generation, and the revision that its newest
    slot states."""
    cluster = None
    if c.state != "empty":
        cluster = ClusterRecord("c", generation=c.generation, nonce=f"{c.generation}", state=c.state)
    snapshot = stored.snapshot if stored.generation == c.generation else 0
    facts = CoordinationFacts(cluster, c.snapshot, 0, c.revision, c.watermark, c.journals)
    seen = {broker: SeenJournal(of, revision) for broker, of, revision in journals}
    found = find_signs(StoreFacts(generation, f"{generation}", max(0, snapshot), done=done), facts, seen)
    return tuple(one.reason for one in found)


@cache
def state_taken(own: Coordination, stored: Coordination) -> Coordination:
    """The state that a rebuild takes: coordination's own, or the store's newest."""
    mine = None
    if own.generation:
        mine = OwnState(backup.State(own.generation, own.snapshot, own.revision, {}), own.state != "replacing")
    source, _ = choose(mine, backup.State(stored.generation, stored.snapshot, stored.revision, {}))
    return own if source == "coordination" else stored


@cache
def planned(
    taken: Coordination, found: tuple[tuple[str, Term | None], ...], chain: tuple[Entry, ...], payload: bool
) -> Coordination:
    """What a rebuild makes of a state, the needed journals with their highest terms, the chain, and whether the
    upload's object exists."""
    terms = {broker: {("t", 1): term} if term else {} for broker, term in found}
    journals = Journals({broker: FoundJournal(JOURNAL, of) for broker, of in terms.items()})
    last = chain[-1]
    end = ChainEnd(EntryName(0, 0), 0, KEY_SPACE, end_of(chain), 1, INTENT if last.is_seal else None, term=last.term)
    facts = Found({"t": Chains(ends={1: end, 2: None})}, journals, uploads={UPLOADED} if payload else frozenset())
    view = StateView(_keys(taken, end_of(chain)))
    assert not wanted(view, facts, 1)
    made = plan(view, facts, 1)
    record, upload = _record(made.keys[keys.SEGMENTS.key(*PLACE)]), keys.UPLOADS.key(*UPLOADED)
    held = {
        keys.JOURNALS.parse(key)[0]: keys.JOURNALS.require(Stored(key, value, 1)).record
        for key, value in made.keys.items()
        if keys.JOURNALS.matches(key)
    }
    assert not made.topics["t"].damage, made.topics["t"]
    return Coordination(
        owner=record.owner,
        term=record.term,
        entry_from=record.entry_from,
        intent=record.intent is not None,
        is_sealed=record.state == "sealed",
        journals=frozenset(held),
        recovered=frozenset(broker for broker, one in held.items() if one.recovered),
        published=keys.UPLOADS.require(Stored(upload, made.keys[upload], 1)).record.state == "published",
    )


def _keys(c: Coordination, end: int) -> dict[str, bytes]:
    intent = INTENT if c.intent else None
    first = SegmentRecord(
        0, KEY_SPACE, "open", (), (), c.owner, None, 0, intent=intent, term=c.term, entry_from=c.entry_from
    )
    found = {1: first}
    if c.is_sealed:
        found[1] = replace(first, state="sealed", owner=None, successors=(2,), end_offset=end, sealed_us=1, intent=None)
        found[2] = SegmentRecord(0, KEY_SPACE, "open", (1,), (), None, None, 1)
    journals = {one: replace(JOURNAL, recovered=one in c.recovered) for one in c.journals}
    return {
        keys.TOPICS.key("t"): keys.TOPICS.encode(Versioned.new(RECORD)),
        keys.COUNTERS.key("t"): keys.COUNTERS.encode(Versioned.new(Counter(3))),
        **{keys.SEGMENTS.key("t", 1, at): keys.SEGMENTS.encode(Versioned.new(one)) for at, one in found.items()},
        keys.UPLOADS.key(*UPLOADED): keys.UPLOADS.encode(Versioned.new(_upload(c.published))),
        **{keys.JOURNALS.key(one): keys.JOURNALS.encode(Versioned.new(record)) for one, record in journals.items()},
    }


def _upload(published: bool) -> UploadRecord:
    return UploadRecord("_payloads/t/1/u", 1, "x", None, 0, 1, "published" if published else "open")


@cache
def is_swept(published: bool) -> bool:
    """Whether the sweep deletes the object of the upload, once that has expired."""
    return step(_upload(published), 9, 0) is Step.REMOVE


def _record(value: bytes) -> SegmentRecord:
    return keys.SEGMENTS.require(Stored(keys.SEGMENTS.key(*PLACE), value, 1)).record


@cache
def is_resumed(term: Term, owner: str | None) -> bool:
    """Whether the seal of the roll is carried out over an open record that has no intent."""
    record = SegmentRecord(0, KEY_SPACE, "open", (), (), owner, None, 0, term=term)
    _, writes = intents.resume(TOPIC, {1: Versioned(record, 1)}, SEALED)
    return [_record(put.value).intent for put in writes] == [INTENT]


def verdict(rows: Tenure, holder: Tenure | None, record: Tenure, chain: tuple[Entry, ...]) -> Verdict:
    """What a recovery does with rows of a journal."""
    last = chain[-1]
    return judge(rows, holder, record, Tenure(last.term, last.owner), last.is_seal)

"""A broker is killed between two writes of an administrative call: what it makes or deletes is there, or it is not."""

import signal

import httpx
import pytest

from tests.support.history.checker import Run, check
from tests.support.history.final_read import flush, in_files, over_http
from tests.support.history.load import SUBSCRIPTION, TOPIC, Publisher, Subscriber, until
from tests.support.tiers import later, soaked

pytestmark = pytest.mark.process

SEGMENTS = 70  # their records take two transactions
NOT_MADE = [
    soaked("create.allocated"),
    later("entry.append"),
    "entry.appended",
    soaked("create.segments:1"),
    "create.segments:2",
    later("create.record"),
]
DELETION = [
    "change.put:4",
    later("change.made:4"),
    soaked("delete.files"),
    "delete.file:1",
    *map(soaked, ("delete.file:3", "delete.records:1")),
    "delete.records:3",
    soaked("delete.record"),
]


@pytest.fixture
def fragile(broker_process):
    """Makes a broker that dies at a place, and the means to ask it."""

    def make(place):
        broker = broker_process(env={"SEAWEEDQ_FAIL_AT": place})
        return broker, Asking(broker)

    return make


class Asking:
    """Requests to a topic; one that the broker dies of, after which it starts again."""

    def __init__(self, broker):
        self.broker = broker

    def __call__(self, method, path="", **more):
        url = f"{self.broker.url}/v1/topics/{TOPIC}{path}"
        return httpx.request(method, url, timeout=30, trust_env=False, verify=False, **more)

    def to_death(self, method, path="", **more):
        with pytest.raises(httpx.TransportError):
            self(method, path, **more)
        assert self.broker.wait_gone() == -signal.SIGKILL
        self.broker.start(env={"SEAWEEDQ_FAIL_AT": ""})

    def ids(self):
        return {segment["id"] for segment in self("GET", "/segments").json()["segments"]}

    def pull(self):
        return [m["value"] for m in self("POST", f"/subscriptions/{SUBSCRIPTION}/pull", json={}).json()["messages"]]


def assert_works(broker, history):
    """A topic that was just made: it takes messages and gives them back, and its directory holds nothing else."""
    Publisher("new", broker.url, history, 0, idempotent=True).steps(8)
    before = in_files(broker.store)
    flush(broker.url)
    assert check(Run(history.events, over_http(broker.url), in_files(broker.store), [before])) == []


@pytest.mark.parametrize("place", NOT_MADE)
def test_a_topic_whose_creation_was_cut_off_is_not_there_and_can_be_made(fragile, history, place):
    broker, ask = fragile(place)
    ask.to_death("PUT", json={"initial_segments": SEGMENTS})
    assert ask("GET").status_code == 404
    until(lambda: not (broker.store / "topics" / TOPIC).exists(), what="the sweep")
    assert ask("PUT", json={"initial_segments": 3}).status_code == 201
    assert ask.ids() == {SEGMENTS, SEGMENTS + 1, SEGMENTS + 2}  # ids are never used again
    assert_works(broker, history)


@pytest.mark.parametrize("place", ["create.made", later("change.put:2"), "change.made:2"])
def test_a_topic_whose_creation_was_not_answered_is_there(fragile, history, place):
    broker, ask = fragile(place)
    ask.to_death("PUT", json={"initial_segments": SEGMENTS})
    assert ask("PUT", json={"initial_segments": SEGMENTS}).status_code == 200
    assert ask.ids() == set(range(SEGMENTS))
    assert_works(broker, history)


@pytest.mark.long
@pytest.mark.parametrize(
    "place", [soaked("schema.decided"), "schema.marked", soaked("schema.counted"), later("change.made:3")]
)
def test_a_change_of_a_schema_that_was_cut_off_is_ended(fragile, place):
    """Rows of both versions are in the journal alone when the broker dies again."""
    broker, ask = fragile(place)
    gone = {"id": 2, "name": "gone", "required": False, "type": "int"}
    fields = [{"id": 1, "name": "n", "required": False, "type": "int"}, gone]
    ask("PUT", json={"format": "typed", "schema": {"type": "struct", "schema-id": 0, "fields": fields}})
    ask("POST", "/messages", json={"value": {"n": 1, "gone": 1}})
    schema = {"type": "struct", "fields": [{"name": "n", "type": "long"}, {"name": "x", "type": "string"}]}
    ask.to_death("PATCH", json={"schema": schema, "if_schema_id": 0})
    until(lambda: ask("GET").json()["schema_id"] == 1, what="the version that was decided")
    again = ask("PATCH", json={"schema": schema, "if_schema_id": 0}).json()
    assert (again["schema_id"], len(again["warnings"])) == (1, 2)
    assert ask("PATCH", json={"schema": {"fields": [*schema["fields"], gone]}}).status_code == 409, "it never returns"
    ask("POST", "/messages", json={"value": {"n": 2**40, "x": "b"}})
    broker.kill()
    broker.start()
    page = ask("GET", "/segments/0/messages?offset=0").json()["messages"]
    assert [message["value"] for message in page] == [{"n": 1, "x": None}, {"n": 2**40, "x": "b"}]
    assert len(list((broker.store / "topics" / TOPIC / "segment=-1").iterdir())) == 1


@pytest.mark.long
@pytest.mark.parametrize("place", DELETION)
def test_a_deletion_that_was_cut_off_is_finished_and_nothing_comes_back(fragile, history, place):
    broker, ask = fragile(place)
    ask("PUT", json={"initial_segments": 3})
    subscription = f"/subscriptions/{SUBSCRIPTION}"
    assert ask("PUT", subscription, json={"start": "earliest"}).status_code == 201
    Publisher("old", broker.url, history, 0, idempotent=True).steps(8)
    Subscriber("subscriber", broker.url, history, 0).steps(3)
    flush(broker.url)
    Publisher("old-tail", broker.url, history, 1, idempotent=True).steps(8)  # these are in the journal alone
    ask.to_death("DELETE")
    until(lambda: ask("GET").status_code == 404, what="the end of the deletion")
    assert not (broker.store / "topics" / TOPIC).exists()
    history.events.clear()
    assert ask("PUT", json={"initial_segments": 2}).status_code == 201
    assert ask.ids() == {3, 4}
    assert ask("GET", subscription).status_code == 404
    broker.kill()  # the journal of old holds frames of the dead ids
    broker.start()
    assert_works(broker, history)


@pytest.mark.parametrize("place", ["subscribe.cursors:1", "subscribe.cursors:2", "subscribe.record"])
def test_a_subscription_whose_creation_was_cut_off_can_be_made(fragile, place):
    _, ask = fragile(place)
    ask("PUT", json={"initial_segments": SEGMENTS})
    ask("POST", "/messages", json={"value": 1, "key": "k"})
    ask.to_death("PUT", f"/subscriptions/{SUBSCRIPTION}", json={"start": "earliest"})
    assert ask("GET", f"/subscriptions/{SUBSCRIPTION}").status_code == 404
    ask("POST", "/messages", json={"value": 2, "key": "k"})
    assert ask("PUT", f"/subscriptions/{SUBSCRIPTION}", json={"start": "latest"}).status_code == 201
    ask("POST", "/messages", json={"value": 3, "key": "k"})
    assert ask.pull() == [3]


@pytest.mark.parametrize("place", ["unsubscribe.cursors", later("change.put:4"), "unsubscribe.record:1"])
def test_a_deletion_that_was_cut_off_is_finished_by_the_next(fragile, place):
    _, ask = fragile(place)
    ask("PUT")
    ask("PUT", f"/subscriptions/{SUBSCRIPTION}", json={"start": "earliest"})
    ask.to_death("DELETE", f"/subscriptions/{SUBSCRIPTION}")
    assert ask("DELETE", f"/subscriptions/{SUBSCRIPTION}").status_code == 204
    assert ask("DELETE", f"/subscriptions/{SUBSCRIPTION}").status_code == 404
    assert ask("GET", "/subscriptions").json() == {"subscriptions": []}


def test_a_subscription_that_was_made_and_not_yet_opened_is_there(fragile):
    _, ask = fragile("dispatch.epoch")
    ask("PUT")
    ask("POST", "/messages", json={"value": 1})
    ask.to_death("PUT", f"/subscriptions/{SUBSCRIPTION}", json={"start": "earliest"})
    assert ask("PUT", f"/subscriptions/{SUBSCRIPTION}", json={"start": "earliest"}).status_code == 200
    assert ask.pull() == [1]


def ack_two_of_three(ask):
    """A subscription that has three messages, two of them acked."""
    ask("PUT")
    for value in range(3):
        ask("POST", "/messages", json={"value": value})
    ask("PUT", f"/subscriptions/{SUBSCRIPTION}", json={"start": "earliest"})
    assert ask.pull() == [0, 1, 2]
    ask("POST", f"/subscriptions/{SUBSCRIPTION}/ack", json={"ids": ["0-0", "0-1"]})


@pytest.mark.long
@pytest.mark.parametrize("place", ["seek.begin", "seek.begun", "seek.cursors", "seek.written", "change.put:4"])
def test_a_seek_that_was_cut_off_has_happened_or_not(fragile, place):
    """The journal has acks of the epoch before, and a checkpoint has them too."""
    _, ask = fragile(place)
    ack_two_of_three(ask)
    request = {"to": {"offsets": {"0": 1}}, "id": "once"}
    ask.to_death("POST", f"/subscriptions/{SUBSCRIPTION}/seek", json=request)
    assert ask.pull() == ([2] if place == "seek.begin" else [1, 2])
    answer = ask("POST", f"/subscriptions/{SUBSCRIPTION}/seek", json=request).json()
    assert answer["segments"] == ([{"segment": 0, "from": 2, "to": 1}] if place == "seek.begin" else [])
    assert ask.pull() == ([1, 2] if place == "seek.begin" else [])


@pytest.mark.long
@pytest.mark.parametrize("place", ["unsubscribe.cursors", "unsubscribe.record:1", "unsubscribe.record:2"])
def test_cursors_of_a_deleted_subscription_mean_nothing_to_its_namesake(fragile, place):
    broker, ask = fragile(place)
    ack_two_of_three(ask)
    ask.to_death("DELETE", f"/subscriptions/{SUBSCRIPTION}")
    assert ask("GET", f"/subscriptions/{SUBSCRIPTION}").status_code == 404
    assert ask("PUT", f"/subscriptions/{SUBSCRIPTION}", json={"start": "earliest"}).status_code == 201
    broker.kill()  # ack frames of the deleted one may not count now
    broker.start()
    assert ask.pull() == [0, 1, 2]

"""The fleet against one real broker: its history is sound, and the checker finds what is taken from what was read."""

import pytest
from botocore.exceptions import ReadTimeoutError

from tests.support.chaos_clients.fleet import OTHERS, Fleet, Lister, subscribe_all, subscriptions_of
from tests.support.history.checker import Run, check
from tests.support.history.final_read import dead_letters, flush, in_files, over_http, segments
from tests.support.history.load import create, until
from tests.support.tiers import soaked

TEAMS = ("ordered", "keyed", "shared", "crowd", "passers", "seek", "streams", "work")
REST = tuple(name for name in OTHERS if name not in TEAMS)
USUAL = {"publish", "deliver", "ack", "cursor", "read"}


@pytest.fixture(params=[REST, soaked(TEAMS)], ids=["rest", "teams"])
def ran(broker_process, history, request):
    broker, clients = broker_process(), request.param
    terms = subscriptions_of(clients)
    create(broker.url)
    subscribe_all(broker.url, clients)
    with Fleet([broker.url], history, seed=1, others=clients) as fleet:
        wanted = USUAL if clients is REST else USUAL | {"nack", "reject", "seek"}
        until(lambda: answered(history) >= wanted, what="each kind of answer")
        until(lambda: sum(e.type == "ok" and e.op == "read" for e in history.events) > 100, what="reads")
        fleet.settle_down()
        fleet.settle()
        until(lambda: fleet.lag() == 0, what="no lag of any subscription")
        assert {e.subscription for e in history.events if (e.op, e.type) == ("deliver", "ok")} == {"s", *terms}
    fleet.look_at_last()
    flush(broker.url)
    topics = [each.dead_letter_topic for each in terms.values() if each.dead_letter_topic]
    letters = [letter for topic in topics for letter in dead_letters(broker.url, topic)]
    http, files = over_http(broker.url), in_files(broker.store)
    return Run(history.events, http, files, segments=segments(broker.url), terms=terms, letters=letters), fleet


def answered(history):
    return {event.op for event in history.events if event.type == "ok"}


@pytest.mark.process
def test_a_fleet_writes_a_sound_history_and_damage_to_it_is_found(ran):
    run, fleet = ran
    assert check(run) == []
    assert fleet.strange == []
    assert {letter.subscription for letter in run.letters} == {
        name for name, terms in run.terms.items() if terms.dead_letter_topic
    }
    run.http = run.http[:-1]
    assert {"loss", "tables"} <= {violation.rule for violation in check(Run(run.events, run.http[1:], run.files))}


@pytest.mark.process
def test_a_client_goes_to_another_broker_and_notes_what_is_strange(broker_process, history):
    alive, dead = broker_process(), broker_process(start=False)
    create(alive.url)
    fleet = Fleet([dead.url, alive.url], history, seed=1)
    publisher = fleet.publishers[0]
    publisher.urls = [dead.url]
    publisher.step()
    publisher.urls = fleet.reader.urls
    publisher.steps(10)
    assert {e.broker for e in history.events if e.type == "ok"} == {str(alive.port)}
    assert {e.broker for e in history.events if e.type == "fail"} == {str(dead.port)}
    assert fleet.strange == []
    observer = fleet.observer
    observer.http.base_url = alive.url
    with observer.http:
        assert observer.ask("GET", "/segments/77/messages") is None
    assert [violation.rule for violation in fleet.strange] == ["answer"]


def test_a_listing_for_which_the_server_takes_too_long_is_none():
    class Busy:
        answers = 0

        def listing(self):
            self.answers += 1
            if self.answers < 3:
                raise ReadTimeoutError(endpoint_url="http://s3", error="busy")
            return []

    lister = Lister(Busy(), every_s=0)
    lister.start()
    until(lambda: len(lister.listings) > 1, what="listings")
    lister.wait()
    assert lister.listings[0] == []

"""The consumers that a crew plays, and listeners: once they settle, no lag may be theirs."""

import math

import httpx

from tests.support.chaos_clients.crews import Crowd, Passers
from tests.support.chaos_clients.listeners import IN_FLIGHT, Listener

MESSAGE = {"id": "0-0", "key": "k", "value": {"n": 1}, "attempt": 1}


class Told(Crowd):
    """Is given one message by each pull, and notes what it asks."""

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.asked: list[tuple[str, str]] = []

    def ask(self, method, path, *, allowed=(), **more):
        what = path.rpartition("/")[2]
        self.asked.append((what, more["json"].get("consumer", "")))
        return httpx.Response(200, json={"messages": [MESSAGE], "acked": 1, "unknown": []})


def test_a_crew_that_settles_answers_what_it_holds_before_it_pulls_more(history):
    crew = Told("crowd-0", ["http://127.0.0.1:1"], history, 1)
    crew.settling = True
    crew.steps(20)
    assert [what for what, _ in crew.asked] == ["pull", "ack"] * 10


def test_an_unsettled_one_holds_messages_of_several_consumers_at_once(history):
    crew = Told("crowd-0", ["http://127.0.0.1:1"], history, 1)
    crew.steps(20)
    assert [what for what, _ in crew.asked].count("pull") > 15


def test_of_those_that_pass_by_each_pulls_a_few_times_and_goes(history):
    class Nothing(Passers):
        def ask(self, method, path, *, allowed=(), **more):
            asked.append(more["json"]["consumer"])
            return httpx.Response(200, json={"messages": []})

    asked: list[str] = []
    crew = Nothing("passers-0", ["http://127.0.0.1:1"], history, 1)
    crew.steps(100)
    assert len(set(asked)) > len(asked) / 3 > 10
    crew.settling = True
    asked.clear()
    crew.steps(100)
    assert len(set(asked)) <= crew.size, "those that are there stay"


class Noting(Listener):
    """Notes how long its connections may last, and how much they have in flight."""

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.noted: list[tuple[bool, int]] = []

    def listen(self, call, until_s):
        assert self.path.endswith(f"max_in_flight={self.most}")
        self.noted.append((math.isinf(until_s), self.most))


def test_listeners_that_settle_stay_and_have_much_in_flight(history):
    listener = Noting("streams-0", ["http://127.0.0.1:1"], history, 1)
    listener.steps(10)
    assert not any(stays for stays, _ in listener.noted)
    assert {most for _, most in listener.noted} == set(IN_FLIGHT)
    listener.settling, listener.noted = True, []
    listener.steps(10)
    assert listener.noted == [(True, max(IN_FLIGHT))] * 10

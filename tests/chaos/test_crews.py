"""The consumers that a crew plays."""

import httpx

from tests.support.chaos_clients.crews import Crowd

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


def test_one_that_does_not_settle_yet_holds_messages_of_several_consumers_at_once(history):
    crew = Told("crowd-0", ["http://127.0.0.1:1"], history, 1)
    crew.steps(20)
    assert [what for what, _ in crew.asked].count("pull") > 15

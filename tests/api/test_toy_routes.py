"""A new route is one declaration beside its handler: all else derives from it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import pytest
from fastapi import Response
from msgspec import Struct

from seaweedq.access.rights import Action
from seaweedq.api.app import HANDLERS
from seaweedq.api.handlers import topics
from seaweedq.api.parameters import PathTopic, integer, json_answer
from seaweedq.api.request import Answer, Request
from seaweedq.api.routes import HOT, OF_BODIES, TOPIC
from seaweedq.api.services import Parts, body
from tests.support.http.with_tokens import Http, access

TOY, GAME = f"{TOPIC}/toys/{{toy}}", f"{TOPIC}/games"


class Wish(Struct, forbid_unknown_fields=True):
    """How to play."""

    loudly: bool = False


class Played(Struct):
    """The games that were played."""

    toy: str
    times: int
    loudly: bool


@dataclass(frozen=True)
class Games:
    """A hot route, and its group of services."""

    broker: str

    @classmethod
    def of(cls, parts: Parts) -> Self:
        return cls(parts.broker.id)

    async def begin(self, request: Request, topic: str) -> Answer:
        """Begins a game."""
        return Answer(200, json.dumps({"broker": self.broker, "topic": topic}).encode())


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cold route and a hot one: these declarations are all that they need."""
    router = topics.router
    monkeypatch.setattr(router, "routes", [*router.routes])
    assert topics in HANDLERS

    @router.route(
        "POST",
        TOY,
        Action.ALTER,
        "playToy",
        "Play",
        answers={200: Played},
        refuses=(*OF_BODIES, 404),
        shows={"times": 3},
    )
    async def play(
        topic: PathTopic,
        toy: str,
        times: Annotated[int, integer("times", 1, 9, "games", 3)],
        wish: Annotated[Wish, body(Wish, {"loudly": True})],
    ) -> Response:
        """Plays with a toy."""
        return json_answer(Played(toy, times, wish.loudly))

    router.route("POST", GAME, Action.CONSUME, mode=HOT, timed="game")(Games.begin)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """The events of the audit."""
    caplog.set_level("DEBUG")
    return lambda: [json.loads(r.getMessage()) for r in caplog.records if r.name == "seaweedq.audit"]


async def metrics(http: Http, *labels: str) -> str:
    """The values of all lines of metrics with these labels."""
    text = (await http("GET", "/metrics", http.admin)).text
    return " ".join(one.rpartition(" ")[2] for one in text.splitlines() if all(label in one for label in labels))


@pytest.mark.brokers
async def test_a_toy_is_all_that_a_route_is(tmp_path: Path, declared: None, lines: Any) -> None:
    async with access(tmp_path) as http:
        await http.principal("owner", [{"actions": ["alter"], "topics": ["t"]}], limits={"changes": 0.01})
        owner, path = await http.token(principal="owner"), "/v1/topics/t/toys/ball"
        # matched, with what it takes
        answer = await http("POST", f"{path}?times=2", owner, json={"loudly": True})
        assert (answer.status_code, answer.json()) == (200, {"toy": "ball", "times": 2, "loudly": True})
        assert (await http("GET", path, owner)).json()["allowed"] == ["POST"]
        for wrong, field in ((f"{path}?times=0", "times"), (f"{path}?times=2&times=3", "times")):
            refused = await http("POST", wrong, http.admin)
            assert (refused.status_code, refused.json()["field"]) == (422, field)
        assert (await http("POST", "/v1/topics/.t/toys/x", http.admin)).json()["type"] == "/problems/invalid-name"
        assert (await http("POST", path, http.admin, json={"loud": 1})).json()["type"] == "/problems/invalid-request"
        # authorised
        await http.principal("reader", [{"actions": ["read"], "topics": ["*"]}])
        reader = await http.token(principal="reader")
        assert [await http.status("POST", path, token) for token in (None, reader)] == [401, 403]
        # limited, as a change
        played = 1
        while (answer := await http("POST", path, owner)).status_code == 200:
            played += 1
        assert (answer.status_code, answer.json()["limit"]) == (429, "changes")
        # counted
        assert float(await metrics(http, "responses_total", f'route="{TOY}"', 'status="200"')) == played
        # documented
        document = (await http("GET", "/openapi.json")).json()
        operation = document["paths"][TOY]["post"]
        assert (operation["operationId"], operation["x-action"], operation["tags"]) == ("playToy", "alter", ["topics"])
        assert [one["name"] for one in operation["parameters"]] == ["topic", "toy", "times"]
        assert operation["requestBody"]["content"]["application/json"]["example"] == {"loudly": True}
        assert {"200", "401", "403", "404", "422", "429", "503"} <= operation["responses"].keys()
        assert document["components"]["schemas"]["Played"]["properties"].keys() == {"toy", "times", "loudly"}
        # audited
        changes = [(one["principal"], one["status"]) for one in lines() if one["path"] == path and one["status"] == 200]
        assert changes == [("owner", 200)] * played


@pytest.mark.brokers
async def test_a_hot_toy_is_its_method_and_a_declaration(tmp_path: Path, declared: None, lines: Any) -> None:
    async with access(tmp_path) as http:
        await http.principal("player", [{"actions": ["consume"], "topics": ["t"]}])
        player = await http.token(principal="player")
        answer = await http("POST", "/v1/topics/t/games", player)
        assert answer.json() == {"broker": http.together.brokers[0].id, "topic": "t"}
        assert await http.status("POST", "/v1/topics/u/games", player) == 403
        assert await metrics(http, "request_duration_seconds_count", 'operation="game"', 'outcome="ok"') == "1.0"
        assert GAME not in (await http("GET", "/openapi.json")).json()["paths"]
        assert not [one for one in lines() if one["path"].endswith("/games") and one["status"] == 200]

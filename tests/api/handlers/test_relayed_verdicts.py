"""Whoever asks, and for whatever: each broker gives the same verdict, whether it answers or relays, and the same to who
claims to be another caller.
"""

import random
from pathlib import Path
from typing import Any

import pytest

from seaweedq.access.rights import Action
from seaweedq.access.tokens import draw
from seaweedq.api.access.authentication import CALLER_HEADER
from seaweedq.api.routes import OWN_RIGHT, SOCKET, SUBSCRIPTION, TOPIC
from seaweedq.clock import SystemIds
from seaweedq.settings import MIB
from tests.api.handlers.test_internal import Recorded
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import InLoop
from tests.support.http.requests import every
from tests.support.http.with_tokens import Http, access

pytestmark = pytest.mark.brokers

BROKERS, PRINCIPALS, SEGMENTS, TOKENS = 3, 4, 6, 1
CHANGING = {
    *(("DELETE", path) for path in (TOPIC, SUBSCRIPTION, "/v1/principals/{principal}", "/v1/tokens/{token}")),
    *(("POST", f"{TOPIC}/segments/{{segment}}/{verb}") for verb in ("split", "merge", "roll", "move")),
    *(("POST", path) for path in ("/v1/cluster/level", "/v1/cluster/rebuild", "/v1/tokens", f"{TOPIC}/uploads")),
    ("PUT", "/v1/principals/{principal}"),
}
ASKED = [
    (method, path)
    for method, path, rule in every()
    if method != SOCKET and rule.kind is not OWN_RIGHT and (method, path) not in CHANGING and "stream" not in path
]
CLAIMED = {CALLER_HEADER: '{"principal":"admin","token":"admin-token-file"}', "Seaweedq-Anything": "1"}


def drawn(rng: random.Random) -> list[dict[str, Any]]:
    """Some grants."""
    actions = [str(action) for action in Action]
    return [
        {
            "actions": rng.sample(actions, rng.randint(1, 5)),
            "topics": [rng.choice(["t", "t*", "*", "other", "o*"])],
            "subscriptions": [rng.choice(["s", "*", "other"])],
        }
        for _ in range(rng.randint(0, 3))
    ]


async def verdict(http: Http, broker: int, method: str, path: str, token: str | None, **more: Any) -> Any:
    """What a broker says of who asks: refused, and for which action, or let in."""
    sent = {"json": {}} if method in ("POST", "PUT", "PATCH") else {}
    answer = await http(method, path, token, broker, **sent, **more)
    if answer.status_code not in (401, 403) or not answer.content:
        return (answer.status_code,) if answer.status_code in (401, 403) else "let in"
    problem = answer.json()
    return answer.status_code, problem["type"], problem.get("action"), problem.get("resource")


async def prepared(http: Http) -> None:
    """A topic with segments at all brokers, and a subscription."""
    assert await http.status("PUT", "/v1/topics/t", http.admin, json={"initial_segments": SEGMENTS}) == 201
    start = {"start": "earliest"}
    assert await http.status("PUT", "/v1/topics/t/subscriptions/s", http.admin, json=start) == 201
    messages = [{"key": f"k{n}", "value": n} for n in range(4 * SEGMENTS)]
    assert await http.status("POST", "/v1/topics/t/messages", http.admin, json={"messages": messages}) == 200


def first(together: InLoop) -> int:
    catalog = inside.catalog(together.brokers[0])
    topic = catalog.get("t")
    assert topic
    return min(catalog.records(topic))


async def test_each_broker_gives_the_same_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, recorded = random.Random("verdicts"), Recorded(monkeypatch)
    async with access(tmp_path, BROKERS, peer_ports=True, max_request_bytes=MIB) as http:
        await prepared(http)
        tokens: list[str | None] = [None, draw(SystemIds())]
        for n in range(PRINCIPALS):
            await http.principal(f"p{n}", drawn(rng))
            tokens.append(await http.token(principal=f"p{n}"))
        lowest, seen = first(http.together), set()
        for method, form in ASKED:
            names = {"subscription": "s", "principal": "p0", "token": "0" * 16, "upload": "0" * 32, "offset": "0"}
            names |= {"writer": "w", "number": "1", "schema": "0", "denial": "sub-0"}
            for token in (http.admin, *rng.sample(tokens, TOKENS)):
                segment = lowest + rng.randrange(SEGMENTS)
                topic = rng.choice(["t", "t", "other"])
                path = form.format(**names, topic=topic, segment=segment).replace("*", "x")
                said = [await verdict(http, n, method, path, token) for n in range(BROKERS)]
                assert len(set(said)) == 1, (method, path, said)
                claiming = await verdict(http, rng.randrange(BROKERS), method, path, token, headers=CLAIMED)
                assert claiming == said[0], (method, path)
                seen.add(said[0] if isinstance(said[0], str) else said[0][0])
        assert seen >= {401, 403, "let in"}
        relayed = [request.path for _, request, _ in recorded.requests if request.path.startswith("/v1/")]
        assert len(relayed) > 5, "the verdicts were those of one broker"

"""The token of a client: where it comes from, and who gets to see it."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq.client import AsyncClient, Client
from seaweedq.client.core.broker_choice import Brokers
from seaweedq.client.http import Credentials
from seaweedq.errors import ClientError, Forbidden, Unauthenticated


def shown(credentials: Credentials) -> str | None:
    return credentials.headers().get("Authorization")


def test_where_a_token_comes_from(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("of-a-file\n")
    both = {"SEAWEEDQ_TOKEN": "of-the-environment", "SEAWEEDQ_TOKEN_FILE": str(tmp_path / "t")}
    assert shown(Credentials(environment={})) is None
    assert shown(Credentials(token="given", environment=both)) == "Bearer given"
    assert shown(Credentials(token_file=tmp_path / "t", environment=both)) == "Bearer of-a-file"
    assert shown(Credentials(environment=both)) == "Bearer of-the-environment"
    del both["SEAWEEDQ_TOKEN"]
    assert shown(Credentials(environment=both)) == "Bearer of-a-file"


def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("first")
    credentials = Credentials(token_file=tmp_path / "t")
    assert shown(credentials) == "Bearer first"
    (tmp_path / "t").write_text("another")
    assert shown(credentials) == "Bearer another"
    (tmp_path / "t").write_text("se cret")
    with pytest.raises(ClientError, match="holds no token") as refused:
        credentials.headers()
    assert "cret" not in str(refused.value)
    (tmp_path / "t").unlink()
    with pytest.raises(ClientError, match="cannot be read"):
        credentials.headers()


def test_each_request_says_that_no_web_page_has_sent_it() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        """Keeps the request."""
        seen.append(request)
        return httpx.Response(200, json={"topics": []})

    with Client("http://a", transport=httpx.MockTransport(answer)) as client:
        client.topics()
    assert {one.headers["seaweedq-client"] for one in seen} == {"python"}


def test_tokens_that_are_none() -> None:
    with pytest.raises(ValueError, match="not both"):
        Credentials(token="a", token_file="b")
    for text in ("", "a b", "a\r\nX: y", "é"):
        with pytest.raises(ValueError, match="no token has"):
            Credentials(token=text)
    with pytest.raises(ValueError, match=r"^SEAWEEDQ_TOKEN has a blank"):
        Credentials(environment={"SEAWEEDQ_TOKEN": "a b"})
    assert "hidden" not in repr(Credentials(token="hidden"))


@pytest.mark.parametrize(
    ("named", "learned", "used"),
    [
        ("http://a", "http://b", False),
        ("http://a", "http://127.0.0.1:1", True),
        ("http://a", "http://localhost:1", True),
        ("http://a", "http://localhost.evil:1", False),
        ("https://a", "https://b", True),
        ("https://a", "http://127.0.0.1:1", False),
    ],
)
def test_which_learned_brokers_see_a_token(named: str, learned: str, used: bool) -> None:
    brokers = Brokers([named], lambda: 0.0)
    brokers.has_secret = True
    assert (learned in brokers.order([learned])) is used
    assert named in brokers.order([learned])


REFUSALS = [("unauthenticated", 401, Unauthenticated), ("forbidden", 403, Forbidden)]


@pytest.mark.parametrize(("slug", "status", "kind"), REFUSALS)
async def test_refusals_are_raised_at_once(slug: str, status: int, kind: Any) -> None:
    seen: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("authorization"))
        return httpx.Response(status, json={"type": f"/problems/{slug}", "detail": "no"})

    with Client("http://a,http://b", token="t", transport=httpx.MockTransport(answer)) as client, pytest.raises(kind):
        client.topic("x")
    async with AsyncClient("http://a,http://b", token="t", transport=httpx.MockTransport(answer)) as other:
        with pytest.raises(kind):
            await other.topic("x")
    assert seen == ["Bearer t"] * 2

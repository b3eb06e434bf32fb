"""What is encoded in a name chooses no other route."""

import httpx
import pytest

from seaweedq.api.asgi.raw_path import check_raw_path
from seaweedq.errors import RouteNotFound


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b"/v1/topics/a%2Fsubscriptions%2Fb", "/v1/topics/a/subscriptions/b"),
        (b"/v1/topics/a/subscriptions/..%2f..%2Fb", "/v1/topics/a/subscriptions/../../b"),
        (b"/%69nternal/topic", "/internal/topic"),
        (b"/%2Finternal", "//internal"),
    ],
)
def test_an_encoded_slash_or_internal_path_is_no_route(raw: bytes, path: str) -> None:
    with pytest.raises(RouteNotFound):
        check_raw_path({"type": "http", "path": path, "raw_path": raw})


@pytest.mark.parametrize("raw", [b"/v1/topics/a", b"/v1/topics/%C3%BC", b"/internal/topic", b"/v1/topics/a%20b", b""])
def test_other_paths_pass(raw: bytes) -> None:
    path = {b"/v1/topics/%C3%BC": "/v1/topics/\u00fc", b"/v1/topics/a%20b": "/v1/topics/a b"}.get(raw, raw.decode())
    check_raw_path({"type": "http", "path": path, "raw_path": raw})
    check_raw_path({"type": "http", "path": path})


def test_a_name_with_a_slash_is_not_the_name_of_something_else(real_broker, real_client) -> None:  # type: ignore[no-untyped-def]
    real_client.create_topic("raw-path")
    list(real_client.subscribe("raw-path", "kept", start="earliest", idle_timeout_s=0.1))
    for name in ("raw-path%2Fsubscriptions%2Fkept", "raw-path%2fsubscriptions%2Fkept"):
        answer = httpx.delete(f"{real_broker.url}/v1/topics/{name}", trust_env=False)
        assert (answer.status_code, "no name has a slash" in answer.json()["detail"]) == (404, True)
    assert [one["name"] for one in real_client.subscriptions("raw-path")] == ["kept"]

"""The scaling policy over HTTP: what is shown, compared, changed and refused; rates, and keys too hot to be split."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from seaweedq.segments.keyhash import hash_key
from tests.support.http.asking import problem_of, send

DEFAULTS = {
    "target_messages_per_s": 200_000,
    "target_bytes_per_s": 33_554_432,
    "min_segments": 1,
    "max_segments": 256,
    "cool_down_s": 600,
    "enabled": True,
}
SET: dict[str, Any] = {
    "target_messages_per_s": 1000,
    "target_bytes_per_s": 4096,
    "min_segments": 2,
    "max_segments": 9,
    "cool_down_s": 7.5,
    "enabled": False,
}


def scaling(answer: httpx.Response) -> Any:
    assert answer.status_code in (200, 201), answer.text
    return answer.json()["scaling"]


def test_the_policy_is_shown_with_its_defaults(http: httpx.Client, topic: str) -> None:
    assert scaling(http.get(topic)) == DEFAULTS
    made = http.put("/v1/topics/wide", json={"initial_segments": 300, "scaling": {"enabled": False}})
    assert scaling(made) == DEFAULTS | {"min_segments": 300, "max_segments": 300, "enabled": False}
    assert scaling(http.put("/v1/topics/narrow", json={"initial_segments": 3, "scaling": SET})) == SET
    assert scaling(http.get("/v1/topics/narrow")) == SET


@pytest.mark.parametrize("field", SET)
def test_only_what_a_repeated_creation_names_is_compared(http: httpx.Client, field: str) -> None:
    path = f"/v1/topics/compared-{field}"
    assert http.put(path, json={"scaling": {field: SET[field]}}).status_code == 201
    other = next(name for name in SET if name not in (field, "min_segments"))
    for agreed in ({}, {field: SET[field]}, {other: DEFAULTS[other]}, {other: None}, SET | {other: None}):
        named = {name: agreed[name] for name in (field, other) if name in agreed}
        assert scaling(http.put(path, json={"scaling": named}))[field] == SET[field], named
    for wanted in ({field: DEFAULTS[field]}, {field: None}, {other: SET[other]}):
        found = problem_of(http.put(path, json={"scaling": wanted}), 409, "topic-exists", "scaling")
        told = found["differences"]["scaling"]
        now = scaling(http.get(path))
        assert told == {
            "current": now,
            "requested": now | {n: DEFAULTS[n] if v is None else v for n, v in wanted.items()},
        }


def test_what_is_named_changes_and_null_brings_the_default_back(http: httpx.Client, topic: str) -> None:
    assert scaling(http.patch(topic, json={"scaling": SET})) == SET
    assert scaling(http.patch(topic, json={"scaling": {"enabled": True}})) == SET | {"enabled": True}
    assert scaling(http.patch(topic, json={"scaling": {}})) == SET | {"enabled": True}
    assert scaling(http.patch(topic, json={"flush": {"max_age_s": 9}})) == SET | {"enabled": True}
    assert scaling(http.patch(topic, json={"scaling": dict.fromkeys(SET)})) == DEFAULTS
    assert scaling(http.get(topic)) == DEFAULTS


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"target_messages_per_s": 0}, ["scaling.target_messages_per_s", "is 0", "at least 1"]),
        ({"target_messages_per_s": 2**53 + 1}, ["scaling.target_messages_per_s", "at most 9007199254740992"]),
        ({"target_messages_per_s": 1.5}, ["scaling.target_messages_per_s", "is 1.5", "must be a whole number"]),
        ({"target_messages_per_s": "10"}, ["scaling.target_messages_per_s", '"10"', "must be a whole number"]),
        ({"target_bytes_per_s": True}, ["scaling.target_bytes_per_s", "is true", "must be a whole number"]),
        ({"min_segments": 0}, ["scaling.min_segments", "is 0", "at least 1"]),
        ({"max_segments": 10_001}, ["scaling.max_segments", "is 10001", "at most 10000"]),
        ({"min_segments": 9, "max_segments": 8}, ["scaling.min_segments", "is 9", "max_segments, which is 8"]),
        ({"cool_down_s": 0.9}, ["scaling.cool_down_s", "is 0.9", "at least 1"]),
        ({"cool_down_s": 86_401}, ["scaling.cool_down_s", "is 86401", "at most 86400"]),
        ({"enabled": 1}, ["scaling.enabled", "is 1", "must be true or false"]),
        ({"enable": True}, ["scaling", "enable"]),
        (None, ["scaling", "null"]),
        ([], ["scaling", "object"]),
    ],
)
def test_what_is_refused_is_named_with_its_bound(http: httpx.Client, topic: str, wanted: Any, says: list[str]) -> None:
    for answer in (
        http.put("/v1/topics/refused", json={"scaling": wanted}),
        http.patch(topic, json={"scaling": wanted}),
        http.put(topic, json={"scaling": wanted}),
    ):
        if answer.status_code == 409:  # valid by itself, and another one than the topic's
            continue
        found = problem_of(answer, 422, "invalid-request", *says)
        assert {"field", "value", "bound"} <= found.keys()
    assert http.get("/v1/topics/refused").status_code == 404
    assert scaling(http.get(topic)) == DEFAULTS


def test_a_change_must_go_together_with_what_is_there(http: httpx.Client, topic: str) -> None:
    http.patch(topic, json={"scaling": {"max_segments": 8}})
    refused = http.patch(topic, json={"scaling": {"min_segments": 9}, "flush": {"max_age_s": 3}})
    problem_of(refused, 422, "invalid-request", "scaling.min_segments", "is 9", "max_segments, which is 8")
    shown = http.get(topic).json()
    assert (shown["scaling"], shown["flush"]["max_age_s"]) == (DEFAULTS | {"max_segments": 8}, None)
    problem_of(http.put(topic, json={"scaling": {"min_segments": 9}}), 409, "topic-exists", "scaling")


def open_segments(http: httpx.Client, topic: str) -> list[dict[str, Any]]:
    segments: list[dict[str, Any]] = http.get(f"{topic}/segments").json()["segments"]
    return [segment for segment in segments if segment["state"] == "open"]


def soon(what: Callable[[], Any]) -> Any:
    """What comes within some seconds."""
    end = time.monotonic() + 30
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.2)
    return found


def test_rates_are_those_of_what_was_published(http: httpx.Client) -> None:
    path = "/v1/topics/measured"
    http.put(path)
    began = time.monotonic()
    for number in range(60):
        send(http, path, *range(10))
        time.sleep(max(0.0, began + (number + 1) / 10 - time.monotonic()))
    rate = 600 / (time.monotonic() - began)
    (segment,) = open_segments(http, path)
    assert segment["end_offset"] == 600
    assert segment["rates"]["messages_per_s"] == pytest.approx([rate] * 4, rel=0.3)
    assert segment["hot_key"] is None
    each = http.get(path).json()["tail_bytes"] / 600
    assert segment["rates"]["bytes_per_s"] == pytest.approx([rate * each] * 4, rel=0.5)


def test_a_key_that_is_too_hot_is_told_and_a_sealed_segment_has_neither_rates_nor_key(http: httpx.Client) -> None:
    path, many = "/v1/topics/hot", {"target_messages_per_s": 10, "cool_down_s": 1}
    http.put(path, json={"initial_segments": 2, "scaling": many})
    key = next(f"key-{n}" for n in range(100) if hash_key(f"key-{n}") >= 2**30)

    def flood() -> list[dict[str, Any]]:
        send(http, path, *range(100), key=key)
        return [segment for segment in open_segments(http, path) if segment["hot_key"]]

    hot = soon(flood)
    assert [(s["id"], s["hot_key"]) for s in hot] == [(1, {"hash": hash_key(key), "share": 1.0})]
    assert http.get(path).json()["hot_segments"] == [1]
    assert http.patch(path, json={"scaling": {"enabled": False}}).json()["hot_segments"] == []  # so that is not why
    http.patch(path, json={"scaling": {"enabled": True, "target_messages_per_s": 10**6}})
    assert http.post(f"{path}/segments/1/split").status_code == 200
    sealed = {s["id"]: (s["rates"], s["hot_key"]) for s in http.get(f"{path}/segments").json()["segments"]}
    assert sealed[1] == (None, None)
    idle = {"messages_per_s": [0.0] * 4, "bytes_per_s": [0.0] * 4}
    assert sealed[0] == sealed[2] == sealed[3] == (idle, None)
    assert http.get(path).json()["hot_segments"] == []

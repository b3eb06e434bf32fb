"""Hostile schemas: each gets a 4xx that names the field and the bound, at a creation, at a change and at its check."""

import json
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.process

K = {"id": 1, "name": "k", "type": "string"}
LIMIT = 262_144


def nested(depth: int) -> dict[str, Any]:
    kind: Any = "int"
    for _ in range(depth):
        kind = {"type": "list", "element-id": 2, "element": kind, "element-required": False}
    return {"id": 2, "name": "deep", "type": kind}


HOSTILE: dict[str, tuple[list[Any], str]] = {
    "deep": ([K, nested(20)], "deep"),
    "wide": ([{"id": at + 1, "name": f"f{at}", "type": "int"} for at in range(1001)], "1000"),
    "large": ([{**K, "doc": "x" * LIMIT}], f"{LIMIT}"),
    "names that differ by case": ([K, {"id": 2, "name": "K", "type": "int"}], "case is ignored"),
    "a Kelvin sign": ([K, {"id": 2, "name": "\u212a", "type": "int"}], "case is ignored"),
    "a sharp s": ([{**K, "name": "stra\u00dfe"}, {"id": 2, "name": "STRASSE", "type": "int"}], "case is ignored"),
    "a long s": ([{**K, "name": "s"}, {"id": 2, "name": "\u017f", "type": "int"}], "case is ignored"),
    "an override of direction": ([{**K, "name": "a\u202eb"}], "printable"),
    "a space without width": ([{**K, "name": "k\u200b"}], "printable"),
    "a lone surrogate": ([{**K, "name": "\ud800"}], "unknown escape"),
    "a zero": ([{**K, "name": "a\u0000b"}], "printable"),
    "an empty name": ([{**K, "name": ""}], "1 to 255"),
    "a long name": ([{**K, "name": "n" * 256}], "255"),
    "repeated ids": ([K, {"id": 1, "name": "n", "type": "int"}], "unique"),
    "an id of 0": ([{**K, "id": 0}], "1999999999"),
    "a negative id": ([{**K, "id": -1}], "1999999999"),
    "an id of the queue": ([{**K, "id": 2_147_000_000}], "1999999999"),
    "an id beyond 64 bits": ([{**K, "id": 2**70}], "id"),
    "an id that is no number": ([{**K, "id": "1"}], "id"),
    "an id that is a fraction": ([{**K, "id": 1.5}], "id"),
    "the highest id, and one without": ([{**K, "id": 1_999_999_999}, {"name": "n", "type": "int"}], "1999999999"),
    "a field that is none": ([K, None], "valid"),
    "a decimal": ([{**K, "type": "decimal(99999999, 3)"}], "38"),
    "digits of another script": ([{**K, "type": "decimal(\u0661, 0)"}], "not supported"),
    "a long type": ([{**K, "type": "int" * 10_000}], "not supported"),
    "a partition": ([{**K, "name": "SEGMENT"}], "seaweedq reserves these names"),
}


def text(fields: list[Any], **more: Any) -> str:
    return json.dumps({**more, "schema": {"type": "struct", "fields": fields}})


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_refused_precisely(http: httpx.Client, topic: str, name: str) -> None:
    fields, says = HOSTILE[name]
    head = {"Content-Type": "application/json"}
    first = http.put(
        f"{topic}-h", content=text([{"id": 9, "name": "first", "type": "int"}], format="typed"), headers=head
    )
    assert first.status_code in (200, 201), first.text
    for method, path, body in (
        ("PUT", f"{topic}-new", text(fields, format="typed")),
        ("PATCH", f"{topic}-h", text(fields, if_schema_id=0)),
        ("PATCH", f"{topic}-h?dry_run=true", text(fields)),
    ):
        answer = http.request(method, path, content=body, headers=head)
        assert 400 <= answer.status_code < 500, answer.text
        assert says in answer.text, answer.text
        assert len(answer.text) < 20_000
    assert http.get(f"{topic}-new").status_code == 404
    assert http.get(f"{topic}-h").json()["schema_id"] == 0

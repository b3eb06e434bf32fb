"""Each answer of which OpenAPI shows an example is decoded by the client's struct for it, and says what that reads."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seaweedq.api.app import Application
from seaweedq.broker.broker import Broker
from seaweedq.client.core import calls, segment_map, uploading, wire
from seaweedq.clock import SystemClock
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.settings import Settings
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers.environments import environment

TOPIC = "/v1/topics/{topic}"


def openapi() -> dict[str, Any]:
    """What a broker answers at /openapi.json; it need not run for it."""
    settings = Settings(data_dir=Path("never-made"))
    broker = Broker(environment(settings, MemoryStore(), MemoryCoordination(SystemClock())))
    return Application(broker).fastapi.openapi()


DOCUMENT = openapi()
STRUCTS: dict[tuple[str, str, str], type[msgspec.Struct]] = {
    ("post", f"{TOPIC}/messages", "200"): wire.Published,
    ("get", TOPIC + "/segments/{segment}/messages", "200"): wire.PageAnswer,
    ("post", TOPIC + "/subscriptions/{subscription}/pull", "200"): wire.PullAnswer,
    ("post", TOPIC + "/subscriptions/{subscription}/ack", "200"): wire.AckResult,
    ("post", TOPIC + "/subscriptions/{subscription}/nack", "200"): wire.AckResult,
    ("post", TOPIC + "/subscriptions/{subscription}/extend", "200"): wire.AckResult,
    ("get", f"{TOPIC}/segments", "200"): segment_map.SegmentsAnswer,
    ("get", f"{TOPIC}/files", "200"): calls.FilesAnswer,
    ("get", f"{TOPIC}/offsets", "200"): calls.OffsetsAnswer,
    ("post", f"{TOPIC}/imports", "200"): uploading.ImportAnswer,
    ("post", f"{TOPIC}/imports", "202"): uploading.ImportAnswer,
    ("get", TOPIC + "/imports/{upload}", "200"): uploading.ImportAnswer,
    ("post", f"{TOPIC}/uploads", "201"): uploading.NewUpload,
    ("get", TOPIC + "/uploads/{upload}", "200"): uploading.UploadState,
    ("post", TOPIC + "/uploads/{upload}/parts", "200"): uploading.PartUrls,
}
# The client hands these on as plain objects, or reads nothing of them.
PLAIN = {
    ("put", TOPIC),
    ("get", TOPIC),
    ("patch", TOPIC),
    ("get", "/v1/topics"),
    ("get", f"{TOPIC}/schemas"),
    ("get", TOPIC + "/schemas/{schema}"),
    ("post", f"{TOPIC}/flush"),
    ("put", TOPIC + "/subscriptions/{subscription}"),
    ("patch", TOPIC + "/subscriptions/{subscription}"),
    ("get", TOPIC + "/subscriptions/{subscription}"),
    ("get", f"{TOPIC}/history"),
    ("get", "/v1/subscriptions"),
    ("get", f"{TOPIC}/subscriptions"),
    ("post", TOPIC + "/subscriptions/{subscription}/seek"),
    ("put", TOPIC + "/uploads/{upload}/content"),
    ("post", TOPIC + "/uploads/{upload}/complete"),
    ("get", "/v1/cluster"),
    ("post", "/v1/cluster/level"),
    ("post", "/v1/cluster/accept-loss"),
    ("post", "/v1/cluster/rebuild"),
    ("get", "/"),
    ("get", "/v1/whoami"),
    ("get", "/v1/denials"),
    ("post", "/v1/denials"),
    ("get", "/v1/principals"),
    ("put", "/v1/principals/{principal}"),
    ("get", "/v1/principals/{principal}"),
    ("get", "/v1/tokens"),
    ("post", "/v1/tokens"),
    ("get", "/v1/tokens/{token}"),
    ("get", f"{TOPIC}/writes"),
    ("get", TOPIC + "/writes/{writer}"),
    ("put", TOPIC + "/writes/{writer}/{number}"),
    ("get", "/healthz"),
    ("get", "/readyz"),
    ("get", TOPIC + "/segments/{segment}"),
    *(("post", TOPIC + "/segments/{segment}/" + change) for change in ("split", "merge", "roll", "move")),
}


def answers() -> dict[tuple[str, str, str], dict[str, Any]]:
    """The JSON contents of all answers that are no errors, by method, path and status."""
    return {
        (method, path, status): content
        for path, operations in DOCUMENT["paths"].items()
        for method, operation in operations.items()
        for status, answer in operation["responses"].items()
        if re.fullmatch("2..", status) and (content := answer.get("content", {}).get("application/json"))
    }


def properties(schema: dict[str, Any]) -> dict[str, Any]:
    """The members of an object's schema, or of the items of a list of such."""
    while "properties" not in schema:
        if "$ref" in schema:
            schema = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        else:
            schema = next(one for one in schema.get("anyOf", [schema.get("items")]) if one != {"type": "null"})
    members: dict[str, Any] = schema["properties"]
    return members


def check_fields(struct: type[msgspec.Struct], schema: dict[str, Any], shown: Any) -> None:
    """Every field of the struct, and of the structs in it, is a member of the schema, and of a like type."""
    members = properties(schema)
    for field in msgspec.structs.fields(struct):
        assert field.encode_name in members, f"{struct.__name__}.{field.name} is no member of {sorted(members)}"
        inner = nested(field.type)
        if inner and shown.get(field.encode_name):
            value = shown[field.encode_name]
            check_fields(inner, members[field.encode_name], value[0] if isinstance(value, list) else value)


def nested(annotation: Any) -> type[msgspec.Struct] | None:
    """The struct that a field's type is, or that is among its arguments."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    return next((found for one in getattr(annotation, "__args__", ()) if (found := nested(one))), None)


def test_every_answer_has_its_struct_or_is_plain() -> None:
    assert {(method, path) for method, path, _ in answers()} == {(method, path) for method, path, _ in STRUCTS} | PLAIN


@pytest.mark.parametrize("answer", STRUCTS, ids=" ".join)
def test_an_example_is_decoded_by_the_clients_struct(answer: tuple[str, str, str]) -> None:
    content, struct = answers()[answer], STRUCTS[answer]
    shown = content["example"]
    decoded = msgspec.json.decode(json.dumps(shown), type=struct)
    for field in msgspec.structs.fields(struct):
        if field.encode_name in shown:
            assert (
                msgspec.json.encode(getattr(decoded, field.name)) not in (b"null", b"[]", b"{}")
                or not shown[field.encode_name]
            )
    check_fields(struct, content["schema"], shown)


def test_a_field_that_no_broker_sends_is_found() -> None:
    class Wrong(msgspec.Struct):
        count: int
        segmentz: list[int] = []

    answer = answers()["post", f"{TOPIC}/messages", "200"]
    with pytest.raises(AssertionError, match="segmentz is no member"):
        check_fields(Wrong, answer["schema"], answer["example"])

"""The OpenAPI document is valid, and reads as a person would have written it: names, tags, errors, links."""

import re
from typing import Any

import pytest
from openapi_spec_validator import validate

from seaweedq.api.app import Application
from seaweedq.api.openapi import PATH_PARAMETERS, TAGS
from seaweedq.api.parameters import seconds
from seaweedq.api.problems import CONTENT_TYPE
from seaweedq.api.routes import SOCKET
from seaweedq.errors import InvalidRequest
from seaweedq.settings import Settings
from tests.docs.test_docs_agree import unstarted
from tests.support.http.requests import TABLE

OPERATIONS = [route.operation for route in TABLE.routes if route.operation.id]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("document")
    return dict(Application(unstarted(Settings(data_dir=folder))).fastapi.openapi())


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["operationId"]: one for methods in document["paths"].values() for one in methods.values()}


def test_it_is_valid(document: dict[str, Any]) -> None:
    validate(document)


def test_each_public_route_has_an_operation() -> None:
    public = [one for one in TABLE.routes if one.path.startswith("/v1/") and one.method not in ("HEAD", SOCKET)]
    assert [(one.method, one.path) for one in public if not one.operation.id] == []


def test_operations_have_names_and_stand_in_the_order_of_use(document: dict[str, Any]) -> None:
    assert {one.id for one in OPERATIONS} == operations(document).keys()
    assert len(operations(document)) == len(OPERATIONS)
    for one in OPERATIONS:
        assert re.fullmatch(r"[a-z][A-Za-z]+", one.id)
        assert re.fullmatch(r"[A-Z][^.]{4,50}", one.summary)
    assert [tag["name"] for tag in document["tags"]] == list(TAGS)
    first = [operation["tags"] for operation in operations(document).values()]
    assert [tag for n, (tag,) in enumerate(first) if [tag] not in first[:n]] == list(TAGS)
    assert all(tag["description"].endswith(".") for tag in document["tags"])


def test_each_parameter_of_a_path_is_defined(document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            named = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
            assert named == set(re.findall(r"\{(\w+)\}", path)), (method, path)
            for one in operation.get("parameters", ()):
                if one["in"] == "path":
                    assert (one["schema"], one["example"]) == PATH_PARAMETERS[one["name"]]


def test_each_route_has_its_own_errors_and_no_others(document: dict[str, Any]) -> None:
    found = operations(document)

    def errors(name: str, status: str) -> list[str]:
        return str(found[name]["responses"][status]["description"]).split("; ")

    assert errors("getTopic", "404") == ["Topic not found"]
    assert errors("getPrincipal", "404") == ["Principal not found"]
    assert errors("pullMessages", "404") == ["Subscription not found", "Topic not found"]
    assert errors("revokeToken", "404") == ["Token not found"]
    assert errors("getTopic", "429") == errors("signParts", "429") == ["A limit is reached"]
    too_many = ["A limit is reached", "The cluster has too many segments", "The cluster has too many topics"]
    assert errors("createSubscription", "429") == errors("publishMessages", "429") == too_many
    assert errors("createUpload", "429") == [*too_many, "Too many open uploads"]
    assert errors("mergeSegments", "429") == too_many[:2]
    assert errors("publishMessages", "413") == ["A message is too large", "The request is too large"]
    assert list(found["publishMessages"]["responses"]["413"]["content"]) == [CONTENT_TYPE]
    for operation in found.values():
        assert ("429" in operation["responses"]) == ("security" in operation)
    shown = "; ".join(errors("getCluster", "503")).lower()
    assert "journal" not in shown
    assert "segment" not in shown
    for operation in found.values():
        assert list(operation["responses"]) == sorted(operation["responses"])


def test_links_lead_to_operations_by_their_parameters(document: dict[str, Any]) -> None:
    found = operations(document)
    for operation in found.values():
        for answer in operation["responses"].values():
            for link in answer.get("links", {}).values():
                target = found[link["operationId"]]
                known = {one["name"] for one in target.get("parameters", ()) if one["in"] == "path"}
                assert known == set(link["parameters"])
                assert "requestBody" not in link or "requestBody" in target


@pytest.mark.parametrize(("text", "value"), [("9.895807863270598", 9.895807863270598), ("1e-05", 1e-05), ("0", 0.0)])
def test_seconds_are_numbers_as_json_writes_them(text: str, value: float) -> None:
    assert seconds(text, "wait_s", 30) == value


@pytest.mark.parametrize("text", ["30.000000000001", "1e2", "-1", "1e999", "nan", "1_0", "١", "", ".5", "1e", "9" * 60])
def test_other_texts_are_no_seconds(text: str) -> None:
    with pytest.raises(InvalidRequest):
        seconds(text, "wait_s", 30)


def test_the_schema_of_problems_has_the_members_of_each_error(document: dict[str, Any]) -> None:
    lines = document["components"]["schemas"]["Problem"]["description"].splitlines()
    assert "- `below-retention`: `segment`, `offset`, `start_offset`" in lines
    assert "- `partly-taken`: `taken` (segment, `first_offset`, count)" in lines
    assert any(
        line.startswith("- `invalid-messages`: `errors` (of at most 1,000 invalid messages), ") for line in lines
    )

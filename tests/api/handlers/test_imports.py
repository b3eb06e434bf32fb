"""Imports over HTTP: what they answer, whoever asks, and how often."""

import json

import pyarrow as pa
import pytest

from tests.support.http.uploading_files import arrow, numbered, parquet

pytestmark = pytest.mark.process


def test_every_row_becomes_a_message(importer):
    importer.make(initial_segments=4)
    upload = importer.upload(parquet(numbered(1000)))
    answer = importer.ask(upload)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert (told["state"], told["count"], told["rows"]) == ("done", 1000, 1000)
    assert sum(one["count"] for one in told["segments"]) == 1000
    found = importer.messages()
    assert len(found) == 1000
    assert {one["segment"]: one["count"] for one in told["segments"]} == {
        number: sum(m["segment"] == number for m in found) for number in {m["segment"] for m in found}
    }
    by_key = {}
    for message in found:
        by_key.setdefault(message["key"], []).append(message["value"]["n"])
    assert by_key == {f"k{k}": list(range(k, 1000, 10)) for k in range(10)}


def test_a_repeat_gives_the_same_answer_and_takes_nothing(importer):
    importer.make()
    upload = importer.upload(parquet(numbered(10)))
    first = importer.ask(upload)
    assert importer.ask(upload).json() == first.json()
    assert importer.show(upload).json() == first.json()
    assert len(importer.messages()) == 10


def test_who_does_not_wait_is_told_how_far_it_is(importer):
    importer.make()
    upload = importer.upload(parquet(numbered(300_000)))
    asked = importer.ask(upload, wait_s=0)
    assert asked.status_code == 202
    assert asked.json()["state"] in ("checking", "running")
    assert importer.ended(upload)["count"] == 300_000
    assert importer.ask(upload, wait_s=0).status_code == 200


def test_another_format_is_a_conflict(importer):
    importer.make()
    upload = importer.upload(parquet(numbered(3)))
    assert importer.ask(upload).status_code == 200
    again = importer.ask(upload, "arrow")
    assert again.status_code == 409
    assert again.json()["type"] == "/problems/upload-conflict"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"upload_id": "nobody", "format": "parquet"}, 404),
        ({"upload_id": "nobody", "format": "csv"}, 422),
        ({"upload_id": "../x", "format": "parquet"}, 422),
        ({"format": "parquet"}, 422),
        ({"upload_id": "nobody", "format": "parquet", "bare": True}, 422),
    ],
)
def test_requests_that_make_no_sense(importer, body, status):
    importer.make()
    answer = importer.http.post(f"{importer.path}/imports", json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert importer.show("nobody").status_code == 404
    assert importer.http.post(f"{importer.path}/imports?wait_s=301", json=body).status_code == 422


def test_an_upload_without_bytes_is_not_imported(importer):
    importer.make()
    upload = importer.http.post(f"{importer.path}/uploads", json={"size": 3}).json()["upload_id"]
    assert importer.ask(upload).status_code == 409


def test_bad_rows_are_named_and_nothing_is_taken(importer):
    importer.make()
    values = [f'{{"n":{i}}}' for i in range(200_000)]
    for at in (5, 140_000, 199_999):
        values[at] = "{nonsense"
    upload = importer.upload(parquet(pa.table({"value": values})))
    answer = importer.ask(upload)
    assert answer.status_code == 422
    assert answer.json()["type"] == "/problems/invalid-messages"
    assert [one["index"] for one in answer.json()["errors"]] == [5, 140_000, 199_999]
    assert importer.show(upload).json()["state"] == "failed"
    assert importer.ask(upload).json() == answer.json()
    assert importer.messages() == []


def test_lines_and_bare_lines(importer):
    importer.make(key_field="k")
    lines = b'{"value":{"k":"a"},"headers":{"h":"1"}}\n\n{"key":"b","value":{"k":"b"}}\r\n'
    assert importer.take(lines, "ndjson").json()["count"] == 2
    assert importer.take(b'{"k":"c"}\n{"k":"d"}', "ndjson", bare=True).json()["count"] == 2
    assert sorted(m["key"] for m in importer.messages()) == ["a", "b", "c", "d"]
    refused = importer.take(b'{"k":"c"}\n{"k":[]}\n', "ndjson", bare=True)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["index"] == 1


@pytest.mark.parametrize("file", [False, True])
def test_arrow_streams_and_files(importer, file):
    importer.make()
    table = numbered(1000)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    encoded = pa.table({"value": table["value"].dictionary_encode(), "_key": table["_key"]})
    assert importer.take(arrow(encoded, file, options=options), "arrow").json()["count"] == 1000
    assert sorted(m["value"]["n"] for m in importer.messages()) == list(range(1000))


def test_columns_of_a_typed_topic(importer):
    fields = [
        {"id": 1, "name": "k", "type": "string", "required": True},
        {"id": 2, "name": "n", "type": "long", "required": False},
    ]
    importer.make(format="typed", schema={"type": "struct", "fields": fields}, key_field="k")
    answer = importer.take(parquet(pa.table({"k": ["a", "b"], "n": pa.array([1, None], pa.int32())})))
    assert answer.status_code == 200, answer.text
    found = {m["key"]: m["value"] for m in importer.messages()}
    assert found["a"] == {"k": "a", "n": 1}
    assert importer.take(parquet(pa.table({"n": [1]}))).json()["field"] == "k"


def test_a_file_of_an_earlier_version_states_its_id(importer):
    """Without it the import of a renamed column is refused, with the name that it has now."""

    def schema(kind, *more):
        return {"fields": [{"id": 1, "name": "k", "type": "string"}, {"id": 2, "name": kind, "type": "long"}, *more]}

    def ask(upload, **headers):
        body = {"upload_id": upload, "format": "parquet"}
        return importer.http.post(f"{importer.path}/imports", json=body, headers=headers)

    importer.make(format="typed", schema=schema("n", {"id": 3, "name": "x", "type": "int"}), key_field="k")
    for stated, number in ((schema("n"), 0), (schema("m"), 1)):
        changed = importer.http.patch(importer.path, json={"schema": stated, "if_schema_id": number})
        assert changed.status_code == 200, changed.text
    file = parquet(pa.table({"k": ["a"], "n": pa.array([7])}))
    refused = ask(importer.upload(file))
    assert (refused.status_code, refused.json()["hint"][:30]) == (422, "the field 'n' was renamed to '")
    refused = ask(importer.upload(b'{"value":{"k":"a","n":7}}'), **{"Schema-Id": "one"})
    assert (refused.status_code, refused.json()["field"]) == (422, "Schema-Id")
    for number, told in ((0, "has the field 'x', which a later version has dropped"), (3, "has no version 3")):
        refused = ask(importer.upload(file), **{"Schema-Id": str(number)})
        assert (refused.status_code, refused.json()["schema_id"]) == (409, 2)
        assert told in refused.json()["detail"]
    upload = importer.upload(file)
    taken = ask(upload, **{"Schema-Id": "1"})
    assert taken.status_code == 200, taken.text
    assert ask(upload, **{"Schema-Id": "2"}).status_code == 409, "it was imported as another version"
    assert ask(upload).status_code == 200
    assert [message["value"] for message in importer.messages()] == [{"k": "a", "m": 7}]


def test_headers_over_many_pieces(importer):
    importer.make(format="bytes", initial_segments=2)
    count = 150_000
    headers = pa.array([[("n", str(i))] if i % 3 else None for i in range(count)], pa.map_(pa.string(), pa.string()))
    table = pa.table({"value": pa.array([b"x"] * count), "_headers": headers})
    assert importer.take(parquet(table, row_group_size=40_000)).json()["count"] == count
    path = f"{importer.path}/segments/0/messages"
    page = importer.http.get(path, params={"offset": 50_000, "limit": 10}).json()["messages"]
    assert len(page) == 10


def test_a_deleted_topic_takes_its_imports_along(importer):
    importer.make()
    upload = importer.upload(parquet(numbered(400_000)))
    assert importer.ask(upload, wait_s=0).status_code == 202
    assert importer.http.delete(importer.path).status_code in (200, 204)
    importer.make()
    assert importer.show(upload).status_code == 404
    assert importer.messages() == []
    assert json.loads(importer.take(parquet(numbered(1))).content)["count"] == 1

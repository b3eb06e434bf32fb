"""`seaweedq spark replay`: what the other topic has afterwards, once, and what is refused before it begins."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from seaweedq import Client
from tests.support.http.referring import naming, publish, upload
from tests.support.processes.broker_process import BrokerProcess
from tests.support.tiers import later

pytestmark = [
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]
COLUMNS = ["_key", "_timestamp", "_headers", "_expires", "value"]
ABOVE = "get_json_object(value, '$.n') >= 50"
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with Client(broker.url) as client:
        yield client


def messages(*numbers: int) -> list[dict[str, object]]:
    return [{"key": f"k{n % 7}", "value": {"n": n}, "headers": {"n": str(n)}, "expires_in_s": 3600} for n in numbers]


def numbers(client: Client, topic: str) -> list[int]:
    return sorted(json.loads(value)["n"] for value in client.read_table(topic, live=True)["value"].to_pylist())


def check_order(client: Client, topic: str) -> None:
    """The messages of each key have risen."""
    table = client.read_table(topic, live=True).sort_by([("segment", "ascending"), ("_offset", "ascending")])
    values = [json.loads(value)["n"] for value in table["value"].to_pylist()]
    for key in range(7):
        assert (of_key := [n for n in values if n % 7 == key]) == sorted(of_key)


@pytest.mark.long
def test_rows_come_once_however_often_it_is_started(
    client: Client, broker: BrokerProcess, command: Command, tmp_path: Path
) -> None:
    """The second batch has the end of a file, a whole file, and rows of no file yet."""
    client.create_topic("flights", initial_segments=1)
    for start, end in ((0, 60), (60, 75)):
        client.publish("flights", messages(*range(start, end)))
        client.flush("flights")
    client.publish("flights", messages(*range(75, 100)))
    client.create_topic("later", initial_segments=2)
    place = tmp_path / "of" / "later"
    asked = ["replay", "flights", "--into", "later", "--where", ABOVE, "--checkpoint", str(place), "--url", broker.url]
    code, out, err = command(*asked, "--batch-rows", "40", "-o", "json")
    assert (code, err) == (0, "")
    counts = {"topic": "flights", "into": "later", "rows": 50, "references": 0}
    done = json.loads(out)
    assert done.pop("batches") >= 3
    assert done == counts
    rows = client.read_table("later", columns=COLUMNS, live=True).sort_by("_timestamp")
    check_order(client, "later")
    source = client.read_table("flights", columns=COLUMNS, live=True).sort_by("_timestamp")
    assert sorted(rows.to_pylist(), key=str) == sorted(source.slice(50).to_pylist(), key=str)

    newest = max(int(file.name) for file in (place / "commits").iterdir() if file.name.isdigit())
    for name in (str(newest), f".{newest}.crc"):
        (place / "commits" / name).unlink()  # as if it had died behind the write
    client.publish("flights", messages(*range(100, 110)))
    assert command(*asked)[0] == 0
    assert numbers(client, "later") == list(range(50, 110))


@pytest.mark.long
def test_a_checkpoint_is_of_one_replay(client: Client, broker: BrokerProcess, command: Command, tmp_path: Path) -> None:
    client.publish("source", messages(1, 2))
    client.create_topic("late")
    client.create_topic("other")
    place = tmp_path / "at"
    asked = ["replay", "source", "--into", "late", "--checkpoint", str(place), "--url", broker.url]
    assert command(*asked)[:2] == (0, "replayed 2 rows of source into late\n")
    assert command(*asked)[:2] == (0, "replayed 0 rows of source into late\n")
    for changed, said in (
        ([*asked, "--where", "false"], "and not to this replay, topic 'source'"),
        ([*asked, "--into", "other"], f"the checkpoint {place} belongs to another replay, topic 'source'"),
    ):
        code, out, err = command(*changed)
        assert (code, out) == (1, "")
        assert said in err
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "metadata").write_text('{"id": "5d1f"}')
    code, _, err = command(*asked, "--checkpoint", str(tmp_path / "foreign"))
    assert (code, "is the checkpoint of another query; choose another folder" in err) == (1, True)
    client.delete_topic("late")
    client.create_topic("late")
    code, _, err = command(*asked)
    assert (code, numbers(client, "late")) == (1, [])
    assert "choose another folder" in err


@pytest.mark.long
def test_rows_by_reference_end_it_before_it_begins(
    client: Client, http: httpx.Client, broker: BrokerProcess, command: Command, tmp_path: Path
) -> None:
    client.create_topic("mixed")
    client.create_topic("plain")
    made = upload(http, "/v1/topics/mixed", b"content")
    publish(http, "/v1/topics/mixed", naming(made))
    client.publish("mixed", messages(1, 2))
    asked = ["replay", "mixed", "--into", "plain", "--checkpoint", str(tmp_path / "at"), "--url", broker.url]
    code, out, err = command(*asked)
    assert (code, out) == (1, "")
    assert (
        "1 of the rows to replay have a payload by reference, which a replay cannot write; nothing was written" in err
    )
    assert client.read_table("plain", live=True).num_rows == 0
    code, out, err = command(*asked, "--skip-references")
    assert (code, err) == (0, "")
    assert out == "replayed 2 rows of mixed into plain; 1 row by reference left out\n"
    assert numbers(client, "plain") == [1, 2]
    shutil.rmtree(tmp_path / "at")
    client.create_topic("some")
    assert command(*asked, "--into", "some", "--where", "value IS NOT NULL")[0] == 0


@pytest.mark.parametrize("cases", [slice(1, 3), later(slice(None))])
def test_what_is_wrong_is_said_in_a_line(
    client: Client, broker: BrokerProcess, command: Command, tmp_path: Path, cases: slice
) -> None:
    client.publish("there", messages(1))
    client.create_topic("into")
    (tmp_path / "file").write_text("")
    place = str(tmp_path / "at")
    wrong = (
        (["--into", "nosuch"], 1, "topic 'nosuch' does not exist"),
        (["--into", "there"], 2, "--into: 'there' is the source topic; choose another topic"),
        (["--where", "valu > 1"], 2, "--where: 'valu > 1': "),
        (["--where", "value >"], 2, "--where: 'value >': "),
        (["--where", "value"], 2, "--where: 'value': "),
        (["--checkpoint", str(tmp_path / "file")], 2, f"--checkpoint: '{tmp_path}/file': "),
        (["--checkpoint", "/proc/at"], 2, "--checkpoint: '/proc/at': "),
        (["--batch-rows", "0"], 2, "--batch-rows: the value must be at least 1, not '0'"),
    )
    for changed, code, said in wrong[cases]:
        asked = ["replay", "there", "--into", "into", "--checkpoint", place, "--url", broker.url]
        ended, out, err = command(*asked, *changed)
        assert (ended, out) == (code, ""), err
        assert said in err
        assert len(err.splitlines()) == 1
    assert client.read_table("into", live=True).num_rows == 0

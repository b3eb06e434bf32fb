"""`seaweedq spark export` and `compact` as commands: what they print, how wrong input is told, and two at once."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seaweedq import Client
from seaweedq.spark import read_generation
from seaweedq.spark.jobs.export import export
from seaweedq.spark.jobs.generation_job import Target
from seaweedq.spark.jobs.generations import Begun, Generation, Generations
from tests.spark.jobs.test_export import of_topic, positions
from tests.support.processes.broker_process import BrokerProcess

pytestmark = [
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.long,
]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(command: Command, broker: BrokerProcess) -> Command:
    """Asks the module's broker."""
    return lambda *arguments: command(*arguments, "--url", broker.url)


def test_what_they_print(command: Command, topic: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said, err = command("export", topic, "--to", out, "--sort", "_key, value")
    assert (code, said, err) == (0, f"topic {topic}: 30 rows of 30 read are in generation 1 of {out}\n", "")
    code, said, err = command("export", topic, "--to", out)
    assert (code, said, err) == (0, f"topic {topic}: nothing is new; {out} is unchanged\n", "")
    code, said, _ = command("export", topic, "--to", out, "-o", "json")
    assert json.loads(said)["generation"] is None
    code, said, err = command("compact", topic, "--to", tmp_path / "newest", "--keep", "0s", "-o", "json")
    found = json.loads(said)
    assert (code, err) == (0, "")
    assert {name: found[name] for name in ("job", "topic", "generation", "read", "rows", "without_key")} == {
        "job": "compact", "topic": topic, "generation": 1, "read": 30, "rows": 11, "without_key": 0,
    }  # fmt: skip
    assert (tmp_path / "newest" / found["folder"]).is_dir()


def test_wrong_input_is_one_line(command: Command, broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / "file").write_text("")
    for arguments, code, told in [
        (("export", "nobodys", "--to", out), 1, "nobodys"),
        (("export", topic, "--to", out, "--partition-by", "nope"), 2, "that the topic does not have: nope"),
        (("export", topic, "--to", "hdfs://host/out"), 2, "must be a path, or s3a://BUCKET/FOLDER"),
        (("export", topic, "--to", broker.store / "topics" / "out"), 2, "is inside the brokers' store"),
        (("export", topic, "--to", tmp_path / "file" / "out"), 1, "cannot write to"),
        (("export", topic, "--to", out, "--keep", "soon"), 2, "soon"),
        (("export", topic, "--to", out, "--storage-options", "[]"), 2, "--storage-options: the value must be a JSON"),
        (("compact", topic, "--to", out, "--key", "value"), 2, "--key value needs --order-by"),
        (("compact", topic, "--to", out, "--deleted-where", "nope = 1"), 2, "`nope` cannot be resolved"),
        (("compact", topic, "--to", out, "--deleted-where", "value ="), 2, "--deleted-where 'value =': Syntax error"),
        (("compact", topic, "--to", out, "--deleted-where", "value"), 2, "must be a condition, not 'value'"),
        (("compact", topic, "--to", out, "--deleted-where", "cast(_key AS int) > 0"), 1, "cannot be cast"),
    ]:
        ended, said, err = command(*arguments)
        assert (ended, said) == (code, ""), (arguments, ended, said, err)
        assert told in err.replace("\n", " "), (arguments, err)
        assert len(err.splitlines()) == 1, (arguments, err)
    assert [path.name for path in out.iterdir()] == ["_generations"]
    assert not any(path.is_file() for path in out.rglob("*"))


def test_of_two_at_once_one_wins(
    spark: Any,
    command: Command,
    broker: BrokerProcess,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit = Generations.commit
    folders: list[str] = []

    def overtaken(there: Generations, begun: Begun, generation: Generation) -> None:
        folders.append(begun.folder)
        if len(folders) == 1:
            assert (tmp_path / begun.folder).is_dir()
            assert export(spark, topic, broker.url, Target(str(tmp_path), keep_s=0)).generation == 1
        commit(there, begun, generation)

    monkeypatch.setattr(Generations, "commit", overtaken)
    code, out, err = command("export", topic, "--to", tmp_path, "--keep", "0")
    assert (code, out) == (1, "")
    assert "another job has written generation 1" in err
    assert len(err.splitlines()) == 1
    with Client(broker.url) as client:
        assert positions(read_generation(spark, str(tmp_path))) == of_topic(client, topic)
    assert [path.name for path in tmp_path.glob("gen=*")] == folders[1:]

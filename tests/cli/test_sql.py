"""`seaweedq sql` against a real broker: complete with files and tails, under any name, in each format, also on S3."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from seaweedq import Client
from seaweedq.cli import sql_database as databases
from seaweedq.cli.main import app
from seaweedq.cli.shared.common import calling
from seaweedq.cli.sql import repeat
from seaweedq.cli.sql_database import Database, opened
from seaweedq.errors import FileMissing, InvalidRequest, SeaweedqError, TopicNotFound
from tests.support.processes.broker_process import BrokerProcess
from tests.support.readers.expiring import publish_expiring
from tests.support.rows.body_samples import iceberg

TYPES = {
    "b": "boolean",
    "i": "int",
    "l": "long",
    "f": "float",
    "d": "double",
    "day": "date",
    "time": "time",
    "at": "timestamp",
    "atz": "timestamptz",
    "s": "string",
    "u": "uuid",
    "x": "binary",
    "n": "decimal(12, 3)",
    "z": "fixed[4]",
}
ROW = {
    "b": True,
    "i": 1,
    "l": 2**40,
    "f": 0.5,
    "d": 0.1,
    "day": "2026-01-31",
    "time": "12:00:00",
    "at": "2026-01-31T12:00:00",
    "atz": "2026-01-31T12:00:00Z",
    "s": "é",
    "u": "5f2b8a6c-90d1-4e2f-8a3b-0c1d2e3f4a5b",
    "x": "AAE=",
    "n": "1.500",
    "z": "AAECAw==",
}


class Shell:
    """Runs the command at one broker."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.url = broker.url

    def __call__(self, *arguments: str) -> str:
        ended = CliRunner().invoke(app, ["sql", *arguments, "--url", self.url], env={"COLUMNS": "200"})
        if ended.exception and not isinstance(ended.exception, SystemExit):
            raise ended.exception
        assert ended.exit_code == 0, ended.output
        return ended.stdout

    def rows(self, statement: str) -> list[Any]:
        """What a statement finds."""
        with calling(self.url) as transport, opened(transport, "", "") as database:
            return self.of(database, statement)

    def of(self, database: Database, statement: str) -> list[Any]:
        with database.over(statement) as (connection, _):
            return connection.execute(statement).fetchall()


@pytest.fixture
def sql(real_broker: BrokerProcess) -> Shell:
    return Shell(real_broker)


def publish(client: Client, topic: str, numbers: Sequence[int]) -> None:
    client.publish(topic, [{"value": {"n": n}, "key": f"k{n % 3}", "headers": {"h": str(n)}} for n in numbers])


@pytest.fixture
def numbers(real_client: Client) -> Iterator[str]:
    """A topic whose name needs quotes: ten messages in files, five in none, in two segments each."""
    name = "sql.some-numbers"
    real_client.create_topic(name, initial_segments=2, flush={"max_age_s": 3600})
    publish(real_client, name, range(10))
    real_client.flush(name)
    publish(real_client, name, range(10, 15))
    yield name
    real_client.delete_topic(name)


@pytest.mark.process
def test_files_and_tails_are_one_view_under_any_name(sql: Shell, numbers: str) -> None:
    found = sql.rows(f"SELECT (value->>'n')::int, _key, _headers['h'] FROM \"{numbers.upper()}\" ORDER BY 1")
    assert found == [(n, f"k{n % 3}", str(n)) for n in range(15)]
    assert sql.rows(f'SELECT count(*), count(DISTINCT (segment, _offset)) FROM "{numbers}"') == [(15, 15)]
    assert sql.rows(f'SELECT count(*) FROM "{numbers}" JOIN "{numbers}" other USING (segment, _offset)') == [(15,)]
    assert (numbers,) in sql.rows("SHOW TABLES")
    assert not any(name.startswith("tail ") for (name,) in sql.rows("SHOW TABLES"))


@pytest.mark.process
def test_what_has_expired_is_left_out_or_kept(sql: Shell, real_client: Client) -> None:
    """Until its rows were in files. It is so in every time zone."""
    real_client.create_topic("sql_expiring", flush={"max_age_s": 3600})
    publish_expiring(real_client, "sql_expiring", 0, 10)
    statement = "SELECT value::int FROM sql_expiring ORDER BY 1"
    for flushed in (False, True):
        if flushed:
            real_client.flush("sql_expiring")
            publish_expiring(real_client, "sql_expiring", 10, 20)
        end = 20 if flushed else 10
        assert sql.rows(statement) == [(n,) for n in range(0, end, 2)]
        assert sql.rows("SELECT count(*) FROM sql_expiring") == [(end // 2,)]
        kept = sql("SELECT count(*) AS n FROM sql_expiring", "--keep-expired", "-o", "csv")
        assert kept.split() == ["n", str(end)]


@pytest.mark.process
def test_each_statement_sees_what_was_acknowledged_before(sql: Shell, numbers: str, real_client: Client) -> None:
    count = f'SELECT count(*) FROM "{numbers}"'
    with calling(sql.url) as transport, opened(transport, "1GB", "") as database:
        for more in range(3):
            assert sql.of(database, count) == [(15 + more,)]
            publish(real_client, numbers, [99])
            if more == 1:
                real_client.flush(numbers)


@pytest.mark.process
def test_the_columns_of_files_and_of_tails_have_the_same_types(sql: Shell, real_client: Client) -> None:
    real_client.create_topic("sql_types", format="typed", schema=iceberg(TYPES), flush={"max_age_s": 3600})
    real_client.publish("sql_types", {"value": ROW})
    of_tail, row_of_tail = sql.rows("DESCRIBE sql_types"), sql.rows("FROM sql_types")
    real_client.flush("sql_types")
    assert sql.rows("DESCRIBE sql_types") == of_tail
    assert sql.rows("FROM sql_types") == row_of_tail
    assert row_of_tail[0][6:14] == (
        True,
        1,
        2**40,
        0.5,
        0.1,
        date(2026, 1, 31),
        "12:00:00.000000",
        datetime(2026, 1, 31, 12),
    )
    assert row_of_tail[0][14] == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert row_of_tail[0][18:20] == (Decimal("1.500"), b"\x00\x01\x02\x03")
    real_client.delete_topic("sql_types")


@pytest.mark.process
def test_a_table_csv_json_and_parquet(sql: Shell, numbers: str, tmp_path: Path) -> None:
    statement = f"SELECT (value->>'n')::int AS n, _key AS k FROM \"{numbers}\" ORDER BY n -- the end;"
    assert sql(statement, "--rows", "2").split() == ["n", "k", "0", "k0", "1", "k1"]
    for name in ("a.csv", "a.ndjson", "a.parquet"):
        assert sql(statement, "--output-file", str(tmp_path / name)) == ""
    assert (tmp_path / "a.csv").read_text().splitlines()[:3] == ["n,k", "0,k0", "1,k1"]
    assert json.loads((tmp_path / "a.ndjson").read_text().splitlines()[14]) == {"n": 14, "k": "k2"}
    assert pq.read_table(tmp_path / "a.parquet")["n"].to_pylist() == list(range(15))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.ndjson", "a.parquet"]
    told = sql("--explain", f'SELECT count(*) FROM "{numbers}"')
    assert f"{numbers}: 10 rows of 2 files (" in told
    assert "  segment=" in told
    assert f"{numbers}: 5 rows from brokers" in told


@pytest.mark.process
def test_to_stdout_it_comes_as_it_is_read(sql: Shell, numbers: str, capfdbinary: Any) -> None:
    for format in ("csv", "json", "parquet"):
        ended = CliRunner().invoke(
            app, ["sql", f'SELECT 7 AS n FROM "{numbers}" LIMIT 1', "-o", format, "--url", sql.url]
        )
        assert ended.exit_code == 0, ended.output
        expected = {"csv": b"n\n7\n", "json": b'{"n":7}\n', "parquet": b"PAR1"}[format]
        assert ended.stdout_bytes.startswith(expected)


@pytest.mark.process
@pytest.mark.parametrize(
    ("statement", "error", "told"),
    [
        ("SELECT * FROM nosuch_topic", TopicNotFound, "there is no topic 'nosuch_topic'$"),
        ("SELECT * FROM sql.some_topic", TopicNotFound, 'in quotes: "sql.some_topic"'),
        ("SELECT * FROM some-topic", InvalidRequest, 'in quotes: "some-topic"'),
        ("SELECT 1; SELECT 2", InvalidRequest, "has 2 statements"),
        ("", InvalidRequest, "has 0 statements"),
        ("SELECT nosuch FROM (SELECT 1 AS a)", InvalidRequest, "nosuch"),
        ("SELECT page FROM (SELECT '{}'::JSON AS value)", InvalidRequest, "are in value, such as value->>'page'"),
    ],
)
def test_what_is_wrong_is_told(sql: Shell, statement: str, error: type[SeaweedqError], told: str) -> None:
    with pytest.raises(error, match=told):
        sql(statement)


@pytest.mark.process
def test_topics_that_differ_by_case_alone_are_not_mixed_up(sql: Shell, real_client: Client) -> None:
    for name in ("sql_case", "SQL_CASE"):
        real_client.create_topic(name)
    publish(real_client, "SQL_CASE", range(2))
    assert sql.rows("SELECT count(*) FROM SQL_CASE") == [(2,)]
    assert sql.rows("SELECT count(*) FROM sql_case") == [(0,)]
    with pytest.raises(InvalidRequest, match="cannot distinguish the topics"):
        sql("SELECT * FROM Sql_Case")
    for name in ("sql_case", "SQL_CASE"):
        real_client.delete_topic(name)


@pytest.mark.process
def test_a_file_that_is_gone_is_planned_again_and_then_told(
    sql: Shell, numbers: str, real_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, plans, really = f'SELECT count(_key) FROM "{numbers}"', [], databases.view

    def moved(read: Any, root: str, tail: str) -> str:
        plans.append(root)
        return really(read, root if len(plans) > gone else f"{root}/gone", tail)

    monkeypatch.setattr(databases, "view", moved)
    gone = 2
    assert sql(count).split()[-1] == "15"
    gone = 9
    with pytest.raises(FileMissing, match="this machine cannot read some of the Parquet files"):
        sql(count)


@pytest.mark.process
def test_a_look_again_and_again_goes_on_over_errors(
    sql: Shell, numbers: str, monkeypatch: pytest.MonkeyPatch, real_client: Client
) -> None:
    from rich.console import Console

    console = Console(width=200)
    with calling(sql.url) as transport, opened(transport, "", "") as database:
        looks = repeat(database, f'SELECT count(*) AS n FROM "{numbers}"', 10, 0.0, wide=False)
        shown = []
        for broken in (False, True, False):
            with monkeypatch.context() as patched:
                if broken:
                    patched.setattr(databases, "view", lambda read, root, tail: "SELECT * FROM read_parquet('/gone')")
                with console.capture() as capture:
                    console.print(next(looks))
            shown.append(capture.get().split())
            publish(real_client, numbers, [1])
    assert [words[-1] for words in shown] == ["15", "15", "17"]
    assert "Parquet" in shown[1]


@pytest.fixture
def on_s3(broker_process: Callable[..., BrokerProcess], moto_server: Any) -> BrokerProcess:
    """A broker on S3."""
    env = {name: value for name, value in moto_server.env.items() if name != "AWS_ENDPOINT_URL_S3"}
    store = f"s3://{moto_server.place()}/prod"
    return broker_process("--store", store, "--s3-endpoints", moto_server.endpoint, env=env)


@pytest.mark.process
@pytest.mark.service
def test_on_s3_it_reads_with_the_credentials_of_the_caller(
    on_s3: BrokerProcess, moto_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(on_s3.url) as client:
        client.create_topic("t", flush={"max_age_s": 3600})
        publish(client, "t", range(10))
        client.flush("t")
        publish(client, "t", range(10, 15))
    for name, value in moto_server.env.items():
        if name != "AWS_ENDPOINT_URL_S3":
            monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    count = "SELECT count(_key), sum(segment) FROM t"
    assert Shell(on_s3)(count).split()[-2:] == ["15", "0"]
    assert Shell(on_s3)(count, "--s3-endpoint", moto_server.endpoint).split()[-2:] == ["15", "0"]
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # s3fs tries again by itself: ten seconds less
    with pytest.raises(FileMissing, match=r"127\.0\.0\.1:9"):
        Shell(on_s3)(count)


@pytest.mark.process
def test_topics_that_cannot_be_views_together_break_no_listing(sql: Shell, real_client: Client) -> None:
    """SHOW TABLES ended with an error where one topic was named like a table of DuckDB, or two differed by case."""
    topics = ["sql-case", "SQL-Case", "duckdb_tables"]
    for topic in topics:
        real_client.create_topic(topic)
    try:
        shown = {name for (name,) in sql.rows("SHOW TABLES")}
        assert {name.lower() for name in shown & {*topics}} == {"sql-case"}
        assert "duckdb_tables" not in shown
        assert sql.rows('SELECT count(*) FROM "SQL-Case"') == [(0,)]
        real_client.publish("duckdb_tables", {"value": 7})
        assert sql.rows("SELECT value FROM topics.duckdb_tables") == [("7",)]
        assert sql.rows("SELECT table_name FROM duckdb_tables WHERE table_name = 'none'") == []
    finally:
        for topic in topics:
            real_client.delete_topic(topic)


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    given = ["sql", "SELECT 1", "--output-file", str(tmp_path / "none" / "a.csv")]
    ended = CliRunner().invoke(app, given, env={"COLUMNS": "300"})
    assert (ended.exit_code, "there is no folder" in ended.output) == (2, True)


@pytest.mark.process
def test_a_program_reads_a_topic_without_pandas(sql: Shell, numbers: str) -> None:
    """Arrow imported it to make one column, which took half of the time of a statement."""
    program = f"""
import sys
from seaweedq.cli.main import main
try:
    main(["sql", 'SELECT count(*) FROM "{numbers}"', "--url", "{sql.url}"])
except SystemExit:
    pass
assert "pyarrow" in sys.modules and "pandas" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()[-1]) == (0, "15"), done.stderr


@pytest.mark.process
def test_times_are_shown_where_only_the_extra_is_installed(sql: Shell, numbers: str) -> None:
    """DuckDB makes Python's times with pytz, which no extra has; the error blamed files that are not visible."""
    program = f"""
import sys
from seaweedq.cli.main import main
from seaweedq.extras import hidden
with hidden("pytz"):
    main(["sql", 'SELECT * FROM "{numbers}"', "--url", "{sql.url}"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1 + 15

"""Tasks, commits and aborts of a write as Spark calls them, at a broker, without Spark: what is tried again, what fails
amid, and what is left of it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pyarrow as pa
import pytest

from seaweedq import Client
from seaweedq.client.core.calls import write_path
from seaweedq.errors import ClientError, SeaweedqError, WriteOutOfOrder
from tests.support.processes.broker_process import BrokerProcess

pytest.importorskip("pyspark")
from seaweedq.spark.options import WriteOptions
from seaweedq.spark.writer import BatchWriter, Part, StreamWriter, TaskOutput

pytestmark = pytest.mark.process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with Client(broker.url) as client:
        yield client


@pytest.fixture
def job(client: Client, broker: BrokerProcess, request: pytest.FixtureRequest) -> "Job":
    name = request.node.name.replace("test_", "")[:60]
    client.create_topic(name, initial_segments=2)
    return Job(client, broker.url, name)


class Job:
    """A write into a topic, by tasks of numbers."""

    def __init__(self, client: Client, url: str, topic: str, **options: str) -> None:
        self.client, self.url, self.topic, self.facts = client, url, topic, client.topic(topic)
        self.writer = BatchWriter(WriteOptions.parse({"url": url, "topic": topic, **options}), self.facts)

    def again(self, **options: str) -> "Job":
        """The same job, run anew."""
        return Job(self.client, self.url, self.topic, **options)

    def task(self, first: int, count: int, partition: int = 0, batch_rows: int = 1000) -> TaskOutput:
        """Runs a task."""
        writer = self.writer
        return writer.task(batches(first, count, batch_rows), writer.writer, writer.options.write_number, partition)

    def rows(self) -> list[int]:
        """The numbers in the topic, sorted."""
        return sorted(map(int, self.client.read_table(self.topic, live=True)["value"].to_pylist()))


def batches(first: int, count: int, batch_rows: int = 1000) -> Iterator[pa.RecordBatch]:
    for at in range(first, first + count, batch_rows):
        numbers = range(at, min(at + batch_rows, first + count))
        yield pa.RecordBatch.from_pydict({"value": list(map(str, numbers))})


NAMED = {"writeId": "daily", "writeNumber": "5"}
LARGE = {"maxFileBytes": "1"}  # each batch of Arrow is an upload


@pytest.mark.long
def test_a_commit_that_comes_again_with_other_uploads_is_taken_once(job: Job) -> None:
    job = job.again(**NAMED)
    job.writer.commit([job.task(0, 300)])
    other = job.again(**NAMED, **LARGE)
    other.writer.commit([other.task(at, 50, at // 50) for at in range(0, 300, 50)])
    assert job.rows() == list(range(300))


def test_rows_come_in_the_order_of_their_tasks(client: Client, broker: BrokerProcess) -> None:
    """Whether a task has uploaded its rows, or the driver uploads them together."""
    client.create_topic("in-order")
    job = Job(client, broker.url, "in-order", **NAMED)
    large = job.again(**NAMED, **LARGE)
    messages = [
        job.task(0, 10),
        job.task(10, 10, 1),
        large.task(20, 100, 2),
        job.task(120, 10, 3),
        large.task(130, 100, 4),
    ]
    assert [bool(one.valid.carried) for one in messages] == [True, True, False, True, False]
    job.writer.commit([*messages, job.task(230, 10, 5)])
    rows = client.read_table("in-order", live=True).sort_by("_offset")["value"].to_pylist()
    assert [*map(int, rows)] == list(range(240))


def test_two_drivers_on_one_checkpoint_write_a_batch_once(job: Job) -> None:
    """Both have the query's id and the batch's number, and tasks of their own, which share the rows out otherwise."""
    drivers = [StreamWriter(job.again(**options).writer.options, job.facts) for options in ({}, LARGE)]

    def run(driver: StreamWriter, tasks: int) -> None:
        share = 300 // tasks
        driver.commit([driver.task(batches(at * share, share), "spark.q", 3, at) for at in range(tasks)], 3)

    with ThreadPoolExecutor() as pool:
        ran = [pool.submit(run, driver, tasks) for driver, tasks in zip(drivers, (2, 5), strict=True)]
        for each in ran:
            each.result()
    assert job.rows() == list(range(300))
    with pytest.raises(WriteOutOfOrder):  # one that has stood still since
        drivers[0].commit([drivers[0].task(batches(0, 10), "spark.q", 2, 0)], 2)


@pytest.mark.long
def test_both_attempts_of_a_task_finish_and_one_counts(job: Job) -> None:
    """As with speculation: Spark takes the message of one, which may be the first or the last to finish; nobody aborts
    the other, whose uploads are for this write, and in no message. A task that failed has none."""
    job = job.again(**NAMED, **LARGE)
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(lambda _: job.task(0, 100), range(2))
    assert first.valid.uploads != second.valid.uploads
    for messages in ([second, None, job.task(100, 10, 1)], [first, job.task(100, 10, 1)]):
        job.writer.commit(messages)
        assert job.rows() == list(range(110))


def test_an_abort_beside_a_write_of_which_no_answer_came(job: Job) -> None:
    """The put was answered to nobody, and the broker is at work: Spark calls `abort`, which takes no upload of it."""
    job = job.again(**NAMED, **LARGE)
    messages = [job.task(at, 100, at // 100) for at in range(0, 800, 100)]
    path = f"{write_path(job.topic, 'daily')}/5"
    body = {"uploads": [each for one in messages for each in one.valid.uploads], "format": "parquet"}
    httpx.put(f"{job.url}{path}", params={"wait_s": 0}, json=body, timeout=30, trust_env=False).raise_for_status()
    job.writer.abort(messages)
    again = job.again(**NAMED)
    again.writer.commit([again.task(at, 200, at // 200) for at in range(0, 800, 200)])
    assert job.rows() == list(range(800))


@pytest.mark.long
def test_many_uploads_are_one_write(job: Job) -> None:
    """`soak_writes` has 2,000."""
    many_uploads(job, 80)


def many_uploads(job: Job, count: int) -> None:
    """Writes as many uploads of 100 rows, of several tasks, at once."""
    job, tasks = job.again(**NAMED, **LARGE), 8
    share = count // tasks
    with ThreadPoolExecutor(tasks) as pool:
        ran = pool.map(lambda at: job.task(at * share * 100, share * 100, at, batch_rows=100), range(tasks))
        messages = list(ran)
    job.writer.commit(messages)
    assert job.rows() == list(range(count * 100))
    newest = job.client.last_write(job.topic, "daily")
    assert (newest.uploads, newest.count) == (count, count * 100)


@pytest.mark.long
def test_a_commit_that_raised_is_aborted_and_stays(job: Job) -> None:
    """Spark calls `abort` with the same messages; the answer of the commit was lost."""
    job = job.again(**NAMED, **LARGE)
    messages = [job.task(0, 100)]
    job.writer.commit(messages)
    job.writer.abort(messages)
    job.writer.commit(messages)
    assert job.rows() == list(range(100))


@pytest.mark.long
def test_what_was_aborted_is_not_taken_and_comes_again(job: Job) -> None:
    job = job.again(**NAMED, **LARGE)
    messages = [job.task(0, 100), None]
    job.writer.abort(messages)
    job.writer.abort(messages)
    with pytest.raises(SeaweedqError):
        job.writer.commit(messages)
    assert job.rows() == []
    job.writer.commit([job.task(0, 100)])
    assert job.rows() == list(range(100))


def test_an_abort_without_a_broker_fails_nothing(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job.again(**LARGE)
    messages = [job.task(0, 100)]

    def no_broker(*_: Any, **__: Any) -> Any:
        raise OSError("no broker")

    monkeypatch.setattr(Client, "run", no_broker)
    job.writer.abort(messages)


@pytest.mark.long
def test_two_hundred_tiny_tasks_make_one_upload(job: Job) -> None:
    job = job.again(**NAMED)
    messages = [job.task(at * 10, 10, at) for at in range(200)]
    assert not any(message.valid.uploads for message in messages)
    job.writer.commit(messages)
    assert job.rows() == list(range(2000))
    assert job.client.last_write(job.topic, "daily").uploads == 1


def test_no_rows_are_no_write(job: Job) -> None:
    job.writer.commit([job.task(0, 0), job.task(0, 0, 1)])
    job.writer.commit([])
    assert job.rows() == []


def test_a_task_that_fails_leaves_no_upload(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    upload = Client.upload
    monkeypatch.setattr(Client, "upload", lambda *a, **m: made.append(found := upload(*a, **m)) or found)
    writer = job.again(**LARGE).writer

    def rows() -> Iterator[pa.RecordBatch]:
        yield from batches(0, 3000)
        yield pa.RecordBatch.from_pydict({"value": ["1", "{"]})

    with pytest.raises(ClientError, match=r"does not take row 3001 of partition 3, its column 'value': .*invalidRows"):
        writer.task(rows(), "w", 0, 3)
    assert made
    messages = [TaskOutput("w", valid=type(job.task(0, 0).valid)(1, tuple(made)), invalid=job.task(0, 0).invalid)]
    with pytest.raises(SeaweedqError):
        writer.decide(messages, 0)


def test_invalid_rows_are_decided_before_the_others(job: Job) -> None:
    """So what a topic has left out is never lost, also where the main write fails. A repeat is there once."""
    astray = f"{job.topic[:50]}-astray"
    job.client.create_topic(astray)
    job = job.again(**NAMED, invalidRows=astray)
    writer = job.writer
    output = writer.task([pa.RecordBatch.from_pydict({"value": ["1", "{", "2"]})], "daily", 5, 0)
    assert (output.valid.rows, output.invalid.rows) == (2, 1)
    lost = TaskOutput("daily", type(output.valid)(1, ("no-such-upload",)), output.invalid)
    with pytest.raises(SeaweedqError):
        writer.commit([lost])
    assert job.client.read_table(astray, live=True).num_rows == 1
    writer.commit([output])
    assert job.rows() == [1, 2]
    assert job.client.read_table(astray, live=True).num_rows == 1


def test_an_attempt_that_finds_other_invalid_rows_fails(job: Job) -> None:
    """A row is judged at each attempt: one that was too far in the future may be valid by now. It is in one topic."""
    astray = f"{job.topic[:50]}-astray"
    job.client.create_topic(astray)
    writer = job.again(**NAMED, invalidRows=astray).writer

    def attempt(*values: str) -> list[TaskOutput]:
        return [writer.task([pa.RecordBatch.from_pydict({"value": list(values)})], "daily", 5, 0)]

    def counts() -> tuple[int, int]:
        return tuple(job.client.read_table(topic, live=True).num_rows for topic in (job.topic, astray))

    (first,) = attempt("1", "{", "2")
    with pytest.raises(SeaweedqError):  # its driver dies between the two writes
        writer.commit([TaskOutput("daily", Part(1, ("no-such-upload",)), first.invalid)])
    for values in (("1", "2", "3"), ("{", "{", "2")):
        with pytest.raises(ClientError, match=r"wrote 1 invalid rows to .*set invalidRows to another topic"):
            writer.commit(attempt(*values))
    assert counts() == (0, 1)
    writer.commit([first])
    for values in (("1", "2", "3"), ("{", "{", "2")):
        writer.commit(attempt(*values))
    assert counts() == (2, 1)
    elsewhere = f"{astray[:50]}-2"
    job.client.create_topic(elsewhere)
    later = job.again(writeId="daily", writeNumber="4", invalidRows=elsewhere).writer
    with pytest.raises(WriteOutOfOrder):
        later.commit([later.task([pa.RecordBatch.from_pydict({"value": ["1", "{"]})], "daily", 4, 0)])
    assert job.client.read_table(elsewhere, live=True).num_rows == 0


@pytest.mark.long
def test_a_broker_that_restarts_between_uploads_and_commit(job: Job, broker: BrokerProcess) -> None:
    job = job.again(**NAMED, **LARGE)
    messages = [job.task(0, 100)]
    broker.kill()
    broker.start()
    job.writer.commit(messages)
    assert job.rows() == list(range(100))

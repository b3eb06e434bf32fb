"""`seaweedq spark`: runs Spark jobs over topics. The jobs are in seaweedq/spark/jobs; this module shows their progress
and result.

A thread asks Spark for the progress: the finished tasks out of all known tasks in the running stages."""

import json
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Topic, Url, complain, counted, duration, one_line, printable, say
from seaweedq.cli.shared.contexts import export_files
from seaweedq.cli.shared.output import JSON, TABLE, Output, columns, say_done, say_json, say_table
from seaweedq.errors import MissingExtra, SeaweedqError
from seaweedq.extras import needs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from seaweedq.spark.jobs.audit import AuditedSegment, AuditedTopic
    from seaweedq.spark.jobs.generation_job import Added, Target

app = typer.Typer(
    no_args_is_help=True,
    help="Run a Spark job over a topic: in its own session on this machine, on the cluster at --master, "
    "or with spark-submit.",
)
AUDIT = """Examples: seaweedq spark audit flights · seaweedq spark audit flights --master spark://host:7077 ·
seaweedq spark audit flights --store s3://bucket/prefix --conf spark.executor.memory=4g"""
REPLAY = """Examples: seaweedq spark replay flights --into delayed --where "get_json_object(value, '$.delay') > 60"
--checkpoint /var/lib/replays/delayed · seaweedq spark replay flights --into copy --checkpoint s3a://bucket/replays/1"""
EXPORT = """Examples: seaweedq spark export flights --to /srv/flights ·
seaweedq spark export flights --to s3a://bucket/flights --partition-by carrier --sort _timestamp"""
COMPACT = """Examples: seaweedq spark compact flights --to /srv/newest ·
seaweedq spark compact orders --to /srv/orders --deleted-where "status = 'cancelled'" ·
seaweedq spark compact orders --to /srv/customers --key customer --order-by _timestamp"""
LOOKS_S = 0.2
Master = Annotated[
    str | None,
    typer.Option(help="Spark master, such as spark://host:7077; by default, the master of spark-submit, or local[*]."),
]
Conf = Annotated[list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark. Repeatable.")]


def _json_object(text: str) -> dict[str, Any]:
    """Parses a JSON object. Raises BadParameter, without the text because it may contain a secret."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise typer.BadParameter('the value must be a JSON object, such as {"key": "..."}')
    return found


StorageOptions = Annotated[
    dict[str, Any] | None,
    typer.Option(
        metavar="JSON",
        parser=_json_object,
        help="fsspec options for reading the files; by default, the credentials and region that boto finds.",
    ),
]
To = Annotated[
    str,
    typer.Option(
        metavar="DIR",
        help="Folder in which each run writes a new generation of files: a path at which the driver and "
        "all executors reach the same folder, or s3a://BUCKET/FOLDER.",
    ),
]
PartitionBy = Annotated[
    str,
    typer.Option(metavar="COLUMNS", help="Partition the files by these comma-separated columns."),
]
Sort = Annotated[str, typer.Option(metavar="COLUMNS", help="Sort each file by these comma-separated columns.")]
Keep = Annotated[float, duration("Keep files of older generations and killed jobs for this long.", least=0)]


@contextmanager
def running(job: str, master: str | None, conf: Sequence[str] | None, url: str) -> Iterator["SparkSession"]:
    """Yields a Spark session, and shows its progress if stderr is a terminal. A Spark error prints one line, and ends
    the command with exit code 1; Spark's own log is kept after a failure. Raises BadParameter, MissingExtra."""
    export_files(url)
    settings = dict(_setting(one) for one in conf or ())
    with needs("spark", f"seaweedq spark {job}"):
        from seaweedq.spark.jobs.session import cause_of, job_session, missing_for_spark
    if missing := missing_for_spark():
        raise MissingExtra(f"Spark cannot run here: {missing}", extra="spark", package="pyspark")
    with tempfile.NamedTemporaryFile(prefix="seaweedq-spark-", suffix=".log", delete=False) as file:
        log = Path(file.name)
    is_kept = False
    try:
        with job_session(f"seaweedq {job}", master, settings, log) as session, _watched(session, job):
            yield session
    except (SeaweedqError, OSError, typer.Exit, typer.BadParameter):
        raise
    except Exception as error:  # of Spark, whose classes have no common one
        is_kept = log.stat().st_size > 0
        complain(cause_of(error) + (f"; for details, see Spark's log {log}" if is_kept else ""))
        raise typer.Exit(1) from None
    finally:
        if not is_kept:
            log.unlink()


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(
            f"the value must be NAME=VALUE, such as spark.driver.memory=2g, not {text!r}", param_hint="--conf"
        )
    return name, value


@contextmanager
def _watched(session: "SparkSession", job: str) -> Iterator[None]:
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    over = threading.Event()
    look = session.sparkContext.statusTracker()
    parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*parts, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(job, total=None)

        def watch() -> None:
            while not over.wait(LOOKS_S):
                stages = [one for number in look.getActiveStageIds() if (one := look.getStageInfo(number))]
                if stages:
                    done = sum(one.numCompletedTasks for one in stages)
                    progress.update(bar, completed=done, total=sum(one.numTasks for one in stages))

        thread = threading.Thread(target=watch, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


_NUMBERS = "segment, files, offsets, read, findings"
_AUDITED = columns(_NUMBERS, numbers=_NUMBERS)


@app.command(epilog=AUDIT)
def audit(
    context: typer.Context,
    topic: Topic,
    store: Annotated[
        str | None,
        typer.Option(
            help="Audit the files in the store at this URL; the command contacts a broker only if you also pass --url."
        ),
    ] = None,
    storage_options: StorageOptions = None,
    master: Master = None,
    conf: Conf = None,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Audit a topic's files in parallel for gaps, duplicates and damage, and compare the files with the broker's
    segment list. Unlike `seaweedq verify`, the command does not compare rows with the messages that brokers return,
    and does not check payloads."""
    source = context.get_parameter_source("url")
    asked = store is None or (source is not None and source.name == "COMMANDLINE")
    with running("audit", master, conf, url) as spark:
        from seaweedq.spark.jobs.audit import audit as audited

        done = audited(spark, topic, url if asked else None, store, storage_options)
    if output == JSON:
        say_json(_facts(topic, done))
    else:
        say_table(output, _AUDITED, map(_row, done.segments))
        for finding in done.findings:
            say(printable(f"{finding.where}: {finding.what}"))
        say(f"topic {topic}: " + (f"DAMAGED, {counted(len(done.findings), 'finding')}" if done.findings else "sound"))
    if done.findings:
        raise typer.Exit(1)


def _row(one: "AuditedSegment") -> tuple[str, ...]:
    chain = one.chain
    offsets = f"{chain.start or 0:,} to {'?' if chain.end is None else format(chain.end, ',')}"
    found = str(len(chain.findings) or "none")
    return str(chain.segment), f"{chain.entries:,}", offsets, f"{one.rows:,}", found


def _facts(topic: str, done: "AuditedTopic") -> dict[str, Any]:
    return {
        "topic": topic,
        "findings": [{"where": finding.where, "what": finding.what} for finding in done.findings],
        "segments": [
            {
                "segment": one.chain.segment,
                "files": one.chain.entries,
                "start_offset": one.chain.start,
                "end_offset": one.chain.end,
                "read": one.rows,
                "findings": len(one.chain.findings),
            }
            for one in done.segments
        ],
    }


@app.command(epilog=REPLAY)
def replay(
    topic: Topic,
    into: Annotated[str, typer.Option(metavar="TOPIC", help="Existing topic to which the command publishes the rows.")],
    checkpoint: Annotated[
        str, typer.Option(metavar="DIR", help="Path or URL of the folder in which the replay stores its progress.")
    ],
    where: Annotated[
        str,
        typer.Option(
            metavar="SQL",
            help="Replay only rows that meet this Spark SQL condition.",
        ),
    ] = "true",
    skip_references: Annotated[
        bool,
        typer.Option(
            "--skip-references",
            help="Skip rows that refer to an uploaded payload, and print the number of skipped rows. Without "
            "--skip-references, the command fails if any row to replay refers to an uploaded payload.",
        ),
    ] = False,
    batch_rows: Annotated[int, typer.Option(min=1, help="Maximum number of rows per batch.")] = 1_000_000,
    storage_options: StorageOptions = None,
    master: Master = None,
    conf: Conf = None,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Publish each row of a topic, or each row that meets a condition, exactly once to another topic.

    To continue a replay, even after a crash, run the command again with the same checkpoint. Messages keep their
    keys, timestamps, headers and expiry. The replay omits messages that have expired, or that arrived after the
    replay began."""
    if into == topic:
        raise typer.BadParameter(f"{into!r} is the source topic; choose another topic", param_hint="--into")
    if "://" not in checkpoint:
        checkpoint = str(_folder(Path(checkpoint)))
    with running("replay", master, conf, url) as spark:
        from seaweedq.spark.jobs.replay import BadCondition, Replay
        from seaweedq.spark.jobs.replay import replay as replayed
        from seaweedq.spark.jobs.session import cause_of

        asked = Replay(url, topic, into, where, checkpoint, skip_references, batch_rows, storage_options or {})
        try:
            done = replayed(spark, asked)
        except BadCondition as error:
            raise typer.BadParameter(f"{where!r}: {cause_of(error)}", param_hint="--where") from None
    told = f"replayed {counted(done.rows, 'row')} of {topic} into {into}"
    told += f"; {counted(done.references, 'row')} by reference left out" if skip_references else ""
    say_done(output, told, topic=topic, into=into, rows=done.rows, references=done.references, batches=done.batches)


def _folder(path: Path) -> Path:
    """Creates a folder, and returns its absolute path. Raises BadParameter if the folder cannot be written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path.absolute()
    except OSError as error:
        raise typer.BadParameter(f"{str(path)!r}: {error.strerror}", param_hint="--checkpoint") from None


@app.command(epilog=EXPORT)
def export(
    topic: Topic,
    to: To,
    partition_by: PartitionBy = "",
    sort: Sort = "",
    keep: Keep = 3600,
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Skip rows that retention deleted before they were exported.")
    ] = False,
    storage_options: StorageOptions = None,
    master: Master = None,
    conf: Conf = None,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Export a topic to Parquet files, which you read with `seaweedq.spark.read_generation`. Each run exports the
    messages that were published since the previous run, each exactly once.

    If an error occurs, if another export to the folder DIR finishes first, or (without --skip-lost) if retention
    deleted rows before they were exported, then this export adds nothing to DIR, and the exit code is 1."""
    with running("export", master, conf, url) as spark, _usable():
        from seaweedq.spark.jobs.export import export as exported

        target = _target(to, partition_by, sort, keep, storage_options)
        added = exported(spark, topic, url, target, skip_lost)
    _say_added(added, output)


@app.command(epilog=COMPACT)
def compact(
    topic: Topic,
    to: To,
    key: Annotated[
        str,
        typer.Option(
            metavar="COLUMNS",
            help="Key columns, comma-separated. If --key names any column other than _key, --order-by is required.",
        ),
    ] = "_key",
    order_by: Annotated[
        str,
        typer.Option(
            metavar="COLUMNS",
            help="Columns that order the rows with the same key; the last row is the newest.",
        ),
    ] = "",
    deleted_where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Leave out keys whose newest row meets this condition.")
    ] = None,
    partition_by: PartitionBy = "",
    sort: Sort = "",
    keep: Keep = 3600,
    storage_options: StorageOptions = None,
    master: Master = None,
    conf: Conf = None,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Write the newest message for each key to Parquet files, which you read with `seaweedq.spark.read_generation`.
    Each run writes a complete new generation of files.

    The files omit a key if its newest message is a tombstone (null), has expired, or meets the condition in
    --deleted-where. The files also omit messages without a key."""
    with running("compact", master, conf, url) as spark, _usable():
        from seaweedq.spark.jobs.compact import Rules
        from seaweedq.spark.jobs.compact import compact as compacted

        target = _target(to, partition_by, sort, keep, storage_options)
        rules = Rules(_names(key), _names(order_by), deleted_where)
        added = compacted(spark, topic, url, target, rules)
    _say_added(added, output)


@contextmanager
def _usable() -> Iterator[None]:
    """Turns a job's ValueError into a usage error."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(one_line(error)) from None


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _target(to: str, partition_by: str, sort: str, keep_s: float, storage: Mapping[str, Any] | None) -> "Target":
    from seaweedq.spark.jobs.generation_job import Target

    return Target(to, _names(partition_by), _names(sort), keep_s, storage)


def _say_added(added: "Added", output: str) -> None:
    if output == JSON:
        say_json(asdict(added))
        return
    for lost in added.lost:
        complain(f"skipped rows that retention deleted before they were exported: {lost}")
    if added.generation is None:
        say(printable(f"topic {added.topic}: nothing is new; {added.to} is unchanged"))
        return
    text = (
        f"topic {added.topic}: {counted(added.rows, 'row')} of {added.read:,} read are in generation {added.generation}"
    )
    text += f" of {added.to}"
    if added.without_key:
        text += f"; {counted(added.without_key, 'message')} had no key"
    if added.removed:
        text += f"; removed {counted(len(added.removed), 'file')} that are no longer needed"
    say(printable(text))

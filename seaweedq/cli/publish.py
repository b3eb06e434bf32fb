"""`seaweedq publish`: publishes one message, the records of a file or of stdin, or whole files.

A record is accepted, refused or skipped. Refused and skipped records are reported with their file and line. A whole
file becomes one message by reference. Stderr says when brokers have accepted nothing for long."""

import re
import signal
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seaweedq.cli.records import BadRecord, InputFormat, checked, envelope, format_of, key_of, records
from seaweedq.cli.shared.common import (
    DEFAULT_URL,
    Topic,
    Url,
    complain,
    connect,
    counted,
    one_line,
    path_text,
    regular_files,
    remark,
)
from seaweedq.cli.shared.output import TABLE, Output, say_done
from seaweedq.cli.shared.process import interrupted_by_sigterm
from seaweedq.errors import InvalidMessages, MessageTooLarge, SeaweedqError, TopicNotFound, UnreadableBody

if TYPE_CHECKING:
    from rich.progress import Progress

    from seaweedq.client.sync.producer import Producer, Receipt

# More bars than this, and those that are full go.
_BARS = 8


def publish_files(
    topic: str, files: Sequence[Path], key: str | None, content_type: str | None, output: str, url: str
) -> None:
    """Publishes the files in order, and prints `id path` for each. If a file fails, prints its error and ends with exit
    code 1; the files after it may not have been sent. Raises errors that do not concern a single file."""
    sent: list[tuple[Path, Receipt]] = []
    failed = False
    with connect(url) as client, ExitStack() as stack:
        bar = transfer_bar(stack)
        try:
            with client.producer(topic) as producer:
                _send(producer, files, key, content_type, bar, sent)
                for path, receipt in sent:
                    failed = not _report(output, path, receipt) or failed
        except (SeaweedqError, OSError):
            if not failed:
                raise
    if left := [str(path) for path in files[len(sent) :]]:
        complain(f"not sent: {', '.join(left)}")
    if failed:
        raise typer.Exit(1)


def transfer_bar(stack: ExitStack) -> "Progress | None":
    """Returns a progress bar for bytes, if there is a terminal to show it."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    name = TextColumn("{task.description}", markup=False)
    columns: tuple[Any, ...] = (name, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))


def _send(
    producer: "Producer",
    files: Sequence[Path],
    key: str | None,
    content_type: str | None,
    bar: "Progress | None",
    sent: "list[tuple[Path, Receipt]]",
) -> None:
    try:
        for path in files:
            sent.append((path, producer.send_file(path, key, None, content_type, show(bar, path.name))))
    except SeaweedqError:
        if not sent:
            raise
        # It is that of a file before, whose receipt says so.


def _report(output: str, path: Path, receipt: "Receipt") -> bool:
    if error := receipt.exception():
        complain(f"{path}: {one_line(error)}")
        return False
    say_done(output, f"{receipt.result()} {path}", id=str(receipt.result()), path=path_text(path))
    return True


def show(bar: "Progress | None", name: str) -> Callable[[int, int], None] | None:
    """Returns the progress callback for one file."""
    if bar is None:
        return None
    task = bar.add_task(name, total=None, visible=False)

    def update(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total, visible=done < total or len(bar.tasks) <= _BARS)

    return update


DELIVERY_S = 120.0  # the client's default: so long a message is tried
SILENT_S = 2.0
EVERY_S = 0.25
NAMED = 100  # so many messages of a request a broker names at most
REFUSED = (InvalidMessages, MessageTooLarge)


class Publication:
    """Sends records, and tracks the outcome of each. With `skip_invalid`, reports invalid records and leaves them
    out."""

    def __init__(self, producer: "Producer", source: str, skip_invalid: bool) -> None:
        self._producer, self._source, self._skip = producer, source, skip_invalid
        self._sent: deque[tuple[int, Receipt]] = deque()
        self.skipped = 0

    @property
    def acknowledged(self) -> int:
        """Returns how many messages brokers have acknowledged."""
        return self._producer.acknowledged

    @property
    def waiting(self) -> int:
        """Returns how many messages have no answer from a broker yet."""
        return sum(not receipt.done() for _, receipt in self._sent.copy())  # another thread may ask, and send

    def send(self, place: int, arguments: Callable[[], dict[str, Any]]) -> None:
        """Sends the record at a place in the source. Without `skip_invalid`, raises UnreadableBody for an invalid
        record, and the error of a record that a broker refused."""
        try:
            found = arguments()
        except BadRecord as bad:
            self._name(place, str(bad))
            return
        while True:
            try:
                receipt = self._producer.send(**found)
                break
            except (TypeError, ValueError) as error:
                self._name(place, str(error))
                return
            except REFUSED:  # of an earlier record: this one was not sent
                self._name_refused()
        self._sent.append((place, receipt))
        self._name_refused()

    def flush(self) -> None:
        """Returns once each record is either acknowledged or reported. Raises as `send` does."""
        while True:
            try:
                self._producer.flush()
                break
            except REFUSED:
                self._name_refused()
        self._name_refused()

    def _name_refused(self) -> None:
        """Reports the refused records among those whose outcome is known."""
        while self._sent and self._sent[0][1].done():
            place, receipt = self._sent.popleft()
            error = receipt.exception()
            if isinstance(error, REFUSED):
                fields = getattr(error, "fields", {})
                rows = fields.get("errors") or [{"reason": str(error)}]
                hint = f"; {fields['hint']}" if "errors" in fields and "hint" in fields else ""
                self._name(place, f"{rows[0]['reason']}{hint}")
            elif error is not None:
                raise error

    def _name(self, place: int, reason: str) -> None:
        told = f"{self._source}:{place}: {reason}"
        if not self._skip:
            raise UnreadableBody(told)
        complain(told)
        self.skipped += 1


@contextmanager
def watched(publication: Publication, show: Callable[[int], None]) -> Iterator[None]:
    """Shows how many messages are acknowledged. Reports when messages wait but none has been acknowledged for SILENT_S,
    and when that ends."""
    ended = threading.Event()
    thread = threading.Thread(target=_watch, args=(publication, show, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        show(publication.acknowledged)


def _watch(publication: Publication, show: Callable[[int], None], ended: threading.Event) -> None:
    taken, since_s, told = publication.acknowledged, time.monotonic(), False
    while not ended.wait(EVERY_S):
        now_s = time.monotonic()
        if publication.acknowledged != taken or not publication.waiting:
            if told:
                remark(f"brokers accept messages again after {now_s - since_s:.0f} s")
            taken, since_s, told = publication.acknowledged, now_s, False
            show(taken)
        elif not told and now_s - since_s >= SILENT_S:
            until = datetime.now().astimezone() + timedelta(seconds=DELIVERY_S - (now_s - since_s))
            remark(f"no broker has accepted a message for {SILENT_S:g} s; trying until {until:%H:%M:%S}")
            told = True


EXAMPLES = """Examples: seaweedq publish events '{"n": 1}' · seaweedq publish events events.ndjson ·
seaweedq publish flights flights.csv --key-field carrier ·
seaweedq publish logs app.ndjson --skip-invalid ·
echo '{"key": "a", "value": 1}' | seaweedq publish events --envelope ·
seaweedq publish events --count 1000 --rate 50 '{"n": {{n}}, "id": "{{uuid}}"}' ·
seaweedq publish films --file one.mp4 --file two.mp4 --key mine"""

Source = Annotated[
    str | None,
    typer.Argument(
        help="File of records, or one message as JSON, such as '{\"a\": 1}'. Omit FILE, or use -, to read stdin."
    ),
]
InputFormatName = Annotated[
    str | None, typer.Option(help="Format of FILE: ndjson, csv or parquet; by default, the file's suffix decides.")
]
KeyField = Annotated[
    str | None,
    typer.Option(help="Field that contains the message's key, if the topic has no key_field."),
]
Envelope = Annotated[
    bool,
    typer.Option("--envelope", help="Read each NDJSON line as a whole message with key, value, headers and timestamp."),
]
SkipInvalid = Annotated[
    bool, typer.Option("--skip-invalid", help="Report invalid records, and publish all valid records.")
]
BatchSize = Annotated[
    int | None, typer.Option(min=1, max=100_000, help="Maximum number of messages per request; 10,000 by default.")
]
WholeFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--file",
        exists=True,
        dir_okay=False,
        help="Upload this file, of any size, publish it as one message, and print the message's ID. Repeatable.",
    ),
]
FileKey = Annotated[str | None, typer.Option(help="Key of each message that --file publishes.")]
Count = Annotated[
    int | None,
    typer.Option(min=1, help="Publish the message in FILE this many times."),
]
Rate = Annotated[
    float | None, typer.Option(min=0.001, help="Maximum number of messages per second; by default as fast as possible.")
]
SchemaId = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="ID of the schema version to which the records of a typed topic conform; by default, the newest version.",
    ),
]
ContentType = Annotated[
    str | None,
    typer.Option(help="Media type of all files given with --file; by default, each file's suffix decides its type."),
]


@dataclass(frozen=True)
class _RecordOptions:
    """How to read a record: with `envelope` as a whole message, otherwise as a value whose field `key_field` has the
    key."""

    envelope: bool
    key_field: str | None
    skip_invalid: bool

    def arguments(self, record: Any) -> dict[str, Any]:
        """Converts a record to the arguments of `send`. Raises BadRecord."""
        if self.envelope:
            return envelope(record)
        value = {"value": checked(record)}
        return value if self.key_field is None else {**value, "key": key_of(record, self.key_field)}


def publish(
    topic: Topic,
    file: Source = None,
    input_format: InputFormatName = None,
    key_field: KeyField = None,
    envelope: Envelope = False,
    skip_invalid: SkipInvalid = False,
    batch: BatchSize = None,
    count: Count = None,
    rate: Rate = None,
    schema_id: SchemaId = None,
    files: WholeFiles = None,
    key: FileKey = None,
    content_type: ContentType = None,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Publish each record in FILE exactly once. FILE is an NDJSON, CSV or Parquet file, or the JSON text of one
    message.

    The command stops at the first invalid record, and reports the record's line number; all earlier records are
    already published. If the brokers stop answering, the command retries for two minutes.

    With --count, the command replaces {{n}} with the message's number (from 1), {{uuid}} with a random UUID, and
    {{time}} with the current time in UTC."""
    if files:
        of_records: dict[str, Any] = {"FILE": file, "--input-format": input_format, "--key-field": key_field}
        of_records |= {"--batch": batch, "--count": count, "--rate": rate, "--schema-id": schema_id}
        of_records |= {"--envelope": envelope or None, "--skip-invalid": skip_invalid or None}
        _refuse(of_records, "the option is only for records, but --file sends whole files")
        regular_files(files, "--file")
        publish_files(topic, files, key, content_type, output, url)
        return
    _refuse(
        {"--key": key, "--content-type": content_type},
        "the option is only for --file; for records use --key-field or --envelope",
    )
    if count:
        if not file or file == "-":
            raise typer.BadParameter("--count needs a message as FILE, such as '{\"n\": {{n}}}'", param_hint="--count")
        if Path(file).is_file():
            raise typer.BadParameter(
                f"--count repeats one message, but {file!r} is a file; give a message instead", param_hint="FILE"
            )
        _refuse({"--input-format": input_format}, "this option applies only to files, but --count repeats one message")
        message: bytes | None = fill(file, 1, as_text=(as_text := not is_json(file)))
    else:
        message, as_text = _message(file), False
    path = None if message else _existing(file)
    if input_format is not None and input_format not in list(InputFormat):
        raise typer.BadParameter(
            f"{input_format!r} is not one of {', '.join(InputFormat)}", param_hint="--input-format"
        )
    format = InputFormat(input_format) if input_format else format_of(path)
    if message and format is not InputFormat.NDJSON:
        raise typer.BadParameter(
            "this option applies only to files, but the argument FILE is a message, not the name of a file",
            param_hint="--input-format",
        )
    if envelope and (format is not InputFormat.NDJSON or key_field):
        raise typer.BadParameter(
            "--envelope can be used only with NDJSON and without --key-field, because with "
            "--envelope each line states its own key",
            param_hint="--envelope",
        )
    if message is None and path is None and sys.stdin.isatty():
        what = "message" if envelope else "value"
        typer.echo(f"reading messages from the terminal, one JSON {what} per line; press Ctrl-D to end", err=True)
    source = Repeated(file, count, as_text) if count and file else path or message
    options = _RecordOptions(envelope, key_field, skip_invalid)
    _publish_records(topic, source, format, options, batch, rate, schema_id, output, url)


_PLACEHOLDER = re.compile(r"\{\{\s*(\w*)\s*\}\}")
_FILLED: dict[str, Callable[[int], str]] = {
    "n": str,
    "uuid": lambda number: str(uuid.uuid4()),
    "time": lambda number: datetime.now(UTC).isoformat().replace("+00:00", "Z"),
}


@dataclass(frozen=True)
class Repeated:
    """A message to publish `count` times. If it is not JSON, `as_text` is true, and it is published as a string."""

    template: str
    count: int
    as_text: bool

    def records(self) -> Iterator[tuple[int, Any]]:
        """Yields the messages with their numbers, from 1."""
        import msgspec

        for number in range(1, self.count + 1):
            yield number, msgspec.Raw(fill(self.template, number, self.as_text))


def fill(template: str, number: int, as_text: bool) -> bytes:
    """Returns the JSON of one message. Raises BadParameter for an unknown placeholder."""
    import msgspec

    def found(place: "re.Match[str]") -> str:
        if place[1] not in _FILLED:
            known = ", ".join("{{" + name + "}}" for name in _FILLED)
            raise typer.BadParameter(f"unknown placeholder {place[0]}: use {known}", param_hint="FILE")
        return _FILLED[place[1]](number)

    text = _PLACEHOLDER.sub(found, template)
    return msgspec.json.encode(text) if as_text else text.encode()


def is_json(template: str) -> bool:
    """Returns whether the messages are JSON. Raises BadParameter for a template that begins like JSON but is
    invalid."""
    import msgspec

    try:
        checked(msgspec.Raw(fill(template, 1, as_text=False)))
        return True
    except BadRecord as error:
        if re.match(r'\s*(\{\s*"|\[|")', template):
            raise typer.BadParameter(f"{template[:80]!r} is not a message: {error}", param_hint="FILE") from None
        return False


def paced(found: Iterator[tuple[int, Any]], rate: float | None) -> Iterator[tuple[int, Any]]:
    """Yields the records, at most `rate` per second."""
    next_s = time.monotonic()
    for record in found:
        if rate:
            time.sleep(max(0.0, next_s - time.monotonic()))
            next_s = max(next_s, time.monotonic() - 1) + 1 / rate
        yield record


def _message(given: str | None) -> bytes | None:
    """Returns the message in an argument, on one line; None if the argument names a file. Raises BadParameter for an
    argument that begins like a message but is invalid."""
    if given is None or given == "-" or _is_file(given):
        return None
    import msgspec

    try:
        checked(msgspec.Raw(given.encode()))
    except BadRecord as error:
        if not given.lstrip().startswith(("{", "[", '"')):
            return None  # the name of a file that is not there
        raise typer.BadParameter(
            f"{given[:80]!r} is neither a file nor a message: {error}", param_hint="FILE"
        ) from None
    return msgspec.json.format(given.encode(), indent=-1)


def _is_file(given: str) -> bool:
    try:
        return Path(given).exists()
    except (OSError, ValueError):  # too long for a name, or with a null
        return False


def _existing(given: str | None) -> Path | None:
    """Returns a file's path, or None for stdin. Typer's own check for files would take - for a file name."""
    if given is None or given == "-":
        return None
    file = Path(given)
    if not _is_file(given):
        hint = "a message is JSON, such as '{\"a\": 1}'"
        raise typer.BadParameter(f"'{given[:80]}' does not exist; {hint}", param_hint="FILE")
    if file.is_dir():
        raise typer.BadParameter(f"'{file}' is a folder", param_hint="FILE")
    return file


def _publish_records(
    topic: str,
    source: Path | bytes | Repeated | None,
    format: InputFormat,
    options: _RecordOptions,
    batch: int | None,
    rate: float | None,
    schema_id: int | None,
    output: str,
    url: str,
) -> None:
    """Publishes records from a file, from bytes, from a repeated message, or from stdin (None)."""
    started_s = time.monotonic()
    with ExitStack() as stack:
        stack.enter_context(interrupted_by_sigterm())
        name, found = _found(source, format, stack)
        client = stack.enter_context(connect(url))
        new = ""
        try:
            client.segments(topic)  # without any broker it fails at once, the producer late
        except TopicNotFound:
            new = " (new topic)"  # brokers may create it
        at_most = batch or (NAMED if options.skip_invalid else 10_000)
        producer = stack.enter_context(client.producer(topic, batch_messages=at_most, schema_id=schema_id))
        publication = Publication(producer, name, options.skip_invalid)
        stack.enter_context(watched(publication, _acknowledged_bar(stack)))
        try:
            for place, record in paced(found, rate):
                publication.send(place, partial(options.arguments, record))
            publication.flush()
        except (SeaweedqError, OSError):
            with suppress(SeaweedqError):  # waits for what was sent before the record that ends the command
                producer.flush()
            taken = publication.acknowledged
            told = f"published {counted(taken, 'message')} to {topic}; the remaining messages were not published:"
            told = told if taken else f"published nothing to {topic}:"
            say_done(output, told, topic=topic, messages=taken, complete=False)
            raise
        except KeyboardInterrupt as interrupt:
            taken, unknown = publication.acknowledged, publication.waiting
            told = f"published {counted(taken, 'message')} to {topic}; the outcome of {unknown:,} more is unknown"
            say_done(output, told, topic=topic, messages=taken, unknown=unknown, complete=False)
            # No typer.Exit: that is an Exception, at which the producer would publish all that it holds first.
            number = interrupt.args[0] if interrupt.args else signal.SIGINT
            raise SystemExit(128 + number) from None
    took_s = time.monotonic() - started_s
    skipped = f", skipped {publication.skipped:,}" if publication.skipped else ""
    count = publication.acknowledged
    rate = count / max(took_s, 1e-9)
    told = f"published {counted(count, 'message')} to {topic}{new} in {took_s:.1f} s ({rate:,.0f}/s){skipped}"
    facts = {"messages": count, "skipped": publication.skipped, "seconds": took_s}
    say_done(output, told, topic=topic, complete=True, **facts)


def _found(
    source: Path | bytes | Repeated | None, format: InputFormat, stack: ExitStack
) -> tuple[str, Iterator[tuple[int, Any]]]:
    """Returns a source's name and its records."""
    if isinstance(source, Repeated):
        return "FILE", source.records()
    if isinstance(source, bytes):
        return "FILE", records(BytesIO(source), format)
    file = stack.enter_context(source.open("rb")) if source else sys.stdin.buffer
    return source.name if source else "stdin", records(file, format)


def _refuse(options: dict[str, Any], reason: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise typer.BadParameter(reason, param_hint=name)


def _acknowledged_bar(stack: ExitStack) -> Callable[[int], None]:
    """Returns a function that shows the number of acknowledged messages, if there is a terminal."""
    if not sys.stderr.isatty():
        return lambda taken: None
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description} {task.completed:,.0f}"), TimeElapsedColumn())
    progress = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
    task = progress.add_task("acknowledged", total=None)
    return lambda taken: progress.update(task, completed=taken)

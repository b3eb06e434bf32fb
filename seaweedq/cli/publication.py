"""The records, or whole files, of one `seaweedq publish`. A record is taken, refused or skipped, and named by its file
and line if it is not taken; a file is one message by reference. Stderr says if no broker takes anything for long."""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from seaweedq.cli.records import BadRecord
from seaweedq.cli.shared.common import complain, connect, one_line
from seaweedq.cli.shared.output import say_done
from seaweedq.errors import InvalidMessages, MessageTooLarge, SeaweedqError, UnreadableBody

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from seaweedq.client.sync.producer import Producer, Receipt


# More bars than this, and those that are full go.
_BARS = 8


def publish_files(
    topic: str, files: Sequence[Path], key: str | None, content_type: str | None, output: str, url: str
) -> None:
    """Publishes each file, in this order, and prints `id path` for each. A failed file prints its error and ends the
    command with exit code 1; then the files after it may not have been sent. Raises errors that are not those of one
    file."""
    sent: list[tuple[Path, Receipt]] = []
    failed = False
    with connect(url) as client, ExitStack() as stack:
        bar = transfer_bar(stack)
        try:
            with client.producer(topic) as producer:
                _send(producer, files, key, content_type, bar, sent)
                for path, receipt in sent:
                    failed = not _tell(output, path, receipt) or failed
        except (SeaweedqError, OSError):
            if not failed:
                raise
    if left := [str(path) for path in files[len(sent) :]]:
        complain(f"not sent: {', '.join(left)}")
    if failed:
        raise typer.Exit(1)


def transfer_bar(stack: ExitStack) -> "Bar | None":
    """Returns a progress bar for bytes, if there is a terminal to show it."""
    return stack.enter_context(_bar()) if sys.stderr.isatty() else None


def _send(
    producer: "Producer",
    files: Sequence[Path],
    key: str | None,
    content_type: str | None,
    bar: "Bar | None",
    sent: "list[tuple[Path, Receipt]]",
) -> None:
    try:
        for path in files:
            sent.append((path, producer.send_file(path, key, None, content_type, show(bar, path.name))))
    except SeaweedqError:
        if not sent:
            raise
        # It is that of a file before, whose receipt says so.


def _tell(output: str, path: Path, receipt: "Receipt") -> bool:
    if error := receipt.exception():
        complain(f"{path}: {one_line(error)}")
        return False
    say_done(output, f"{receipt.result()} {path}", id=str(receipt.result()), path=str(path))
    return True


def show(bar: "Bar | None", name: str) -> Callable[[int, int], None] | None:
    """Returns the progress callback of one file."""
    if bar is None:
        return None
    task = bar.add_task(name, total=None, visible=False)

    def told(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total, visible=done < total or len(bar.tasks) <= _BARS)

    return told


def _bar() -> "Bar":
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
    return Progress(*columns, console=Console(stderr=True), transient=True)


if TYPE_CHECKING:
    from seaweedq.client.sync.producer import Producer, Receipt

DELIVERY_S = 120.0  # the client's default: so long a message is tried
SILENT_S = 2.0
LOOK_S = 0.25
NAMED = 100  # so many messages of a request a broker names at most
REFUSED = (InvalidMessages, MessageTooLarge)


class Publication:
    """Sends records, and accounts for each. With `skip_invalid` those that are no messages are named, and left out."""

    def __init__(self, producer: "Producer", source: str, skip_invalid: bool) -> None:
        self._producer, self._source, self._skip = producer, source, skip_invalid
        self._sent: deque[tuple[int, Receipt]] = deque()
        self.skipped = 0

    @property
    def taken(self) -> int:
        """Returns how many messages brokers have acknowledged."""
        return self._producer.acknowledged

    @property
    def waiting(self) -> int:
        """Returns how many messages no broker has answered yet."""
        return sum(not receipt.done() for _, receipt in self._sent.copy())  # another thread may ask, and send

    def send(self, place: int, arguments: Callable[[], dict[str, Any]]) -> None:
        """Sends the record at a place of the source. Raises UnreadableBody for one that is no message, and the error of
        a record that was refused; with `skip_invalid` neither."""
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
                self._settle()
        self._sent.append((place, receipt))
        self._settle()

    def flush(self) -> None:
        """Returns once each record is taken or named. Raises as `send` does."""
        while True:
            try:
                self._producer.flush()
                break
            except REFUSED:
                self._settle()
        self._settle()

    def _settle(self) -> None:
        """Names the records that were refused, among those whose outcome is known."""
        while self._sent and self._sent[0][1].done():
            place, receipt = self._sent.popleft()
            error = receipt.exception()
            if isinstance(error, REFUSED):
                self._name(place, _reason(error))
            elif error is not None:
                raise error

    def _name(self, place: int, reason: str) -> None:
        told = f"{self._source}:{place}: {reason}"
        if not self._skip:
            raise UnreadableBody(told)
        complain(told)
        self.skipped += 1


def _reason(error: Exception) -> str:
    rows = getattr(error, "fields", {}).get("errors") or [{"reason": str(error)}]
    return str(rows[0]["reason"])


@contextmanager
def watched(publication: Publication, show: Callable[[int], None]) -> Iterator[None]:
    """Shows how many messages are taken, and says it if none is for SILENT_S though some wait, and when that ends."""
    ended = threading.Event()
    thread = threading.Thread(target=_watch, args=(publication, show, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        show(publication.taken)


def _watch(publication: Publication, show: Callable[[int], None], ended: threading.Event) -> None:
    taken, since_s, told = publication.taken, time.monotonic(), False
    while not ended.wait(LOOK_S):
        now_s = time.monotonic()
        if publication.taken != taken or not publication.waiting:
            if told:
                _note(f"brokers take messages again, after {now_s - since_s:.0f} s")
            taken, since_s, told = publication.taken, now_s, False
            show(taken)
        elif not told and now_s - since_s >= SILENT_S:
            until = datetime.now().astimezone() + timedelta(seconds=DELIVERY_S - (now_s - since_s))
            _note(f"no broker has taken a message for {SILENT_S:g} s; trying until {until:%H:%M:%S}")
            told = True


def _note(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201

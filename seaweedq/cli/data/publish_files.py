"""`seaweedq publish --file`: publishes whole files, each as one message by reference."""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from seaweedq.cli.shared.common import complain, connect, one_line
from seaweedq.cli.shared.output import say_done
from seaweedq.errors import SeaweedqError

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

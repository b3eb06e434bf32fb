"""The live line at the bottom of a broker's terminal: messages in and out, topics, and unacked messages, once per
second.

Everything else that the process prints appears above the line: stdout and stderr are replaced by streams that erase the
line, write, and draw the line again. A thread draws, so a terminal that accepts no output (Ctrl-S) does not stop the
broker. Nothing is drawn while printed text lacks its line end, or while the process is in the background."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from seaweedq.cli.shared.common import counted
from seaweedq.cli.shared.output import cut, terminal_width

if TYPE_CHECKING:
    from seaweedq.broker.broker import Broker

EVERY_S = 1.0
END_S = 0.5  # for a terminal that takes nothing
MOST = 0.02  # the share of the time that figures may take
ERASE = "\r\x1b[2K"


class Figures(NamedTuple):
    """The numbers of messages that a broker has accepted and delivered since its start, and of its topics and unacked
    messages."""

    taken: int
    delivered: int
    topics: int
    behind: int


def figures_of(broker: "Broker") -> Figures:
    """Reads the figures of a ready broker, without a request."""
    room = broker.subscribing
    return Figures(
        broker.log.commit.messages, room.dispatcher.delivered, len(broker.catalog.names()), room.meter.behind()
    )


def text_of(before: Figures, now: Figures, passed_s: float) -> str:
    """Returns the live line, given the figures at two times."""
    taken, delivered = ((new - old) / passed_s for old, new in zip(before[:2], now[:2], strict=True))
    topics = counted(now.topics, "topic")
    return f"in {taken:,.0f}/s · out {delivered:,.0f}/s · {topics} · {now.behind:,} behind"


class LiveLine:
    """Draws the live line below everything that is printed through its streams."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = threading.RLock()
        self._changed = threading.Event()
        self._text = ""
        self._is_drawn, self._line_is_open = False, False
        threading.Thread(target=self._draw_changes, name="live line", daemon=True).start()

    @staticmethod
    def at_terminal() -> "LiveLine | None":
        """Replaces the process's streams if stdout is a terminal. Returns the live line, or None without a terminal."""
        if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
            return None
        line = LiveLine(sys.stdout)
        sys.stdout = line.above(sys.stdout)
        if sys.stderr.isatty():
            sys.stderr = line.above(sys.stderr)
        return line

    def above(self, stream: TextIO) -> Any:
        """Returns a stream that writes above the line."""
        return _Above(stream, self)

    def show(self, text: str) -> None:
        """Sets the text of the line, which is drawn soon."""
        self._text = text
        self._changed.set()

    def end(self) -> None:
        """Erases the line. Nothing is drawn until the next `show`."""
        self._text = ""
        if self._lock.acquire(timeout=END_S):
            try:
                with suppress(OSError):
                    self._draw()
            finally:
                self._lock.release()

    def write_above(self, stream: TextIO, text: str) -> int:
        """Writes to a stream: erases the line, writes, and draws the line again."""
        with self._lock:
            if self._is_drawn:
                self._put(ERASE)
                self._is_drawn = False
            written = stream.write(text)
            stream.flush()
            self._line_is_open = bool(text) and not text.endswith("\n")
            self._draw()
        return written

    def _draw_changes(self) -> None:
        while True:
            self._changed.wait()
            self._changed.clear()
            with self._lock, suppress(OSError):  # the terminal is closed
                self._draw()

    def _draw(self) -> None:
        """Draws the current line. The caller holds the lock."""
        if self._line_is_open or not (self._text or self._is_drawn) or not self._is_in_foreground():
            return
        self._put(ERASE + cut(self._text, (terminal_width() or 80) - 1))
        self._is_drawn = bool(self._text)

    def _put(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

    def _is_in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self._out.fileno()) == os.getpgrp()
        except OSError:  # not the terminal of its session
            return True


class _Above:
    """A stream that writes above the line."""

    def __init__(self, stream: TextIO, line: LiveLine) -> None:
        self._stream, self._line = stream, line

    def write(self, text: str) -> int:
        return self._line.write_above(self._stream, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def shown_live(broker: "Broker", line: LiveLine | None) -> Iterator[None]:
    """Shows a ready broker's figures until the block ends, if there is a live line."""
    if line is None or broker.waiting:
        yield
        return
    drawing = asyncio.create_task(_follow(broker, line), name="live line")
    try:
        yield
    finally:
        drawing.cancel()
        line.end()


async def _follow(broker: "Broker", line: LiveLine) -> None:
    before, seen_s, took_s = figures_of(broker), time.monotonic(), 0.0
    while broker.readiness.ready:
        await asyncio.sleep(max(EVERY_S, took_s / MOST))
        began_s = time.monotonic()
        now = figures_of(broker)
        line.show(text_of(before, now, began_s - seen_s))
        before, seen_s, took_s = now, began_s, time.monotonic() - began_s

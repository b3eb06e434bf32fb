"""`seaweedq pull`: prints a subscription's messages as NDJSON, and acks exactly the printed messages. While no broker
answers, stderr says so, and how long the client keeps trying."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, cast

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, PLACES, Topic, Url, connect, counted, path_text, place, remark
from seaweedq.cli.shared.output import JSON, MessageOutput, message_line
from seaweedq.cli.shared.process import Interrupts
from seaweedq.errors import Forbidden, RateLimited, SeaweedqError, SubscriptionNotFound, TopicNotFound

SILENT_S = 2.0


class Outage:
    """Tracks how long brokers have not answered. The client calls it (`OnRetry`)."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._since_s: float | None = None
        self._told = False

    def __call__(self, error: SeaweedqError | None, left_s: float) -> None:
        """Notes a failure, or, with None, that a broker answers again."""
        now_s = self._monotonic_s()
        if error is None:
            if self._told and self._since_s is not None:
                remark(f"a broker answers again after {now_s - self._since_s:.0f} s")
            self._since_s, self._told = None, False
        elif not isinstance(error, RateLimited):
            self._since_s = now_s if self._since_s is None else self._since_s
            if not self._told and now_s - self._since_s >= SILENT_S:
                until = datetime.now().astimezone() + timedelta(seconds=left_s)
                remark(f"no broker has answered for {now_s - self._since_s:.0f} s; trying until {until:%H:%M:%S}")
                self._told = True


if TYPE_CHECKING:
    from seaweedq.client import Client, Message
    from seaweedq.client.core.pulling import Mode

EXAMPLES = """Examples: seaweedq pull flights --subscription mine --start earliest ·
seaweedq pull events -s tail --follow | jq .value ·
seaweedq pull events -s look --max 3 --nack ·
seaweedq pull events -s workers --mode shared --follow ·
seaweedq pull films -s mine --start earliest --payloads films"""
T = TypeVar("T")
MODES = ("ordered", "shared", "keyed")
_IDLE_S = 1.0
# For a subscription that is created to download what may be large: so long until a message comes again.
_DOWNLOAD_S = 3600.0


def pull(
    topic: Topic,
    subscription: Annotated[
        str,
        typer.Option(
            "--subscription",
            "-s",
            help="Name of the subscription; if the subscription does not exist, the command creates it.",
        ),
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more messages until Ctrl-C.")] = False,
    max: Annotated[int | None, typer.Option("--max", "-n", min=1, help="Stop after this number of messages.")] = None,
    mode: Annotated[
        str | None, typer.Option(help="Mode of the subscription: ordered (the default), shared or keyed.")
    ] = None,
    nack: Annotated[
        bool,
        typer.Option(
            "--nack",
            help="Nack the printed messages when the command ends, so that brokers redeliver them immediately.",
        ),
    ] = False,
    no_ack: Annotated[
        bool, typer.Option("--no-ack", help="Do not ack the messages; brokers redeliver them later.")
    ] = False,
    start: Annotated[str, typer.Option(help=f"Start position of a new subscription: {PLACES}")] = "latest",
    payloads: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Download each payload to this folder, as SEGMENT-OFFSET.bin."),
    ] = None,
    output: MessageOutput = JSON,
    url: Url = DEFAULT_URL,
) -> None:
    """Print a subscription's messages, one JSON object per line, and ack them. The command ends when no message has
    arrived for a second.

    With --payloads, the command fails at a message whose payload is damaged or missing, and does not ack this
    message. If the brokers stop answering, the command retries for half a minute."""
    if nack and no_ack:
        raise typer.BadParameter("use either --nack or --no-ack", param_hint="--nack")
    if mode not in (None, *MODES):
        raise typer.BadParameter(f"the mode must be one of {', '.join(MODES)}, not {mode!r}", param_hint="--mode")
    with ExitStack() as stack:
        client = stack.enter_context(connect(url, Outage()))
        batch, deadline_s = (min(max or 500, 500), 30.0) if payloads is None else (1, _DOWNLOAD_S)
        idle_s = None if follow else _IDLE_S
        begin = place(start, "--start")
        is_new = _is_new(client, topic, subscription)
        messages = client.subscribe(topic, subscription, begin, idle_s, batch, deadline_s, cast("Mode | None", mode))
        if follow and is_new and start == "latest":
            _tell_begin(topic, subscription)
        lines = (
            ((message, message_line(message.json, output)) for message in messages)
            if payloads is None
            else _downloaded(messages, payloads, output, stack)
        )
        interrupts = stack.enter_context(Interrupts())
        back: list[Message] = []
        stack.callback(_give_back, back)  # once nothing more is pulled
        out, count = sys.stdout.buffer, 0
        for count, (message, line) in enumerate(interrupts.until_stopped(lines), 1):
            out.write(line + b"\n")
            out.flush()
            if nack:
                back.append(message)
            elif not no_ack:
                message.ack()
            if count == max:
                break
        if not (count or follow or interrupts.stopped):
            _tell_nothing(client, topic, subscription, start, is_new)
    if interrupts.stopped:
        done = "given back" if nack else "not acked" if no_ack else "acked"
        typer.echo(f"pulled {counted(count, 'message')} of {topic}: {done}", err=True)
        if not follow or max is not None:  # else a signal alone ends it
            raise typer.Exit(128 + interrupts.stopped)


def _is_new(client: "Client", topic: str, subscription: str) -> bool:
    """Returns whether a subscription does not exist yet, as far as the caller may know."""
    try:
        client.subscription(topic, subscription)
    except (SubscriptionNotFound, TopicNotFound):
        return True
    except Forbidden:
        pass
    return False


def _tell_begin(topic: str, subscription: str) -> None:
    typer.echo(
        f"subscription {subscription} of topic {topic} is new, and receives only messages published from now on; "
        "with --start earliest, a new subscription starts at the first message",
        err=True,
    )


def _tell_nothing(client: "Client", topic: str, subscription: str, start: str, is_new: bool) -> None:
    """Explains why nothing was printed, if the topic may still have messages."""
    with suppress(Forbidden, SubscriptionNotFound, TopicNotFound):
        lag = client.subscription(topic, subscription)["lag_total"]
        if lag["in_flight"]:
            held = f"{lag['in_flight']:,} of the {counted(lag['messages'], 'message')}"
            typer.echo(f"other consumers of {subscription} hold {held} under leases, so it has none for you", err=True)
            return
    if is_new and start == "latest":
        _tell_begin(topic, subscription)
    elif not is_new and start != "latest":
        typer.echo(f"subscription {subscription} already exists; --start applies only to a new subscription", err=True)
    else:
        return
    typer.echo(f"to move the subscription: seaweedq subscription seek {topic} {subscription} --to earliest", err=True)


def _downloaded(
    messages: Iterator["Message"], folder: Path, output: str, stack: ExitStack
) -> Iterator[tuple["Message", bytes]]:
    """Yields each message once its payload is downloaded. The file name contains no text that a publisher chose."""
    import msgspec

    from seaweedq.cli.publish import show, transfer_bar

    folder.mkdir(parents=True, exist_ok=True)
    bar = transfer_bar(stack)
    for message in messages:
        line = message.json
        if message.reference:
            path = folder / f"{message.segment}-{message.offset}.bin"
            message.download(path, show(bar, path.name))
            line = line[:-1] + b',"payload":' + msgspec.json.encode(path_text(path)) + b"}"
        yield message, message_line(line, output)


def _give_back(messages: list["Message"]) -> None:
    for message in messages:
        message.nack(delay_s=0)

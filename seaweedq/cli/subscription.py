"""`seaweedq subscription`: create, list, show, watch, seek, pause, resume, delete; tables of subscriptions and their
lag."""

import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from seaweedq.cli.shared.common import (
    DEFAULT_URL,
    PLACES,
    Topic,
    Url,
    complain,
    connect,
    duration,
    one_line,
    place,
    printable,
    run,
    say,
)
from seaweedq.cli.shared.output import (
    JSON,
    TABLE,
    Column,
    Output,
    columns,
    drawing,
    say_done,
    say_json,
    say_page,
    say_table,
    sparkline,
)
from seaweedq.errors import ConnectionFailed, Unavailable

if TYPE_CHECKING:
    from seaweedq.client import Client

LISTED = columns(
    "name, mode, state, messages, behind, in flight, consumers", numbers="messages, behind, in flight, consumers"
)
LAG = {"messages": "messages", "bytes": "bytes", "seconds": "behind", "in_flight": "in flight", "skipped": "skipped"}
_SEGMENTS = (Column("segment"), *(Column(name, number=True) for name in ("acked to", "end", *LAG.values())))
_APART = ("lag", "lag_total", "seek_epoch")  # tables of their own, and what only programs compare


def print_list(topic: str, found: Sequence[Mapping[str, Any]], output: str) -> None:
    """Prints a row for each subscription."""
    say_table(output, LISTED, map(_listed, found), f"topic {topic} has no subscription")


def print_one(found: Mapping[str, Any], output: str) -> None:
    """Prints a subscription's configuration, a row for each segment with a cursor, and a row with the totals."""
    say_page((name, _text(value)) for name, value in found.items() if name not in _APART)
    rows = [
        (f"{one['segment']}", f"{one['acked_to']:,}", f"{one['end_offset']:,}", *_lag_of(one)) for one in found["lag"]
    ]
    rows.append(("all", "", "", *_lag_of(found["lag_total"])))
    say_table(output, _SEGMENTS, rows)


def in_words(seconds: float) -> str:
    """Formats a duration for people: `0.5 s`, `3 min`, `2 h`, `4 d`."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.3g} s"


def _listed(one: Mapping[str, Any]) -> tuple[str, ...]:
    lag = one["lag_total"]
    state = "paused" if one.get("paused") else lag.get("stalled") or "active"
    numbers = (f"{lag['messages']:,}", in_words(lag["seconds"]), f"{lag['in_flight']:,}")
    return (one["name"], one["mode"], str(state), *numbers, f"{one.get('consumers', ''):,}")


def _lag_of(lag: Mapping[str, Any]) -> list[str]:
    return [in_words(lag[name]) if name == "seconds" else f"{lag[name]:,}" for name in LAG]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items() if item)
    return "" if value is None else printable(str(value))


app = typer.Typer(no_args_is_help=True, help="Create, list, show, watch, seek, pause, resume and delete subscriptions.")
Name = Annotated[str, typer.Argument(help="Name of the subscription.", show_default=False)]
CREATE = """Examples: seaweedq subscription create flights billing --start earliest ·
seaweedq subscription create flights mails --mode keyed --backoff-s 1s --backoff-s 1m --max-attempts 5
--dead-letter-topic lost"""
WATCH = """Examples: seaweedq subscription watch flights billing --every-s 5 ·
seaweedq subscription watch flights billing --once"""
SEEK = """Examples: seaweedq subscription seek flights billing --to earliest ·
seaweedq subscription seek flights billing --to 5m ·
seaweedq subscription seek flights billing --to 2026-01-31T12:00:00Z ·
seaweedq subscription seek flights billing --offset 0=17"""


@app.command(epilog=CREATE)
def create(
    topic: Topic,
    name: Name,
    mode: Annotated[
        str | None, typer.Option(help="Mode of the subscription: ordered (the default), shared or keyed.")
    ] = None,
    start: Annotated[str | None, typer.Option(help=f"Start position: {PLACES}")] = None,
    ack_deadline_s: Annotated[float | None, duration("Redeliver a message that is not acked within this time.")] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(help="Number of failed deliveries after which a message becomes a dead letter; 0 means never."),
    ] = None,
    dead_letter_topic: Annotated[
        str | None, typer.Option(help="Topic to which the broker publishes dead letters.")
    ] = None,
    backoff_s: Annotated[
        list[float] | None,
        duration(
            "Delay before a failed message is redelivered. If you repeat --backoff-s, the first delay applies after "
            "the first failed delivery, the second delay after the second failed delivery, and so on. The last delay "
            "also applies after every later failed delivery."
        ),
    ] = None,
    max_in_flight: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of messages that all consumers of the subscription together may hold, delivered but "
            "not acked yet."
        ),
    ] = None,
    key_prefix: Annotated[
        str | None, typer.Option(help="Deliver only messages whose keys begin with this text.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(help="Deliver only messages with this header, as NAME=VALUE.")
    ] = None,
    expires_after_s: Annotated[
        float | None, duration("Delete the subscription after this time without a consumer.")
    ] = None,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Create a subscription, or check that an existing subscription matches the given options."""
    headers = dict(_pair(text, "--header", "NAME=VALUE") for text in header or ())
    config = {
        "mode": mode,
        "start": None if start is None else place(start, "--start"),
        "ack_deadline_s": ack_deadline_s,
        "max_attempts": max_attempts,
        "dead_letter_topic": dead_letter_topic,
        "backoff_s": backoff_s or None,
        "max_in_flight": max_in_flight,
        "filter": _present({"key_prefix": key_prefix, "headers": headers or None}) or None,
        "expires_after_s": expires_after_s,
    }
    from seaweedq.client.core.calls import create as creating
    from seaweedq.client.core.calls import subscription_path

    created = run(url, creating(subscription_path(topic, name), _present(config)))
    state = "is created" if created else "already exists, with the same options"
    say_done(output, f"subscription {name} of topic {topic} {state}", topic=topic, name=name, created=created)


@app.command("list", epilog="Examples: seaweedq subscription list flights · seaweedq subscription list flights -o json")
def list_subscriptions(topic: Topic, output: Output = TABLE, url: Url = DEFAULT_URL) -> None:
    """List a topic's subscriptions with their lag."""
    with connect(url) as client:
        found = client.subscriptions(topic)
    if output == JSON:
        for one in found:
            say_json(one)
    else:
        print_list(topic, found, output)


@app.command(epilog="Examples: seaweedq subscription show flights billing -o json | jq .lag_total.messages")
def show(topic: Topic, name: Name, output: Output = TABLE, url: Url = DEFAULT_URL) -> None:
    """Show a subscription's configuration, and its lag for each segment."""
    with connect(url) as client:
        found = client.subscription(topic, name)
    if output == JSON:
        say_json(found)
    else:
        print_one(found, output)


@app.command(epilog=SEEK)
def seek(
    topic: Topic,
    name: Name,
    to: Annotated[str | None, typer.Option(help=f"New position: {PLACES}")] = None,
    offset: Annotated[
        list[str] | None,
        typer.Option(help="New position in one segment, as SEGMENT=OFFSET."),
    ] = None,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Move a subscription to another position, end all leases, and redeliver all messages after the new position, even
    acked messages."""
    if (to is None) == (not offset):
        raise typer.BadParameter("use either --to or --offset", param_hint="--to")
    where = place(to, "--to") if to is not None else {"offsets": _offsets(offset or [])}
    with connect(url) as client:
        done = client.seek(topic, name, where)
    if output == JSON:
        say_json(done)
        return
    for one in done["segments"]:
        taken = ", because retention has deleted the messages before" if one["segment"] in done["moved"] else ""
        say(f"segment {one['segment']}: from {one['from']:,} to {one['to']:,}{taken}")
    say(f"subscription {name} of topic {topic} continues there")


@app.command(epilog="Example: seaweedq subscription pause flights billing")
def pause(topic: Topic, name: Name, output: Output = TABLE, url: Url = DEFAULT_URL) -> None:
    """Pause delivery until the subscription is resumed. Brokers still accept acks."""
    with connect(url) as client:
        client.update_subscription(topic, name, paused=True)
    say_done(output, f"subscription {name} of topic {topic} is paused", topic=topic, name=name, paused=True)


@app.command(epilog="Example: seaweedq subscription resume flights billing")
def resume(topic: Topic, name: Name, output: Output = TABLE, url: Url = DEFAULT_URL) -> None:
    """Resume delivery of a paused subscription."""
    with connect(url) as client:
        client.update_subscription(topic, name, paused=False)
    say_done(
        output, f"subscription {name} of topic {topic} delivers messages again", topic=topic, name=name, paused=False
    )


@app.command(epilog=WATCH)
def watch(
    topic: Topic,
    name: Name,
    once: Annotated[bool, typer.Option("--once", help="Print the output once, and exit.")] = False,
    every_s: Annotated[float, duration("Refresh interval.", 0.2)] = 1.0,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Show a subscription's lag live until Ctrl-C, with the ack rate of its consumers and the estimated time until the
    lag is zero."""
    from rich.live import Live
    from rich.text import Text

    from seaweedq.cli.shared.process import Interrupts

    console, behind = drawing(), deque[float](maxlen=60)
    with ExitStack() as stack:
        client = stack.enter_context(connect(url))
        looks = stack.enter_context(Interrupts()).until_stopped(_looks(client, topic, name, every_s))
        is_live = console.is_terminal and output != JSON and not once
        live = stack.enter_context(Live(console=console, auto_refresh=False)) if is_live else None
        before: Look | None = None
        for look in looks:
            if isinstance(look, str):
                complain(look)
            elif output == JSON:
                say_json({"time": datetime.now(UTC), "topic": topic, "name": name, **look.found["lag_total"]})
            else:
                behind.append(look.found["lag_total"]["messages"])
                line = f"{datetime.now():%H:%M:%S}  {told(look, before)}"
                if live:
                    live.update(Text(f"{line}  {sparkline(behind)}"), refresh=True)
                else:
                    say(line)
                before = look
            if once:
                break


class Look(NamedTuple):
    """A subscription as a broker showed it, and when (monotonic clock, in seconds)."""

    at_s: float
    found: Mapping[str, Any]


def _looks(client: "Client", topic: str, name: str, every_s: float) -> Iterator[Look | str]:
    """Yields the subscription immediately and then periodically, or the error of a request that may be repeated."""
    yield Look(time.monotonic(), client.subscription(topic, name))
    while True:
        time.sleep(every_s)
        try:
            yield Look(time.monotonic(), client.subscription(topic, name))
        except (Unavailable, ConnectionFailed) as error:
            yield one_line(error)


def told(look: Look, before: Look | None) -> str:
    """Describes the lag in one line. With the previous state, the line also has the ack rate, and the time until the
    subscription has caught up."""
    lag = look.found["lag_total"]
    line = f"{lag['messages']:,} messages behind ({in_words(lag['seconds'])}), {lag['in_flight']:,} in flight"
    if before is None:
        return line
    earlier = {one["segment"]: one["acked_to"] for one in before.found["lag"]}
    acked = sum(one["acked_to"] - earlier.get(one["segment"], one["acked_to"]) for one in look.found["lag"])
    took_s = max(look.at_s - before.at_s, 1e-9)
    line = f"{line}, acked {max(acked, 0) / took_s:,.0f}/s"
    caught_up = (before.found["lag_total"]["messages"] - lag["messages"]) / took_s
    if not lag["messages"] or caught_up <= 0:
        return line
    return f"{line}, caught up in {in_words(lag['messages'] / caught_up)}"


@app.command(epilog="Example: seaweedq subscription delete flights billing --yes")
def delete(
    topic: Topic,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Delete a subscription and its acknowledgement state."""
    with connect(url) as client:
        client.subscription(topic, name)
        if not yes:
            typer.confirm(f"Delete subscription {name} of topic {topic}?", abort=True, err=True)
        client.delete_subscription(topic, name)
    say_done(output, f"subscription {name} of topic {topic} was deleted", topic=topic, name=name, deleted=True)


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise typer.BadParameter(f"the value must have the form {form}, not {text!r}", param_hint=option)
    return name, value


def _offsets(texts: list[str]) -> dict[int, int]:
    pairs = [_offset(text) for text in texts]
    twice = [segment for segment, count in Counter(segment for segment, _ in pairs).items() if count > 1]
    if twice:
        raise typer.BadParameter(
            f"segment {twice[0]} is given more than once; give each segment once", param_hint="--offset"
        )
    return dict(pairs)


def _offset(text: str) -> tuple[int, int]:
    segment, offset = _pair(text, "--offset", "SEGMENT=OFFSET")
    if not (segment.isdecimal() and offset.isdecimal()):
        raise typer.BadParameter(
            f"the value must have the form SEGMENT=OFFSET, such as 3=17, not {text!r}", param_hint="--offset"
        )
    return int(segment), int(offset)


def _present(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}

"""`seaweedq topic tail`: prints a topic's newest messages, and follows new ones, without a subscription."""

import re
import time
from collections.abc import Iterator
from itertools import cycle
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Topic, Url, complain, connect, one_line, say
from seaweedq.cli.shared.contexts import credentials_of
from seaweedq.cli.shared.output import JSON, MessageOutput, message_line
from seaweedq.errors import BelowRetention, Unavailable

if TYPE_CHECKING:
    import httpx

    from seaweedq.client import Client, Message
    from seaweedq.client.http import Credentials

EXAMPLES = """Examples: seaweedq topic tail flights ·
seaweedq topic tail flights -n 0 --follow ·
seaweedq topic tail flights --key UA | jq .value"""
PAGE = 1_000
LOOKED_AT = 100_000  # of a segment, for messages of one key
SILENT_S = 60.0  # a stream without messages has a comment each 15 s
PAUSE_S = 1.0


def tail(
    topic: Topic,
    number: Annotated[int, typer.Option("--number", "-n", min=0, max=PAGE, help="Number of messages.")] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Also print new messages until Ctrl-C.")] = False,
    key: Annotated[str | None, typer.Option(help="Print only messages with this key.")] = None,
    output: MessageOutput = JSON,
    url: Url = DEFAULT_URL,
) -> None:
    """Print a topic's newest messages, one JSON object per line, without a subscription."""
    from seaweedq.cli.shared.process import Interrupts

    with connect(url) as client:
        segments = client.segments(topic)
        for line in _newest(client, topic, segments, number, key):
            say(message_line(line, output).decode())
        if follow:
            start = ",".join(f"{one['id']}-{one['end_offset']}" for one in segments if one["state"] == "open")
            with Interrupts() as interrupts:
                for coming in interrupts.until_stopped(_coming(url, topic, start, key)):
                    say(message_line(coming.encode(), output).decode())


def _newest(client: "Client", topic: str, segments: list[dict[str, Any]], number: int, key: str | None) -> list[bytes]:
    """Returns the newest messages by timestamp: first from open segments, then from older segments until there are
    enough."""
    found: list[Message] = []
    near = segments if key is None else _of_key(segments, key)
    newest_first = sorted(near, key=lambda one: (one["state"] != "open", -one["id"]))
    for segment in newest_first if number else ():
        if segment["state"] != "open" and len(found) >= number:
            break
        found += read_last(client, topic, segment, number, key)
    found.sort(key=lambda message: (message.timestamp, message.segment, message.offset))
    return [message.json for message in found[-number:]]


def _of_key(segments: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Returns the segments whose key range includes this key; no other segment can contain its messages."""
    from seaweedq.segments.keyrange import hash_key

    hashed = hash_key(key)
    return [one for one in segments if one["low"] <= hashed < one["high"]]


def read_last(client: "Client", topic: str, segment: dict[str, Any], number: int, key: str | None) -> "list[Message]":
    """Returns the last messages of a segment, optionally only those with one key. Reads pages backwards."""
    found: list[Message] = []
    start, end = segment["start_offset"], segment["end_offset"]
    if key is not None and end - start > LOOKED_AT:
        complain(f"only the newest {LOOKED_AT:,} messages of segment {segment['id']} were searched for the key")
        start = end - LOOKED_AT
    size = number if key is None else PAGE
    while start < end and len(found) < number:
        try:
            page = [*_page(client, topic, segment["id"], max(start, end - size), end)]
        except BelowRetention as error:  # it takes files meanwhile
            start = int(error.fields["start_offset"])
            continue
        found = [*(message for message in page if key is None or message.key == key), *found]
        end = max(start, end - size)
    return found[-number:]


def _page(client: "Client", topic: str, segment: int, low: int, end: int) -> "Iterator[Message]":
    while low < end and (got := client.fetch(topic, segment, low, min(PAGE, end - low))).next_offset > low:
        yield from got.messages
        low = got.next_offset


def _coming(url: str, topic: str, start: str, key: str | None) -> Iterator[str]:
    """Yields new messages from the topic's stream, and continues at the next broker if a broker stops."""
    import httpx

    credentials = credentials_of(url)
    urls = [f"{one.strip().rstrip('/')}/v1/topics/{topic}/stream" for one in url.split(",")]
    timeout, verify = httpx.Timeout(10.0, read=SILENT_S), credentials.verify(urls[0])
    with httpx.Client(timeout=timeout, params={"start": start}, verify=verify) as http:
        for line in _of_any(http, credentials, urls, start):
            if key is None or _key_of(line) == key:
                yield line


def _of_any(http: "httpx.Client", credentials: "Credentials", urls: list[str], start: str) -> Iterator[str]:
    import httpx

    at: dict[str, str] = {}
    told = False
    for url in cycle(urls):
        try:
            for line in _listen(http, credentials, url, at):
                told = False
                yield line
        except BelowRetention as error:
            complain(f"{one_line(error)}; continuing there")
            at["last-event-id"] = raise_positions(at.get("last-event-id", start), error)
        except (httpx.TransportError, Unavailable) as error:
            if not told:
                complain(f"{one_line(error)}; trying again")
            told = True
        time.sleep(PAUSE_S)


def raise_positions(positions: str, error: BelowRetention) -> str:
    """Returns the positions, with one segment's position moved to its start if retention has deleted the messages
    before."""
    segment, start = error.fields["segment"], error.fields["start_offset"]
    return re.sub(rf"(?<![0-9]){segment}-[0-9]+", f"{segment}-{start}", positions)


def _listen(http: "httpx.Client", credentials: "Credentials", url: str, at: dict[str, str]) -> Iterator[str]:
    """Yields the messages of one broker's stream. Stores in `at` the header with which another stream continues."""
    with http.stream("GET", url, headers={**at, **credentials.headers()}) as answer:
        _check(answer)
        for position, batch in parse_batches(split_lines(answer.iter_text())):
            at["last-event-id"] = position
            yield from batch


def _check(answer: Any) -> None:
    from seaweedq.client.core.effects import Reply
    from seaweedq.client.core.problems import error_of

    if answer.status_code != 200:
        answer.read()
        raise error_of(Reply(answer.status_code, dict(answer.headers), answer.content))


def split_lines(pieces: Iterator[str]) -> Iterator[str]:
    """Yields the lines of a text. httpx would also split at U+2028 and U+0085, which a message may contain."""
    rest = ""
    for piece in pieces:
        *whole, rest = (rest + piece).split("\n")
        yield from whole


def parse_batches(lines: Iterator[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields the messages of an event stream batch by batch, each batch with the position after it, at which a stream
    continues. A batch that was cut off is left out, because the next stream delivers it again."""
    batch: list[str] = []
    position = event = ""
    for line in lines:
        name, _, data = line.partition(": ")
        if not line:
            if position:
                yield position, batch
                batch = []
            position = event = ""
        elif name == "event":
            event = data
        elif name == "id":
            position = data
        elif name == "data" and event != "bye":
            batch.append(data)


def _key_of(data: str) -> Any:
    import msgspec

    return msgspec.json.decode(data).get("key")

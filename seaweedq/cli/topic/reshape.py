"""`seaweedq topic split`, `merge`, `roll` and `move`: change segments manually."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Topic, Url, connect, run, say
from seaweedq.cli.shared.output import JSON, TABLE, Output, say_done, say_json

SPLIT = """Examples: seaweedq topic split flights 0 · seaweedq topic split flights 0 --parts 4 ·
seaweedq topic split flights 0 --at 500000000 --at 1000000000"""
MERGE = "Example: seaweedq topic merge flights 1 2"
ROLL = "Example: seaweedq topic roll flights 3"
MOVE = (
    "Examples: seaweedq topic move flights 3 --to broker-2 · seaweedq topic move flights 3 --to broker.1f2e03c5a8b94d67"
)
WAIT_S = 600.0  # on top of it: what publish_timeout_s can be

Segment = Annotated[int, typer.Argument(min=0, help="Id of the segment.", show_default=False)]


def split(
    topic: Topic,
    segment: Segment,
    parts: Annotated[int | None, typer.Option(min=2, max=32, help="Number of equal ranges; 2 by default.")] = None,
    at: Annotated[
        list[int] | None, typer.Option(min=1, help="A key hash where a part begins; may be repeated, in rising order.")
    ] = None,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Replace a segment by several, each with a part of its key range."""
    if parts and at:
        raise typer.BadParameter("--at excludes --parts", param_hint="--at")
    _replace(url, output, topic, segment, "split", {"at": at} if at else {"parts": parts or 2})
    if output == JSON:
        return
    with connect(url) as client:
        facts = client.topic(topic)
    if kept := until_merged(topic, facts["scaling"], facts["segments"]):
        say(kept)


def merge(
    topic: Topic,
    segment: Segment,
    neighbour: Annotated[
        int, typer.Argument(min=0, help="Id of a neighbour of the first segment.", show_default=False)
    ],
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Replace two neighbouring segments by one. If they have two owners, the second segment moves first."""
    _replace(url, output, topic, segment, "merge", {"with": neighbour})


def roll(topic: Topic, segment: Segment, output: Output = TABLE, url: Url = DEFAULT_URL) -> None:
    """Replace a segment by one with the same key range and files of its own."""
    _replace(url, output, topic, segment, "roll", None)


def move(
    topic: Topic,
    segment: Segment,
    to: Annotated[str, typer.Option(help="Id or given name of the broker.", show_default=False)],
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Move a segment to another broker."""
    answer = _ask(url, topic, segment, "move", {"to": to})
    if "to" in answer:
        say_done(output, f"segment {segment} is still moving from {answer['owner']} to {answer['to']}", **answer)
    else:
        say_done(output, f"segment {segment} is owned by {answer['owner']}", **answer)


def until_merged(topic: str, policy: Mapping[str, Any], segments: int) -> str | None:
    """Returns how to keep a topic's segments, where the balancer merges them once they are idle; None where it does
    not."""
    if not policy["enabled"] or policy["min_segments"] >= segments:
        return None
    return (
        f"the balancer merges segments with little load after {policy['cool_down_s']:g} s; to keep {segments}: "
        f"seaweedq topic set {topic} --min-segments {segments}"
    )


def _replace(url: str, output: str, topic: str, segment: int, change: str, body: Mapping[str, Any] | None) -> None:
    answer = _ask(url, topic, segment, change, body)
    if output == JSON:
        say_json(answer)
        return
    said = "is in progress: their keys will belong to" if "planned" in answer else "is done: their keys now belong to"
    old = ", ".join(map(str, answer.get("planned") or answer["sealed"]))
    say(f"{change} of {old} {said}")
    for one in answer["successors"]:
        say(
            f"  segment {one['id']}: keys {one['low']} to {one['high']}, at {one['owner'] or 'a broker yet to be seen'}"
        )


def _ask(url: str, topic: str, segment: int, change: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
    """Sends a request and returns the answer, with a timeout as long as brokers may wait."""
    from seaweedq.client.core import calls

    path = f"{calls.topic_path(topic)}/segments/{segment}/{change}"
    answer: dict[str, Any] = run(url, calls.call("POST", path, body, wait_s=WAIT_S))
    return answer

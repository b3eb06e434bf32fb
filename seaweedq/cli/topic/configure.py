"""`seaweedq topic create`, `set` and `edit`: configure a topic with options or in an editor; `split`, `merge`, `roll`
and `move`: change segments manually."""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Annotated, Any

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Topic, Url, complain, connect, counted, duration, run, say, size
from seaweedq.cli.shared.output import JSON, TABLE, Output, say_done, say_json
from seaweedq.errors import ClientError

CREATE = """Examples: seaweedq topic create shipments --key-field customer --max-segments 64 ·
seaweedq topic create rides --format typed --schema rides.json --key-field city"""
SET = """Examples: seaweedq topic set flights --retention-max-age-s 7d --keep-unread ·
seaweedq topic set flights --retention-max-bytes 1GB --dry-run ·
seaweedq topic set flights --default retention-max-age-s"""

FlushMaxBytes = Annotated[
    int | None,
    size("When a segment's messages that are not in files yet reach this total size, write them to a Parquet file."),
]
FlushMaxAge = Annotated[
    float | None,
    duration(
        "When the oldest of a segment's messages that are not in files yet reaches this age, write these messages to a "
        "Parquet file."
    ),
]
RetentionMaxAge = Annotated[float | None, duration("Delete messages that are older than this duration.")]
RetentionMaxBytes = Annotated[
    int | None, size("Delete the oldest messages when the topic's stored size exceeds this size.")
]
MaxPayloadBytes = Annotated[
    int | None,
    size("Maximum size of an uploaded payload, up to the broker's setting max_payload_bytes."),
]
Ndjson = Annotated[
    str | None,
    typer.Option(help="Content of each NDJSON line: a whole message (envelope, the default) or only its value (bare)."),
]
Compatibility = Annotated[
    str | None,
    typer.Option(help="Allowed changes of a typed topic's schema: backward (the default), forward, full or none."),
]
TargetMessages = Annotated[
    int | None, typer.Option(help="Split segments that stay above this number of messages per second.")
]
TargetBytes = Annotated[int | None, size("Split segments that stay above this number of bytes per second.")]
MinSegments = Annotated[int | None, typer.Option(help="Minimum number of segments of the topic.")]
MaxSegments = Annotated[int | None, typer.Option(help="Maximum number of segments of the topic.")]
CoolDown = Annotated[float | None, duration("Merge segments that stay idle for this long.")]
Scaling = Annotated[bool | None, typer.Option("--scaling/--no-scaling", help="Split and merge segments automatically.")]
# The places of options in the configuration. `set --default` takes those of the first table back.
_DEFAULTS: dict[str, tuple[str, ...]] = {
    "flush-max-bytes": ("flush", "max_bytes"),
    "flush-max-age-s": ("flush", "max_age_s"),
    "retention-max-age-s": ("retention", "max_age_s"),
    "retention-max-bytes": ("retention", "max_bytes"),
    "max-payload-bytes": ("max_payload_bytes",),
    "ndjson": ("ndjson",),
    "compatibility": ("compatibility",),
    "target-messages-per-s": ("scaling", "target_messages_per_s"),
    "target-bytes-per-s": ("scaling", "target_bytes_per_s"),
    "min-segments": ("scaling", "min_segments"),
    "max-segments": ("scaling", "max_segments"),
    "cool-down-s": ("scaling", "cool_down_s"),
    "scaling": ("scaling", "enabled"),
}
_PLACES = _DEFAULTS | {
    "format": ("format",),
    "key-field": ("key_field",),
    "segments": ("initial_segments",),
    "keep-unread": ("retention", "keep_unread"),
    "delete-read": ("retention", "delete_read"),
}


def create(
    context: typer.Context,
    topic: Topic,
    format: Annotated[
        str | None, typer.Option(help="Format of the messages' values: json (the default), bytes or typed.")
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="File with the Iceberg schema of a typed topic, as JSON."),
    ] = None,
    key_field: Annotated[
        str | None, typer.Option(help="Top-level field of each message's value; this field supplies the key.")
    ] = None,
    segments: Annotated[int | None, typer.Option(help="Initial number of segments, 1 to 1,024.")] = None,
    flush_max_bytes: FlushMaxBytes = None,
    flush_max_age_s: FlushMaxAge = None,
    retention_max_age_s: RetentionMaxAge = None,
    retention_max_bytes: RetentionMaxBytes = None,
    max_payload_bytes: MaxPayloadBytes = None,
    ndjson: Ndjson = None,
    compatibility: Compatibility = None,
    target_messages_per_s: TargetMessages = None,
    target_bytes_per_s: TargetBytes = None,
    min_segments: MinSegments = None,
    max_segments: MaxSegments = None,
    cool_down_s: CoolDown = None,
    scaling: Scaling = None,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Create a topic, or check that an existing topic matches the given options."""
    config = _placed(context.params)
    if schema is not None:
        config["schema"] = _schema(schema)
    from seaweedq.client.core.calls import create as creating
    from seaweedq.client.core.calls import topic_path

    created = run(url, creating(topic_path(topic), config))
    state = "is created" if created else "already exists, with the same options"
    say_done(output, f"topic {topic} {state}", topic=topic, created=created)


def change(
    context: typer.Context,
    topic: Topic,
    flush_max_bytes: FlushMaxBytes = None,
    flush_max_age_s: FlushMaxAge = None,
    retention_max_age_s: RetentionMaxAge = None,
    retention_max_bytes: RetentionMaxBytes = None,
    keep_unread: Annotated[
        bool | None,
        typer.Option("--keep-unread/--no-keep-unread", help="Keep messages until every subscription has acked them."),
    ] = None,
    delete_read: Annotated[
        bool | None,
        typer.Option(
            "--delete-read/--no-delete-read", help="Delete messages as soon as every subscription has acked them."
        ),
    ] = None,
    max_payload_bytes: MaxPayloadBytes = None,
    ndjson: Ndjson = None,
    compatibility: Compatibility = None,
    target_messages_per_s: TargetMessages = None,
    target_bytes_per_s: TargetBytes = None,
    min_segments: MinSegments = None,
    max_segments: MaxSegments = None,
    cool_down_s: CoolDown = None,
    scaling: Scaling = None,
    default: Annotated[
        list[str] | None, typer.Option(help="Restore the default of the option with this name. Repeatable.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show how much the new retention would delete, without changing anything."),
    ] = False,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Change a topic's settings; all brokers apply the change immediately. Omitted options keep their values."""
    config = _placed(context.params)
    _restore(config, default or ())
    if not config:
        raise typer.BadParameter("give at least one option that changes a setting of the topic", param_hint="OPTIONS")
    if dry_run and config.keys() != {"retention"}:
        raise typer.BadParameter("this option can be used only with options for retention", param_hint="--dry-run")
    with connect(url) as client:
        if not dry_run:
            client.update_topic(topic, **config)
            say_done(output, f"topic {topic} was changed", topic=topic, changed=True)
            return
        found = client.preview_retention(topic, **config["retention"])
    said = ", ".join(counted(found[f"{thing}s"], thing) for thing in ("file", "byte", "message"))
    unread = f"including {found['unread']:,} that at least one subscription has not acked"
    say_done(output, f"this retention would delete {said}, {unread}", **found)


CHANGEABLE = ("flush", "retention", "scaling", "limits", "max_payload_bytes", "ndjson", "compatibility")
EDIT = "Examples: seaweedq topic edit flights · EDITOR='code --wait' seaweedq topic edit flights"


def edit(
    topic: Topic,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Edit a topic's settings as JSON in $VISUAL or $EDITOR (default: vi). Remove a setting from the JSON to restore
    its default."""
    import msgspec

    with connect(url) as client:
        facts = client.topic(topic)
        before = {name: facts[name] for name in CHANGEABLE if name in facts}
        text = msgspec.json.format(msgspec.json.encode(before), indent=2).decode() + "\n"
        with tempfile.NamedTemporaryFile("w", prefix=f"{topic}-", suffix=".json", delete=False) as file:
            file.write(text)
        kept = Path(file.name)
        try:
            edited = _edited(kept)
            try:
                after = msgspec.json.decode(edited)
            except msgspec.DecodeError as error:
                raise ClientError(f"{kept} does not contain valid JSON: {error}") from None
            if not isinstance(after, dict):
                raise ClientError(f"{kept} must contain a JSON object, not a {type(after).__name__}")
            config = differing(before, after)
            if config:
                typer.echo(
                    "".join(unified_diff(text.splitlines(True), edited.splitlines(True), "now", "new")), err=True
                )
                if not yes:
                    typer.confirm(f"Change topic {topic}?", abort=True, err=True)
                client.update_topic(topic, **config)
        except BaseException:
            complain(f"nothing was changed; your text is in {kept}")
            raise
        kept.unlink()
    told = f"topic {topic} was changed" if config else f"topic {topic} was not changed"
    say_done(output, told, topic=topic, changed=bool(config))


def _edited(file: Path) -> str:
    """Opens a file in an editor. Returns the edited text. Raises ClientError if the editor does not start, or fails."""
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        code = subprocess.run([*shlex.split(command), str(file)], check=False).returncode
    except (OSError, ValueError) as error:
        raise ClientError(
            f"the editor {command!r} could not be started: {error}; set the variable EDITOR to another editor"
        ) from None
    if code:
        raise ClientError(f"the editor {command!r} ended with exit code {code}")
    return file.read_text()


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the change from one configuration to another: members with new values, and null for removed members,
    which restores their defaults."""
    config: dict[str, Any] = {}
    for name in before.keys() | after.keys():
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            new = {key: new.get(key) for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
            old = {}
        if old != new:
            config[name] = new
    return config


def _placed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the configuration in the given options."""
    config: dict[str, Any] = {}
    for name, where in _PLACES.items():
        if (value := options.get(name.replace("-", "_"))) is not None:
            _group(config, where)[where[-1]] = value
    return config


def _restore(config: dict[str, Any], names: Sequence[str]) -> None:
    """Adds nulls, which restore defaults, to a change."""
    for name in names:
        where = _DEFAULTS.get(name.removeprefix("--"))
        if where is None:
            raise typer.BadParameter(
                f"the value must be one of {', '.join(_DEFAULTS)}, not {name!r}", param_hint="--default"
            )
        inside = _group(config, where)
        if where[-1] in inside:
            raise typer.BadParameter(
                f"{name} cannot be reset, because a value for it is also given", param_hint="--default"
            )
        inside[where[-1]] = None


def _group(config: dict[str, Any], where: tuple[str, ...]) -> dict[str, Any]:
    """Returns the part of a configuration that contains the member at a path."""
    group: dict[str, Any] = config.setdefault(where[0], {}) if len(where) > 1 else config
    return group


def _schema(path: Path) -> Any:
    import msgspec

    from seaweedq.json_reasons import in_words

    try:
        return msgspec.json.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f"{path} is {in_words(error)}", param_hint="--schema") from error


SPLIT = """Examples: seaweedq topic split flights 0 · seaweedq topic split flights 1 --parts 4 ·
seaweedq topic split flights 2 --at 1600000000 --at 1800000000"""
MERGE = "Example: seaweedq topic merge flights 3 4"
ROLL = "Example: seaweedq topic roll flights 5"
MOVE = "Example: seaweedq topic move flights 6 --to broker"
WAIT_S = 600.0  # on top of it: what publish_timeout_s can be

Segment = Annotated[int, typer.Argument(min=0, help="ID of the segment.", show_default=False)]


def split(
    topic: Topic,
    segment: Segment,
    parts: Annotated[
        int | None,
        typer.Option(min=2, max=32, help="Number of new segments with equal parts of the key range; 2 by default."),
    ] = None,
    at: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Key hash at which a new segment begins. Repeatable, in ascending order.",
        ),
    ] = None,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Split a segment into several segments, each with part of the key range."""
    if parts and at:
        raise typer.BadParameter("use either --at or --parts", param_hint="--at")
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
        int,
        typer.Argument(
            min=0,
            help="ID of the second segment.",
            show_default=False,
        ),
    ],
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Merge two segments with adjacent key ranges. If different brokers own the segments, NEIGHBOUR moves to the
    owner of SEGMENT before the merge."""
    _replace(url, output, topic, segment, "merge", {"with": neighbour})


def roll(topic: Topic, segment: Segment, output: Output = TABLE, url: Url = DEFAULT_URL) -> None:
    """Seal a segment, and continue its key range in a new segment with its own files."""
    _replace(url, output, topic, segment, "roll", None)


def move(
    topic: Topic,
    segment: Segment,
    to: Annotated[str, typer.Option(help="ID or name of the new owner.", show_default=False)],
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
    """Explains how to keep a topic's segments, if the balancer would merge them once they are idle; otherwise None."""
    if not policy["enabled"] or policy["min_segments"] >= segments:
        return None
    return (
        f"the balancer merges idle segments after {policy['cool_down_s']:g} s; to keep {segments}: seaweedq topic "
        f"set {topic} --min-segments {segments}"
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
        say(f"  segment {one['id']}: keys {one['low']} to {one['high']}, on {one['owner'] or 'a broker not yet known'}")


def _ask(url: str, topic: str, segment: int, change: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
    """Sends a request, and returns the answer. The timeout is as long as brokers may wait."""
    from seaweedq.client.core import calls

    path = f"{calls.topic_path(topic)}/segments/{segment}/{change}"
    answer: dict[str, Any] = run(url, calls.call("POST", path, body, wait_s=WAIT_S))
    return answer

"""`seaweedq cluster`: shows the brokers with their versions and levels. `cluster level` upgrades the cluster's format
level; `cluster rebuild` rebuilds lost coordination from the store."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Url, counted, run, say
from seaweedq.cli.shared.output import JSON, TABLE, Output, columns, say_done, say_json, say_table

EXAMPLES = "Examples: seaweedq cluster · seaweedq cluster -o json | jq .level · seaweedq cluster level"
LEVEL = "Examples: seaweedq cluster level · seaweedq cluster level 2"
REBUILD = (
    "Examples: seaweedq cluster rebuild --dry-run · seaweedq cluster rebuild · seaweedq cluster rebuild "
    "--without-journal broker.1f2e"
)
WAIT_S = 600.0  # on top of it: some leases, if brokers are to be kept out
LOOK_S = 0.2
_CHANGES = {
    "segments_ended": "segments sealed since",
    "segments_begun": "segments created since",
    "segments_closed": "segments closed because their ends are lost",
    "uploads_kept": "uploads that now count as published",
    "imports_moved": "imports that resume at a later row",
}
app = typer.Typer(
    invoke_without_command=True,
    help="Show the brokers, the cluster's format level (the version of its data formats), and dead brokers' journals "
    "and segments that other brokers have not completely recovered yet.",
)

_COLUMNS = columns("broker, version, levels, state, segments, url", numbers="segments")


@app.callback(epilog=EXAMPLES)
def cluster(
    context: typer.Context,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Show the brokers with their versions, and the cluster's format level."""
    if context.invoked_subcommand is not None:
        return
    from seaweedq.client.core.calls import call

    facts = run(url, call("GET", "/v1/cluster"))
    if output == JSON:
        say_json(facts)
        return
    say(f"cluster {facts['cluster']}, store {facts['store']}")
    for line in level_lines(facts):
        say(line)
    if facts["brokers_wanted"]:
        say(f"brokers: {len(facts['brokers'])} running, {facts['brokers_wanted']} needed by the load")
    say()
    say_table(output, _COLUMNS, map(_row, facts["brokers"]))
    for line in left_lines(facts["left_behind"]):
        say(line)


@app.command(epilog=LEVEL)
def level(
    context: typer.Context,
    to: Annotated[
        int | None,
        typer.Argument(
            min=1,
            help="New format level; by default, the highest level that at least one running broker can read. The "
            "command fails unless all running brokers can read the new level.",
            show_default=False,
        ),
    ] = None,
    output: Output = TABLE,
    url: Annotated[str | None, typer.Option("--url", help="Same as for `seaweedq cluster`.")] = None,
) -> None:
    """Upgrade the cluster's format level, which is the version of its data formats. The upgrade is irreversible:
    brokers that cannot read the new level can no longer join the cluster."""
    from seaweedq.client.core.calls import call

    assert context.parent is not None
    body = {} if to is None else {"level": to}
    answer = run(
        url or context.parent.params["url"],
        call("POST", "/v1/cluster/level", body, wait_s=WAIT_S, repeatable=True),
    )
    say_done(output, f"the cluster has level {answer['level']}", **answer)


@app.command(epilog=REBUILD)
def rebuild(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan without changing anything.")] = False,
    without_journal: Annotated[
        list[str] | None,
        typer.Option(
            "--without-journal",
            metavar="BROKER",
            help="Rebuild without the unreadable journal of the broker with this ID, and lose the messages that "
            "only this journal contains. Repeatable.",
            show_default=False,
        ),
    ] = None,
    without_tokens: Annotated[
        bool,
        typer.Option(
            "--without-tokens",
            help="Remove all principals and tokens. Use --without-tokens after the store was restored from an old "
            "copy, in which tokens that were revoked later are still valid.",
        ),
    ] = False,
    output: Output = TABLE,
    url: Annotated[str | None, typer.Option("--url", help="Same as for `seaweedq cluster`.")] = None,
) -> None:
    """Rebuild the brokers' shared records in etcd or SQLite (coordination) from the object store, after the records
    were lost or restored from a backup. --url must name a broker that is waiting for the rebuild.

    If you interrupt the command, the rebuild continues."""
    from seaweedq.client.core.calls import call
    from seaweedq.errors import Restored

    assert context.parent is not None
    broker = url or context.parent.params["url"]
    body = {"dry_run": dry_run, "without_journals": without_journal or [], "without_tokens": without_tokens}
    steps = partial(call, "POST", "/v1/cluster/rebuild", body, wait_s=WAIT_S, repeatable=True)
    with doing("coordination is being rebuilt" if not dry_run else "the rebuild is being planned"):
        try:
            answer = run(broker, steps())
        except Restored:  # topics wait alone: all brokers stop serving first
            _wait(broker, rebuilt=False)
            answer = run(broker, steps())
    lines = rebuild_lines(answer)
    if output != JSON:
        for line in lines[:-1]:
            typer.echo(line, err=True)
    say_done(output, lines[-1], **answer)
    if answer["generation"]:
        with doing("the broker is starting"):
            _wait(broker, rebuilt=True)


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Shows what the command waits for, if there is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def _wait(url: str, rebuilt: bool) -> None:
    """Waits until a broker is ready, or else until it waits for a rebuild. Raises its last failure after WAIT_S."""
    from seaweedq.client.core.calls import call
    from seaweedq.errors import Restored, SeaweedqError, Unavailable

    end = time.monotonic() + WAIT_S
    failure: SeaweedqError = Unavailable("the broker still serves requests")
    while time.monotonic() < end:
        try:
            run(url, call("GET", "/readyz"))
            if rebuilt:
                return
        except SeaweedqError as error:
            if isinstance(error, Restored) and not rebuilt:
                return
            failure = error
        time.sleep(LOOK_S)
    raise failure


def rebuild_lines(answer: dict[str, Any]) -> list[str]:
    """Describes a rebuild, or its plan, line by line. The last line states the result."""
    kind, state = answer["source"], (answer[f"state_{name}"] for name in ("generation", "number", "revision"))
    taken = (
        "nothing: everything comes from the store"
        if kind == "nothing"
        else f"{kind}, generation {{}}, number {{}}, revision {{}}"
    )
    lines = [f"state: {taken.format(*state)}"]
    lines += [f"journal of {broker}: will be replayed" for broker in answer["journals"]]
    lines += [f"journal of {broker}: CANNOT BE READ: {why}" for broker, why in answer["hindering"].items()]
    lines += [f"backup {name}: damaged, not used" for name in answer["damaged"]]
    lines += [f"backup {name}: made with another secret, so it grants no permissions" for name in answer["unverified"]]
    for one in answer["topics"]:
        parts = [f"{one[name]:,} {text}" for name, text in _CHANGES.items() if one[name]]
        lines.append(f"topic {one['topic']}: {', '.join([*parts, *one['damage']])}")
    lines += [f"may be lost: {one}" for one in answer["may_be_lost"]]
    if answer["generation"]:
        done = f"rebuilt: coordination has generation {answer['generation']}, and {answer['keys']:,} keys"
    else:
        done = f"nothing was changed; a rebuild would write {answer['keys']:,} keys"
    return [*lines, done]


def level_lines(facts: dict[str, Any]) -> list[str]:
    """Describes the cluster's level: the present level, the highest possible one, and the brokers that prevent a higher
    one."""
    level, possible, newest, too_old = (facts[name] for name in ("level", "level_possible", "level_newest", "too_old"))
    lines = [f"level {level}"]
    if facts["level_written"] < level:
        lines = [f"level {level} is being introduced; the cluster still writes level {facts['level_written']}"]
    if possible > level:
        lines.append(f"level {possible} is possible: seaweedq cluster level {possible}")
    if newest > possible:
        lines.append(f"level {newest} cannot be read by {', '.join(too_old)}")
    return lines


def left_lines(left: list[dict[str, Any]]) -> list[str]:
    """Describes what dead brokers left behind; empty if nothing waits."""
    lines = [
        f"{one['broker'] or 'no broker yet'}: {_state(one)}, {counted(one['segments'], 'segment')}: {one['why']}"
        for one in left
    ]
    return ["", "Waiting for an owner or a recovery:", *lines] if lines else []


def _state(left: dict[str, Any]) -> str:
    since = left.get("since")
    return f"{left['state']} since {since}" if since else str(left["state"])


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    levels = f"{one['lowest_level']} to {one['highest_level']}"
    state = ", ".join(name for name in ("leader", "starting", "draining") if one[name]) or "ready"
    return one["id"], one["version"] or "unknown", levels, state, f"{one['segments']:,}", one["url"]

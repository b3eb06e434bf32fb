"""`seaweedq cluster`: shows the brokers with their versions and levels; `cluster level` raises the cluster's level."""

from typing import Annotated, Any

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Url, counted, run, say
from seaweedq.cli.shared.output import JSON, TABLE, Output, columns, say_done, say_json, say_table

EXAMPLES = "Examples: seaweedq cluster · seaweedq cluster -o json | jq .level · seaweedq cluster level"
LEVEL = "Examples: seaweedq cluster level · seaweedq cluster level 2"
WAIT_S = 600.0  # on top of it: some leases, if brokers are to be kept out
app = typer.Typer(invoke_without_command=True, help="Show the brokers; show and raise the cluster's level.")

_COLUMNS = columns("broker, version, levels, state, segments, url", numbers="segments")


@app.callback(epilog=EXAMPLES)
def cluster(
    context: typer.Context,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Show the brokers with their versions, and the cluster's level; `cluster level` raises it."""
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
    say()
    say_table(output, _COLUMNS, map(_row, facts["brokers"]))
    for line in left_lines(facts["left_behind"]):
        say(line)


@app.command(epilog=LEVEL)
def level(
    context: typer.Context,
    to: Annotated[
        int | None,
        typer.Argument(min=1, help="The level; by default the highest one that a broker reads.", show_default=False),
    ] = None,
    output: Output = TABLE,
    url: Annotated[str | None, typer.Option("--url", help="As that of `seaweedq cluster`.")] = None,
) -> None:
    """Raise the cluster's level, for ever: brokers that do not read it can join no more."""
    from seaweedq.client.core.calls import call

    assert context.parent is not None
    body = {} if to is None else {"level": to}
    answer = run(
        url or context.parent.params["url"],
        call("POST", "/v1/cluster/level", body, wait_s=WAIT_S, repeatable=True),
    )
    say_done(output, f"the cluster has level {answer['level']}", **answer)


@app.command(epilog="Example: seaweedq cluster confirm")
def confirm(
    context: typer.Context,
    output: Output = TABLE,
    url: Annotated[str | None, typer.Option("--url", help="As that of `seaweedq cluster`.")] = None,
) -> None:
    """Confirm a coordination that was restored from a backup: retention takes and deletes again."""
    from seaweedq.client.core.calls import call

    assert context.parent is not None
    url = url or context.parent.params["url"]
    answer = run(url, call("POST", "/v1/cluster/confirm", repeatable=True))
    while after := answer.get("next"):
        typer.echo(f"{answer['left']:,} segments are left to look at", err=True)
        answer = run(url, call("POST", f"/v1/cluster/confirm?after={after}", repeatable=True))
    say_done(output, f"confirmed: the newest round of retention is {answer['retention_round']}", **answer)


def level_lines(facts: dict[str, Any]) -> list[str]:
    """Returns the cluster's level in words: the present and the possible one, and the brokers that prevent more."""
    level, possible, newest, too_old = (facts[name] for name in ("level", "level_possible", "level_newest", "too_old"))
    lines = [f"level {level}"]
    if facts["level_written"] < level:
        lines = [f"level {level}, to which it rises; level {facts['level_written']} is written still"]
    if possible > level:
        lines.append(f"level {possible} is possible: seaweedq cluster level {possible}")
    if newest > possible:
        lines.append(f"level {newest} is not read by {', '.join(too_old)}")
    return lines


def left_lines(left: list[dict[str, Any]]) -> list[str]:
    """Returns in words the leftovers of brokers that are gone; empty if nothing waits."""
    lines = [
        f"{one['broker'] or 'no broker yet'}: {one['state']}, {counted(one['segments'], 'segment')}: {one['why']}"
        for one in left
    ]
    return ["", "What waits for an owner or a recovery:", *lines] if lines else []


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    levels = f"{one['lowest_level']} to {one['highest_level']}"
    state = ", ".join(name for name in ("leader", "starting", "draining") if one[name]) or "ready"
    return one["id"], one["version"] or "unknown", levels, state, f"{one['segments']:,}", one["url"]

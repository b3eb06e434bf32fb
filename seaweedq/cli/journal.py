"""`seaweedq journal accept-loss`: gives up what is lost of a dead broker's journal."""

from typing import Annotated, Any

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Url, run
from seaweedq.cli.shared.output import TABLE, Output, say_done

EXAMPLES = "Examples: seaweedq cluster · seaweedq journal accept-loss broker.1f2e --yes"
app = typer.Typer(no_args_is_help=True, help="Accept the loss of messages in a dead broker's journal.")


@app.callback(epilog=EXAMPLES)
def journal() -> None:
    """Accept the loss of messages in a dead broker's journal."""


@app.command(epilog=EXAMPLES)
def accept_loss(
    broker: Annotated[
        str, typer.Argument(help="ID of the dead broker, which `seaweedq cluster` shows with the state `unknown`.")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Accept the loss of the messages that were only in a dead broker's journal, whether this journal was on disk or
    in memory. You cannot undo the command: even if you restore the dead broker's data folder later, no broker reads the
    journal in this folder."""
    from seaweedq.client.core.calls import call

    if not yes:
        told = f"Give up the messages that only the journal of broker {broker} contained? This cannot be undone."
        typer.confirm(told, abort=True, err=True)
    answer = run(url, call("POST", "/v1/cluster/accept-loss", {"broker": broker}, repeatable=True))
    say_done(output, loss_line(answer), **answer)


def loss_line(answer: dict[str, Any]) -> str:
    """Describes an accepted loss in a line."""
    missing_s, mirrors = answer["missing_s"], ", ".join(answer["mirrors"])
    missing = "its messages that are not in files"
    if missing_s is not None:
        missing = f"its messages of up to {missing_s:g} s, more if the store was unavailable,"
    where = f", which only {answer['broker']} and {mirrors} had" if mirrors else ""
    return f"the loss of the journal of {answer['broker']} is accepted: {missing} may be missing{where}"

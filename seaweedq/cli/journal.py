"""`seaweedq journal accept-loss`: gives up what is lost of a dead broker's mirrored journal."""

from typing import Annotated, Any

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Url, run
from seaweedq.cli.shared.output import TABLE, Output, say_done

EXAMPLES = "Examples: seaweedq cluster · seaweedq journal accept-loss broker.1f2e --yes"
app = typer.Typer(no_args_is_help=True, help="Accept the loss of messages in a dead broker's mirrored journal.")


@app.callback(epilog=EXAMPLES)
def journal() -> None:
    """Accept the loss of messages in a dead broker's mirrored journal."""


@app.command(epilog=EXAMPLES)
def accept_loss(
    broker: Annotated[
        str, typer.Argument(help="ID of the dead broker, which `seaweedq cluster` shows with the state `unknown`.")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Accept the loss of the messages that only a dead broker and its mirrors had. The command cannot be undone. Each
    of the dead broker's segments is sealed at the end of its files, and its key range continues in a new segment."""
    from seaweedq.client.core.calls import call

    if not yes:
        told = f"Give up the messages that only broker {broker} and its mirrors had? This cannot be undone."
        typer.confirm(told, abort=True, err=True)
    answer = run(url, call("POST", "/v1/cluster/accept-loss", {"broker": broker}, repeatable=True))
    say_done(output, loss_line(answer), **answer)


def loss_line(answer: dict[str, Any]) -> str:
    """Describes an accepted loss in a line."""
    missing_s, mirrors = answer["missing_s"], ", ".join(answer["mirrors"])
    missing = (
        "an unknown part of its newest messages" if missing_s is None else f"its messages of up to {missing_s:g} s"
    )
    where = f", which only {answer['broker']} and {mirrors} had" if mirrors else ""
    return f"the loss of the journal of {answer['broker']} is accepted: {missing} may be missing{where}"

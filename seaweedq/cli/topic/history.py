"""`seaweedq topic history`: shows all segments that a topic has had, as a table or as a picture."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Topic, Url, connect, one_line, say
from seaweedq.cli.shared.output import JSON, TABLE, WIDE, Column, Output, say_done, say_json, say_table, terminal_width
from seaweedq.errors import RouteNotFound, Unavailable
from seaweedq.extras import needs

if TYPE_CHECKING:
    from seaweedq.cli.topic.lineage import LastHour
    from seaweedq.client import Client

CELLS = 10_000
COLUMNS = 110  # of a terminal, from which a row has room for the last hour
_NUMBERS = ("segment", "messages", "messages/s", "last hour", "highest")
EXAMPLES = "Examples: seaweedq topic history flights · seaweedq topic history flights --plot flights.png"


def history(
    topic: Topic,
    plot: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Draw key ranges over time into this file: .png, .svg, .pdf, ..."),
    ] = None,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Show all segments that a topic has had: their ranges, times, predecessors, successors and mean rates;
    and the rates and hot keys of the last hour, as far as the leader has recorded them."""
    from seaweedq.cli.topic import history_layout
    from seaweedq.cli.topic.lineage import Segment

    if plot:
        _check(plot)
    room = terminal_width()
    has_room = output == WIDE or room is None or room >= COLUMNS
    with connect(url) as client:
        answers = client.segments(topic)
        if output == JSON and not plot:
            for answer in answers:
                say_json(answer)
            return
        hour = load_last_hour(client, topic) if plot or has_room else None
    segments = [Segment.of(answer) for answer in answers]
    now = datetime.now(UTC)
    if plot:
        layout = history_layout.lay_out(topic, segments, now, hour)
        history_layout.save(layout, plot)
        say_done(output, f"{layout.title}; drawn into {plot}", topic=topic, file=str(plot))
        return
    names = (*history_layout.HEAD, *(history_layout.HOUR_HEAD if hour else ()))
    say_table(output, [Column(name, name in _NUMBERS) for name in names], history_layout.rows(segments, now, hour))
    say("times are UTC; " + ("last hour and highest are messages/s" if hour else "rates are means of a life"))


def load_last_hour(client: "Client", topic: str) -> "LastHour | None":
    """Returns what the leader has recorded; None, and says why, where nobody tells it."""
    from seaweedq.cli.topic.lineage import LastHour

    try:
        return LastHour.of(client.history(topic, cells=CELLS))
    except (Unavailable, RouteNotFound) as error:
        typer.echo(f"the rates of the last hour are left out: {one_line(error)}", err=True)
        return None


def _check(plot: Path) -> None:
    """Checks, before any request, that matplotlib is installed and can write the suffix."""
    with needs("demo", "a picture"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    known = FigureCanvasAgg.get_supported_filetypes()
    if plot.suffix.removeprefix(".").lower() not in known:
        endings = ", ".join(f".{name}" for name in sorted(known))
        raise typer.BadParameter(f"{plot.name!r} must end in one of {endings}", param_hint="--plot")
    if not plot.absolute().parent.is_dir():
        raise typer.BadParameter(f"the folder {plot.absolute().parent} does not exist", param_hint="--plot")

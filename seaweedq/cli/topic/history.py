"""`seaweedq topic history`: shows all segments that a topic has had, as a table or as a picture."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Topic, Url, complain, connect, say

EXAMPLES = "Examples: seaweedq topic history flights · seaweedq topic history flights --plot flights.png"


def history(
    topic: Topic,
    plot: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Draw key ranges over time into this file: .png, .svg, .pdf, ..."),
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Show all segments that a topic has had: their ranges, times, predecessors, successors and mean rates."""
    from seaweedq.cli.topic import history_layout
    from seaweedq.cli.topic.lineage import Segment

    if plot:
        _check(plot)
    with connect(url) as client:
        segments = [Segment.of(answer) for answer in client.segments(topic)]
    now = datetime.now(UTC)
    if plot:
        from seaweedq.cli.topic import history_picture

        layout = history_layout.lay_out(topic, segments, now)
        history_picture.save(layout, plot)
        say(f"{layout.title}; drawn into {plot}")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, caption="times are UTC", caption_justify="left")
    for name in history_layout.HEAD:
        figure = name in ("segment", "messages", "messages/s")
        table.add_column(name, justify="right" if figure else "left", no_wrap=name not in ("after", "before"))
    for row in history_layout.rows(segments, now):
        table.add_row(*row)
    Console().print(table)


def _check(plot: Path) -> None:
    """Checks, before any request, that matplotlib is installed and can write the suffix."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError as error:
        complain(f"a picture needs the package {error.name}: pip install 'seaweedq[demo]'")
        raise typer.Exit(1) from error
    known = FigureCanvasAgg.get_supported_filetypes()
    if plot.suffix.removeprefix(".").lower() not in known:
        endings = ", ".join(f".{name}" for name in sorted(known))
        raise typer.BadParameter(f"{plot.name!r} must end in one of {endings}", param_hint="--plot")
    if not plot.absolute().parent.is_dir():
        raise typer.BadParameter(f"the folder {plot.absolute().parent} does not exist", param_hint="--plot")

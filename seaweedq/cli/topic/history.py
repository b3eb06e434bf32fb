"""`seaweedq topic history`: shows all segments that a topic has had, as a table or as a picture of key ranges over
time. In the picture each segment is a rectangle, coloured by its mean rate."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Topic, Url, connect, counted, one_line, path_text, say
from seaweedq.cli.shared.output import JSON, TABLE, WIDE, Column, Output, say_done, say_json, say_table, terminal_width
from seaweedq.cli.topic.lineage import KEY_SPACE, LastHour, Segment, changes, share
from seaweedq.cli.topic.watch_picture import short
from seaweedq.errors import RouteNotFound, Unavailable
from seaweedq.extras import needs

HOUR_HEAD = ("last hour", "highest", "hot key")  # of the rates that the leader has recorded
HEAD = ("segment", "keys", "from", "to", "after", "before", "messages", "messages/s")
COARSE = timedelta(days=1)  # times of a longer history are told with their days


@dataclass(frozen=True, slots=True)
class Box:
    """A segment's rectangle: times on x, and shares of the key space (0 to 1) on y."""

    segment: int
    begin: datetime
    end: datetime
    low: float
    high: float
    rate: float
    is_open: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of the picture: the boxes, a time span that contains all of them with a margin, and the cells of the
    last hour, which are drawn over the boxes."""

    boxes: tuple[Box, ...]
    begin: datetime
    end: datetime
    title: str
    cells: tuple[Box, ...] = ()

    @property
    def rates(self) -> tuple[float, float]:
        """Returns the ends of the colour scale: the smallest and largest rate, limited to one to four decades."""
        rates = [box.rate for box in (*self.boxes, *self.cells) if box.rate > 0] or [1.0]
        most = max(rates)
        return min(max(min(rates), most / 10_000), most / 10), most

    def has_room(self, box: Box, width: float, height: float) -> bool:
        """Returns whether text with this share of the picture's width and height fits into a box."""
        span = (self.end - self.begin) / timedelta(seconds=1)
        return (box.end - box.begin).total_seconds() >= width * span and box.high - box.low >= height


def lay_out(topic: str, segments: Sequence[Segment], now: datetime, hour: LastHour | None = None) -> Layout:
    """Lays out a topic's segments, from their creation until they were sealed, or until now. Raises ValueError without
    segments."""
    if not segments:
        raise ValueError(f"topic {topic} has no segments")
    begin = min(segment.created_at for segment in segments)
    end = max([now, *(segment.sealed_at for segment in segments if segment.sealed_at)])
    boxes = (
        Box(
            segment=segment.id,
            begin=segment.created_at,
            end=segment.sealed_at or end,
            low=segment.low / KEY_SPACE,
            high=segment.high / KEY_SPACE,
            rate=segment.mean_rate(end),
            is_open=segment.is_open,
        )
        for segment in sorted(segments, key=lambda segment: segment.id)
    )
    cells = tuple(
        Box(-1, cell.begin, cell.end, cell.low / KEY_SPACE, cell.high / KEY_SPACE, cell.rate, is_open=False)
        for cell in (hour.cells if hour else ())
    )
    return Layout(tuple(boxes), begin, max(end, begin + timedelta(seconds=1)), title(topic, segments), cells)


def title(topic: str, segments: Sequence[Segment]) -> str:
    """Counts the segments, the messages, and each kind of change."""
    counts: dict[str, int] = {}
    for change in changes(segments):
        counts[change.kind] = counts.get(change.kind, 0) + 1
    told = [counted(count, kind) for kind, count in sorted(counts.items(), reverse=True)]
    opened = sum(segment.is_open for segment in segments)
    messages = sum(segment.end_offset for segment in segments)
    held = [counted(messages, "message"), counted(len(segments), "segment"), f"{opened:,} open"]
    return f"{topic}: {', '.join([*held, *told])}"


def rows(segments: Iterable[Segment], now: datetime, hour: LastHour | None = None) -> list[tuple[str, ...]]:
    """Returns the table's cells, a row per segment in id order, with times in UTC. With the last hour, each row also
    has the columns of the last hour."""
    known = sorted(segments, key=lambda segment: segment.id)
    days = bool(known) and now - min(segment.created_at for segment in known) >= COARSE
    return [
        (
            str(segment.id),
            f"{share(segment.low)} - {share(segment.high)}",
            moment(segment.created_at, days),
            moment(segment.sealed_at, days) if segment.sealed_at else "",
            " ".join(map(str, segment.predecessors)),
            " ".join(map(str, segment.successors)),
            f"{segment.end_offset:,}",
            short(segment.mean_rate(now)),
            *(_intake_cells(hour, segment, now) if hour else ()),
        )
        for segment in known
    ]


def _intake_cells(hour: LastHour, segment: Segment, now: datetime) -> tuple[str, str, str]:
    took = hour.intake(segment, now)
    if took is None:
        return "", "", ""
    hot = f"hash {took.hot_key[0]}: {took.hot_key[1]:.0%}" if took.hot_key else ""
    return short(took.mean), short(took.highest), hot


def moment(at: datetime, days: bool) -> str:
    """Formats a time, with the date if the history spans several days."""
    return f"{at:%Y-%m-%d %H:%M:%S}" if days else f"{at:%H:%M:%S}"


IDLE = "#e4e4e4"
SIZE, DPI = (11, 6), 130
LETTER, LINE = 0.012, 0.04  # of the picture's width and height
FORMATS = ["%Y", "%b", "%d", "%H:%M", "%H:%M", "%H:%M:%S"]  # of ticks that are years, months, ... seconds apart
DARK = 0.55  # of the colour scale: from there on letters are dark


def save(layout: Layout, path: Path) -> None:
    """Draws the picture. The file's suffix decides the format. Raises ValueError if the suffix is not an image format,
    and OSError."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator

    figure = Figure(figsize=SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    scale = ScalarMappable(LogNorm(*layout.rates), colormaps["viridis"])
    _boxes(axes, layout, scale)
    _cells(axes, layout, scale)
    _labels(axes, layout, scale)
    _axes(axes, layout)
    axes.set_title(layout.title, fontsize=11)
    ticks, words = LogLocator(subs=(1, 2, 5)), FuncFormatter(lambda rate, _: short(rate))
    bar = figure.colorbar(scale, ax=axes, pad=0.01, ticks=ticks, format=words)
    bar.ax.minorticks_off()
    whole = "mean over the segment's life"
    bar.set_label(f"messages/s: of the last hour, before it the {whole}" if layout.cells else f"messages/s, {whole}")
    figure.savefig(path, dpi=DPI)


def _boxes(axes: Any, layout: Layout, scale: Any) -> None:
    for box in layout.boxes:
        middle, height = (box.low + box.high) / 2, box.high - box.low
        face = scale.to_rgba(box.rate) if box.rate > 0 else IDLE
        axes.barh(middle, box.end - box.begin, height, left=box.begin, color=face, edgecolor="white", linewidth=1)


def _cells(axes: Any, layout: Layout, scale: Any) -> None:
    """Draws the leader's record over the mean rates, and redraws the edges of the segments."""
    for box in (box for box in layout.cells if box.rate > 0):
        middle, height = (box.low + box.high) / 2, box.high - box.low
        axes.barh(middle, box.end - box.begin, height, left=box.begin, color=scale.to_rgba(box.rate), linewidth=0)
    for box in layout.boxes if layout.cells else ():
        middle, height = (box.low + box.high) / 2, box.high - box.low
        edges = {"left": box.begin, "fill": False, "edgecolor": "white", "linewidth": 1}
        axes.barh(middle, box.end - box.begin, height, **edges)


def _labels(axes: Any, layout: Layout, scale: Any) -> None:
    for box in layout.boxes:
        middle = (box.low + box.high) / 2
        light = box.rate > 0 and scale.norm(box.rate) < DARK
        at, colour = box.begin + (box.end - box.begin) / 2, "white" if light else "black"
        axes.text(at, middle, _label(layout, box), ha="center", va="center", fontsize=9, color=colour)


def _label(layout: Layout, box: Box) -> str:
    """Returns a box's label: the segment's id and, if there is room, the rate below."""
    whole = (str(box.segment), f"{short(box.rate)}/s")
    fits = [n for n in (1, 2) if layout.has_room(box, LETTER * (1 + max(map(len, whole[:n]))), LINE * n)]
    return "\n".join(whole[: max(fits, default=0)])


def _axes(axes: Any, layout: Layout) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.ticker import MultipleLocator, PercentFormatter

    axes.set_xlim(layout.begin, layout.end)
    axes.set_ylim(0, 1)
    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, formats=FORMATS))  # type: ignore[no-untyped-call]
    axes.yaxis.set_major_locator(MultipleLocator(0.25))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("time, UTC")
    axes.set_ylabel("key space")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


if TYPE_CHECKING:
    from seaweedq.client import Client

CELLS = 10_000
COLUMNS = 110  # of a terminal, from which a row has room for the last hour
_NUMBERS = ("segment", "messages", "messages/s", "last hour", "highest")
EXAMPLES = "Examples: seaweedq topic history flights · seaweedq topic history flights --plot flights.png"


def history(
    topic: Topic,
    plot: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="Write a chart of the key ranges over time to this file (.png, .svg, .pdf); needs the extra `demo`.",
        ),
    ] = None,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Show all past and present segments of a topic, with key ranges, lifetimes, predecessors, successors, mean rates,
    and the rates and hot keys of the last hour."""
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
    segments = [Segment.from_answer(answer) for answer in answers]
    now = datetime.now(UTC)
    if plot:
        layout = lay_out(topic, segments, now, hour)
        save(layout, plot)
        say_done(output, f"{layout.title}; drawn into {plot}", topic=topic, file=path_text(plot))
        return
    names = (*HEAD, *(HOUR_HEAD if hour else ()))
    say_table(output, [Column(name, name in _NUMBERS) for name in names], rows(segments, now, hour))
    say("times are UTC; " + ("last hour and highest are messages/s" if hour else "rates are means of a life"))


def load_last_hour(client: "Client", topic: str) -> "LastHour | None":
    """Returns the leader's record. If no broker returns the record, prints the reason and returns None."""
    try:
        return LastHour.from_answer(client.history(topic, cells=CELLS))
    except (Unavailable, RouteNotFound) as error:
        typer.echo(f"the rates of the last hour are not available: {one_line(error)}", err=True)
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

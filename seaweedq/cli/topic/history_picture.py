"""The picture of `topic history`: key ranges over time, a rectangle per segment, coloured by its mean rate."""

from pathlib import Path
from typing import Any

from seaweedq.cli.topic.history_layout import Box, Layout
from seaweedq.cli.topic.watch_bar import short

IDLE = "#e4e4e4"
SIZE, DPI = (11, 6), 130
LETTER, LINE = 0.012, 0.04  # of the picture's width and height
FORMATS = ["%Y", "%b", "%d", "%H:%M", "%H:%M", "%H:%M:%S"]  # of ticks that are years, months, ... seconds apart
DARK = 0.55  # of the colour scale: from there on letters are dark


def save(layout: Layout, path: Path) -> None:
    """Draws the picture; the suffix names the format. Raises ValueError for a suffix that is not an image format,
    OSError."""
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
    """Draws what the leader has recorded over the means, and the edges of segments anew."""
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
    """Returns the id, and the rate below it, as far as there is room."""
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

"""The pictures of the pipeline: delays and visibility by hour and airport, and how far the query was behind."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from feed import NEW_YORK, Clock
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

COLORS = {"EWR": "#0072b2", "JFK": "#d55e00", "LGA": "#009e73"}  # told apart by the colour-blind, too
MIDDLE = timedelta(minutes=30)  # of an hour
Lag = tuple[datetime, float]


def lags(progress: Iterable[Mapping[str, Any]], clock: Clock) -> list[Lag]:
    """Returns of each batch of a query when it was done, and how many seconds before its oldest flight had left."""
    found = []
    for each in progress:
        if each["numInputRows"] and "min" in each["eventTime"]:
            took = timedelta(milliseconds=each["durationMs"]["triggerExecution"])
            done = datetime.fromisoformat(each["timestamp"]) + took
            oldest = clock.real(datetime.fromisoformat(each["eventTime"]["min"]))
            found.append((done, (done - oldest).total_seconds()))
    return [(done, lag_s) for done, lag_s in found if done > clock.began]


def figure(
    delays: Sequence[Mapping[str, Any]],
    behind: Sequence[Lag],
    splits: Sequence[datetime],
    stopped: tuple[datetime, datetime],
    clock: Clock,
) -> Figure:
    """Draws the rows of the topic `delays`, lags, and the real times when segments split, and the query was stopped."""
    drawn = Figure(figsize=(9, 8), layout="constrained")
    FigureCanvasAgg(drawn)
    late, sight, lag = drawn.subplots(3, sharex=True, height_ratios=(3, 2, 2))
    for airport, color in COLORS.items():
        rows = sorted((row for row in delays if row["origin"] == airport), key=lambda row: row["hour"])
        hours = [row["hour"] + MIDDLE for row in rows]
        late.plot(hours, [row["minutes"] / row["flights"] for row in rows], "o-", color=color, ms=4, label=airport)
        sight.plot(hours, [_number(row["visibility"]) for row in rows], "o-", color=color, ms=4)
    _title(late, "Delay of flights, by the hour in which they left", "mean, minutes")
    _title(sight, "Visibility, from the stream of weather", "miles")
    done = [clock.flights(at) for at, _ in behind]
    lag.plot(done, [lag_s for _, lag_s in behind], ".-", color="#444444", label="batch")
    lag.axvspan(*map(clock.flights, stopped), color="#dddddd", label="query stopped")
    _title(lag, "Lag of the query", "oldest flight of a batch, s")
    for axes in (late, sight, lag):
        for number, split in enumerate(splits):
            label = "segment splits" if number == 0 and axes is lag else None
            axes.axvline(clock.flights(split), color="#9467bd", linestyle="--", linewidth=1, label=label)
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
        if axes is not sight:
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False, borderaxespad=0)
    locator = AutoDateLocator(tz=NEW_YORK, maxticks=12)
    lag.xaxis.set_major_locator(locator)
    lag.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=NEW_YORK, show_offset=False))
    day = clock.first.astimezone(NEW_YORK)
    lag.set_xlabel(f"time in New York from {day:%-d %B %Y} on; an hour of it took {3600 / clock.speed:.3g} s")
    return drawn


def save(drawn: Figure, path: Path) -> None:
    """Writes a picture; the suffix names the format."""
    drawn.savefig(path, dpi=100)


def _title(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, loc="left", fontsize="medium", fontweight="bold")
    axes.set_ylabel(unit)
    axes.locator_params("y", nbins=6)
    axes.grid(axis="y", color="#eeeeee")
    axes.spines[["top", "right"]].set_visible(False)


def _number(value: float | None) -> float:
    return float("nan") if value is None else value

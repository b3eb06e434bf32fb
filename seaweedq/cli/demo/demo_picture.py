"""The demo's picture: delays by carrier."""

from collections.abc import Mapping
from pathlib import Path


def save(delays: Mapping[str, float], rows: int, path: Path) -> None:
    """Draws a bar per carrier, the most delayed on top; the suffix names the format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ranked = sorted(delays.items(), key=lambda item: item[1])
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    means = [mean for _, mean in ranked]
    bars = axes.barh(
        [carrier for carrier, _ in ranked], means, color=["#c1553b" if m > 0 else "#3b7ac1" for m in means]
    )
    axes.bar_label(bars, fmt="%.1f", padding=3)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.margins(x=0.12)
    axes.set_xlabel("mean delay on arrival, minutes")
    axes.set_title(f"{rows:,} flights from New York City, 2013, read from the queue's own files")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=130)

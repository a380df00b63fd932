"""Pictures of how good bars are: what is missing of each day, how wide the book was, which faults were met."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from archetype_dagster.reporting.plots.canvas import (
    LIGHT,
    Theme,
    date_axis,
    dress,
    new_figure,
    png_bytes,
    require_equal_length,
)
from archetype_dagster.types import FloatArray


def bars_quality(
    timestamps: NDArray[np.datetime64],
    spread_bps: FloatArray,
    faults: Mapping[str, int],
    *,
    bar_minutes: int,
    theme: Theme = LIGHT,
) -> bytes:
    """PNG of three panels: share of each day's bars that are there, spread of the book, and faults by count.

    Args:
        timestamps: datetime64 (T,), bar ends, UTC, oldest first.
        spread_bps: float64 (T,), spread in basis points of the mid; NaN where a side is empty.
        faults: count by name; the ten largest are drawn, those of zero are not.
        bar_minutes: length of a bar.
        theme: colours.
    """
    require_equal_length(timestamps, spread_bps=spread_bps)
    figure = new_figure(theme, 4.6)
    grid = figure.add_gridspec(2, 2, width_ratios=(2.2, 1))
    # A bar that ends at midnight is of the day before.
    days, counts = np.unique((timestamps - np.timedelta64(1, "us")).astype("datetime64[D]"), return_counts=True)
    present = np.arange(days[0], days[-1] + 1)
    share = np.zeros(len(present))
    share[np.searchsorted(present, days)] = 100 * counts * bar_minutes / (24 * 60)
    coverage = figure.add_subplot(grid[0, 0])
    dress(coverage, theme, title="Bars of each day, %")
    coverage.bar(present, share, width=1.0, color=theme.series["full"], linewidth=0)
    coverage.set_ylim(0, 105)
    date_axis(coverage, theme)
    spread = figure.add_subplot(grid[1, 0])
    dress(spread, theme, title="Spread at the bar's end, bp")
    spread.plot(timestamps, spread_bps, color=theme.ink, linewidth=0.6)
    date_axis(spread, theme)
    found = sorted(((name, count) for name, count in faults.items() if count), key=lambda fault: fault[1])[-10:]
    panel = figure.add_subplot(grid[:, 1])
    dress(panel, theme, title="Faults" if found else "No faults")
    panel.barh([name for name, _ in found], [count for _, count in found], color=theme.loss, height=0.6)
    panel.set_xscale("symlog", linthresh=1)
    return png_bytes(figure)

"""Pictures of data and training: price history, feature distributions and learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from archetype_dagster.reporting.plots.canvas import (
    LIGHT,
    Theme,
    date_axis,
    dress,
    legend,
    new_figure,
    png_bytes,
    require_equal_length,
    thousands,
)
from archetype_dagster.types import FloatArray, StateArray


def learning_curves(
    history: pl.DataFrame, panels: Mapping[str, Sequence[str]], *, x: str, theme: Theme = LIGHT
) -> bytes:
    """PNG of a training history, one panel for each title in `panels`.

    Args:
        history: one row an epoch or evaluation; the named columns are numeric, nulls leave gaps.
        panels: columns to draw by panel title.
        x: column of the horizontal axis.
        theme: colours.

    Raises:
        ValueError: no panel, or a column that the history lacks.
    """
    wanted = [x, *(column for columns in panels.values() for column in columns)]
    missing = sorted(set(wanted) - set(history.columns))
    if missing or not panels:
        raise ValueError(f"learning_curves needs panels over columns {history.columns}, missing {missing}")
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    figure = new_figure(theme, 2.5 * down)
    grid = figure.subplots(down, across, squeeze=False).ravel()
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    steps = history[x].cast(pl.Float64).to_numpy()
    few = len(steps) <= 30
    for axes, (title, columns) in zip(grid, panels.items(), strict=False):
        dress(axes, theme, title=title)
        for index, column in enumerate(columns):
            values = history[column].cast(pl.Float64).to_numpy()
            axes.plot(
                steps, values, label=column, color=theme.cycle[index], linewidth=1.4, marker="o" if few else "", ms=2.5
            )
        axes.set_xlabel(x, fontsize=8, color=theme.muted)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        if len(columns) > 1:
            legend(axes, theme, loc="best")
    return png_bytes(figure)


def price_history(
    timestamps: NDArray[np.datetime64],
    close: FloatArray,
    *,
    splits: Mapping[str, tuple[np.datetime64, np.datetime64]] | None = None,
    title: str = "Price",
    theme: Theme = LIGHT,
) -> bytes:
    """PNG of a price over its whole span, with the date splits shaded.

    Args:
        timestamps: datetime64 (T,), bar ends, UTC.
        close: float64 (T,), quote units.
        splits: half-open (start, end) by split name.
        title: text above the picture.
        theme: colours.
    """
    require_equal_length(timestamps, close=close)
    figure = new_figure(theme, 2.6)
    axes = figure.subplots()
    dress(axes, theme, title=title)
    for index, (name, (start, end)) in enumerate((splits or {}).items()):
        colour = theme.cycle[index % len(theme.cycle)]
        axes.axvspan(start, end, color=colour, alpha=0.09, linewidth=0)  # type: ignore[arg-type]
        axes.text(
            start,  # type: ignore[arg-type]
            0.97,
            f" {name}",
            transform=axes.get_xaxis_transform(),
            fontsize=8,
            color=colour,
            va="top",
        )
    axes.plot(timestamps, close, color=theme.ink, linewidth=0.8)
    axes.margins(x=0.0)
    thousands(axes)
    date_axis(axes, theme)
    return png_bytes(figure)


def histograms(
    values: StateArray | FloatArray, names: Sequence[str], *, bins: int = 41, across: int = 9, theme: Theme = LIGHT
) -> bytes:
    """PNG of one small histogram for each column of `values` (n, F), on its central 99 %."""
    if values.ndim != 2 or values.shape[1] != len(names) or not len(values):
        raise ValueError(f"values must be (n, {len(names)}) with n > 0, got {values.shape}")
    down = -(-len(names) // across)
    figure = new_figure(theme, 1.05 * down, width=1.35 * across, layout=None)
    grid = figure.subplots(down, across, squeeze=False).ravel()
    figure.subplots_adjust(0.01, 0.2 / (1.05 * down), 0.99, 1.0 - 0.2 / (1.05 * down), wspace=0.12, hspace=0.55)
    low, high = np.quantile(values.astype(np.float64), [0.005, 0.995], axis=0)
    for index, axes in enumerate(grid):
        if index >= len(names):
            axes.set_visible(False)
            continue
        dress(axes, theme)
        axes.set_title(names[index], fontsize=6.5, color=theme.ink, loc="left", pad=2)
        width = max(high[index] - low[index], 1e-9)
        counts, edges = np.histogram(values[:, index], bins=bins, range=(low[index], low[index] + width))
        axes.stairs(counts, edges, fill=True, color=theme.cycle[0], alpha=0.8)
        axes.set_yticks([])
        axes.tick_params(labelsize=5.5)
        axes.xaxis.set_major_locator(MaxNLocator(3))
    return png_bytes(figure)

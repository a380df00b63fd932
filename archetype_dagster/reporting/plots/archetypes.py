"""Pictures of the archetypes: how they trade, what shape they have and how often they are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import MaxNLocator

from archetype_dagster.reporting.plots.canvas import LIGHT, Theme, dress, new_figure, png_bytes, thousands
from archetype_dagster.reporting.plots.performance import ENTRY_LABELS, draw_position
from archetype_dagster.types import FLAT, ActionArray, FloatArray, IndexArray


@dataclass(frozen=True)
class ArchetypeExample:
    """One horizon traded by one archetype.

    Attributes:
        code: archetype index.
        title: text above the panel, e.g. the start time.
        mark: float64 (n,), mid price at each bar, quote units.
        actions: int8 (n,), 0 short, 1 flat, 2 long.
        initial_action: action in force before the first bar.
    """

    code: int
    title: str
    mark: FloatArray
    actions: ActionArray
    initial_action: int = FLAT

    def __post_init__(self) -> None:
        if len(self.mark) != len(self.actions):
            raise ValueError(f"actions must have one value per mark, got {len(self.actions)} for {len(self.mark)}")


def archetype_behaviour(
    examples: Sequence[ArchetypeExample], *, hindsight: bool = False, theme: Theme = LIGHT
) -> bytes:
    """PNG of price with entries (the paper's Figure 2): one row an archetype, one panel an example."""
    codes = sorted({example.code for example in examples})
    if not codes:
        raise ValueError("archetype_behaviour needs at least one example, got none")
    rows = [[example for example in examples if example.code == code] for code in codes]
    columns = max(map(len, rows))
    height = 0.75 + 1.75 * len(rows)
    figure = new_figure(theme, height, layout=None)
    grid = figure.subplots(len(rows), columns, squeeze=False)
    figure.subplots_adjust(0.06, 0.5 / height, 0.99, 1.0 - 0.6 / height, wspace=0.12, hspace=0.42)
    for code, row, panels in zip(codes, rows, grid, strict=True):
        for axes in panels[len(row) :]:
            axes.set_visible(False)
        for axes, example in zip(panels, row, strict=False):
            note = " (hindsight)" if hindsight else ""
            dress(axes, theme, title=f"Archetype {code}{note} · {example.title}")
            position = example.actions.astype(np.float64) - 1.0
            before = np.concatenate(([example.initial_action - 1.0], position[:-1]))
            draw_position(axes, np.arange(len(position)), example.mark, position, before, theme, marker_size=34)
            axes.margins(x=0.02)
            axes.yaxis.set_major_locator(MaxNLocator(4))
            thousands(axes)
    for axes in grid[-1]:
        axes.set_xlabel("bars since the horizon's start", fontsize=8, color=theme.muted)
    kinds: dict[str, Artist] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        kinds.update(zip(labels, handles, strict=True))
    order = [label for label in ENTRY_LABELS if label in kinds]
    if order:
        figure.legend(
            [kinds[label] for label in order],
            order,
            loc="upper right",
            ncols=len(order),
            frameon=False,
            fontsize=8,
            labelcolor=theme.muted,
        )
    return png_bytes(figure)


def archetype_profile(
    actions: ActionArray, codes: IndexArray, *, num_codes: int, hindsight: bool = False, theme: Theme = LIGHT
) -> bytes:
    """PNG of the mean position at each step of a horizon, one row an archetype.

    Args:
        actions: int8 (n, h), base actions of n whole horizons.
        codes: int64 (n,), archetype of each horizon.
        num_codes: K.
        hindsight: True where the decoder read the horizon's future; said in the title.
        theme: colours.
    """
    if len(actions) != len(codes):
        raise ValueError(f"codes must have one value per horizon, got {len(codes)} for {len(actions)}")
    counts = np.bincount(codes, minlength=num_codes)
    total = np.zeros((num_codes, actions.shape[1]))
    np.add.at(total, codes, actions.astype(np.float64) - 1.0)
    mean = np.ma.masked_invalid(np.where(counts[:, None] > 0, total / np.maximum(counts, 1)[:, None], np.nan))
    figure = new_figure(theme, 0.8 + 0.26 * num_codes)
    axes = figure.subplots()
    note = " (hindsight)" if hindsight else ""
    dress(axes, theme, title=f"Mean position of each archetype over its horizon{note}")
    axes.grid(False)
    shades = LinearSegmentedColormap.from_list("position", [theme.loss, theme.grid, theme.gain])
    image = axes.imshow(mean, aspect="auto", cmap=shades, vmin=-1, vmax=1, interpolation="nearest")
    axes.set_yticks(range(num_codes), [f"{code}  (n = {count:,})" for code, count in enumerate(counts)])
    axes.set_xlabel("bars since the horizon's start", fontsize=8, color=theme.muted)
    bar = figure.colorbar(image, ax=axes, ticks=[-1, 0, 1], pad=0.015, fraction=0.03)
    bar.ax.set_yticklabels(["short", "flat", "long"])
    bar.ax.tick_params(colors=theme.muted, labelsize=8, length=0)
    bar.outline.set_visible(False)
    return png_bytes(figure)


def usage(
    counts: Sequence[int] | IndexArray, *, title: str = "How often each archetype was chosen", theme: Theme = LIGHT
) -> bytes:
    """PNG of bars: share of horizons by archetype; counts is int (K,)."""
    values = np.asarray(counts, dtype=np.int64)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"counts must be one-dimensional and not empty, got shape {values.shape}")
    share = 100.0 * values / max(int(values.sum()), 1)
    figure = new_figure(theme, 2.2)
    axes = figure.subplots()
    dress(axes, theme, title=f"{title}, % of {int(values.sum()):,}")
    bars = axes.bar(np.arange(len(values)), share, width=0.62, color=theme.cycle[0])
    axes.bar_label(bars, [f"{part:.1f}" for part in share], fontsize=8, color=theme.muted, padding=2)
    axes.set_xticks(range(len(values)))
    axes.margins(y=0.15)
    axes.set_xlabel("archetype", fontsize=8, color=theme.muted)
    return png_bytes(figure)

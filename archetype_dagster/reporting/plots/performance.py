"""Pictures of an account over time: return, drawdown, exposure and the latest trades."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from archetype_dagster.backtest.performance import drawdowns
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
from archetype_dagster.types import FloatArray

HINDSIGHT_NOTE: Final = "hindsight, not attainable"
ENTRY_LABELS: Final = ("to long", "to short", "to flat")


@dataclass(frozen=True)
class Curve:
    """One account's net value.

    Attributes:
        name: variant name; sets the colour.
        label: text of the legend.
        timestamps: datetime64 (T,), bar ends, UTC.
        net_value: float64 (T,), quote units, after each bar's trade.
        initial_capital: net value before the first bar, quote units.
        hindsight: True where the account read the future.
    """

    name: str
    label: str
    timestamps: NDArray[np.datetime64]
    net_value: FloatArray
    initial_capital: float
    hindsight: bool = False

    def __post_init__(self) -> None:
        require_equal_length(self.timestamps, net_value=self.net_value)
        if not self.initial_capital > 0:
            raise ValueError(f"initial_capital must be positive, got initial_capital={self.initial_capital}")

    @property
    def cumulative_return(self) -> FloatArray:
        """float64 (T,): return since the start, in percent."""
        return 100.0 * (self.net_value / self.initial_capital - 1.0)

    @property
    def drawdown(self) -> FloatArray:
        """float64 (T,): loss from the running peak, which starts at the initial capital, in percent, <= 0."""
        return -100.0 * drawdowns(np.concatenate(([self.initial_capital], self.net_value)))[1:]


def equity(curves: Sequence[Curve], *, theme: Theme = LIGHT) -> bytes:
    """PNG of cumulative returns; hindsight curves get a tinted panel and a scale of their own below."""
    honest = [curve for curve in curves if not curve.hindsight]
    bounds = [curve for curve in curves if curve.hindsight]
    panels = [panel for panel in (honest, bounds) if panel]
    if not panels:
        raise ValueError("equity needs at least one curve, got none")
    # A panel of one or two curves says all it has to say at a third of the height.
    heights = [4.2 if len(panel) > 2 or panel is honest else 1.7 for panel in panels]
    figure = new_figure(theme, sum(heights))
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})
    for axes, panel in zip(grid[:, 0], panels, strict=True):
        title = "Cumulative return, % of initial capital"
        dress(axes, theme, title=f"{title} ({HINDSIGHT_NOTE})" if panel is bounds else title)
        if panel is bounds:
            axes.patch.set(facecolor=theme.hindsight, alpha=0.07)
        axes.axhline(0.0, color=theme.muted, linewidth=0.8)
        _draw_lines(axes, panel, theme)
        _percent(axes)
        axes.margins(x=0.01)
        _make_room_above(axes, 0.2 if len(panel) > 1 else 0.0)
        legend(axes, theme, loc="upper left", ncols=4)
    date_axis(grid[-1, 0], theme)
    return png_bytes(figure)


def drawdown(curves: Sequence[Curve], *, theme: Theme = LIGHT) -> bytes:
    """PNG of the drawdown in percent of the running peak; the first curve is filled."""
    if not curves:
        raise ValueError("drawdown needs at least one curve, got none")
    figure = new_figure(theme, 2.6)
    axes = figure.subplots()
    dress(axes, theme, title="Drawdown, % below the peak so far")
    first = curves[0]
    axes.fill_between(first.timestamps, first.drawdown, 0.0, color=theme.colour(first.name), alpha=0.18, linewidth=0)
    for index, curve in enumerate(curves):
        axes.plot(
            curve.timestamps,
            curve.drawdown,
            label=_label(curve),
            color=theme.colour(curve.name, index),
            linewidth=1.4 if curve is first else 1.0,
            linestyle="--" if curve.hindsight else "-",
        )
    axes.set_ylim(top=0.0)
    axes.margins(x=0.01)
    _percent(axes)
    legend(axes, theme, loc="lower right", ncols=len(curves), bbox_to_anchor=(1.0, 1.0))
    date_axis(axes, theme)
    return png_bytes(figure)


def exposure(
    timestamps: NDArray[np.datetime64],
    position: FloatArray,
    *,
    max_position: float,
    hindsight: bool = False,
    theme: Theme = LIGHT,
) -> bytes:
    """PNG of the share of each day spent long (up) and short (down).

    Args:
        timestamps: datetime64 (T,), bar ends, UTC.
        position: float64 (T,), base units after each bar's trade.
        max_position: m in base units.
        hindsight: True where the account read the future; said in the title.
        theme: colours.
    """
    require_equal_length(timestamps, position=position)
    if not max_position > 0:
        raise ValueError(f"max_position must be positive, got max_position={max_position}")
    days, first = np.unique(timestamps.astype("datetime64[D]"), return_index=True)
    bars = np.diff(np.append(first, len(timestamps)))
    share = position / max_position
    long_share = 100.0 * np.add.reduceat(np.maximum(share, 0.0), first) / bars
    short_share = 100.0 * np.add.reduceat(np.minimum(share, 0.0), first) / bars
    figure = new_figure(theme, 2.3)
    axes = figure.subplots()
    note = f" ({HINDSIGHT_NOTE})" if hindsight else ""
    dress(axes, theme, title=f"Position: share of each day long and short{note}")
    axes.bar(days, long_share, width=1.0, color=theme.gain, alpha=0.85, label="long")
    axes.bar(days, short_share, width=1.0, color=theme.loss, alpha=0.85, label="short")
    axes.axhline(0.0, color=theme.muted, linewidth=0.8)
    axes.set_ylim(-104, 104)
    axes.margins(x=0.01)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{abs(value):.0f} %"))
    legend(axes, theme, loc="lower right", ncols=2, bbox_to_anchor=(1.0, 1.0))
    date_axis(axes, theme)
    return png_bytes(figure)


def recent_trades(
    timestamps: NDArray[np.datetime64],
    mark: FloatArray,
    position: FloatArray,
    *,
    bars: int = 1008,
    hindsight: bool = False,
    theme: Theme = LIGHT,
) -> bytes:
    """PNG of the last `bars` bars of the price, shaded while long or short, with every trade marked.

    Args:
        timestamps: datetime64 (T,), bar ends, UTC.
        mark: float64 (T,), mid price, quote units.
        position: float64 (T,), base units after each bar's trade; flat before the first.
        bars: length of the window.
        hindsight: True where the account read the future; said in the title.
        theme: colours.
    """
    require_equal_length(timestamps, mark=mark, position=position)
    before = np.concatenate(([0.0], position[:-1]))[-bars:]
    times, price, held = timestamps[-bars:], mark[-bars:], position[-bars:]
    figure = new_figure(theme, 2.9)
    axes = figure.subplots()
    note = f" ({HINDSIGHT_NOTE})" if hindsight else ""
    dress(axes, theme, title=f"Last {len(times):,} bars: price, position held and trades{note}")
    draw_position(axes, times, price, held, before, theme)
    axes.margins(x=0.005)
    thousands(axes)
    legend(axes, theme, loc="lower right", ncols=3, bbox_to_anchor=(1.0, 1.0))
    date_axis(axes, theme)
    return png_bytes(figure)


def draw_position(
    axes: Axes,
    x: NDArray[np.generic],
    price: FloatArray,
    position: FloatArray,
    before: FloatArray,
    theme: Theme,
    *,
    marker_size: float = 30.0,
) -> None:
    """Draw a price line, shade where `position` is long or short and mark each change.

    All arrays are (n,); `before` is the position held before each bar's trade.
    """
    axes.plot(x, price, color=theme.ink, linewidth=1.0)
    edges = np.repeat(x, 2)[1:]
    for held, colour in ((position > 0, theme.gain), (position < 0, theme.loss)):
        until_next_bar = np.repeat(held, 2)[:-1]
        axes.fill_between(
            edges, 0, 1, where=until_next_bar, transform=axes.get_xaxis_transform(), color=colour, alpha=0.13, lw=0
        )
    changed = position != before
    kinds = (
        (changed & (position > 0), "^", theme.gain),
        (changed & (position < 0), "v", theme.loss),
        (changed & (position == 0), "o", theme.muted),
    )
    for (mask, marker, colour), label in zip(kinds, ENTRY_LABELS, strict=True):
        if mask.any():
            axes.scatter(x[mask], price[mask], marker=marker, s=marker_size, color=colour, zorder=3, label=label, lw=0)


def _draw_lines(axes: Axes, curves: Sequence[Curve], theme: Theme) -> None:
    for index, curve in enumerate(curves):
        leading = curve.name == "full"
        axes.plot(
            curve.timestamps,
            curve.cumulative_return,
            label=curve.label,
            color=theme.colour(curve.name, index),
            linewidth=1.9 if leading else 1.1,
            linestyle="--" if curve.hindsight else "-",
            zorder=3 if leading else 2,
        )


def _make_room_above(axes: Axes, fraction: float) -> None:
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + fraction * (high - low))


def _label(curve: Curve) -> str:
    return f"{curve.label} ({HINDSIGHT_NOTE})" if curve.hindsight else curve.label


def _percent(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f} %" if value else "0 %"))

"""What every picture shares: the two colour themes, axes in the house style, and PNG bytes that repeat.

Figures are built without pyplot, so no global state is touched and threads may draw at once.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

DOTS_PER_INCH: Final = 160
WIDTH_INCHES: Final = 10.0


@dataclass(frozen=True)
class Theme:
    """Colours of one appearance of the page.

    Attributes:
        name: `light` or `dark`.
        paper: background.
        ink: titles and the price line.
        muted: tick labels and legends.
        grid: grid lines and frames.
        gain: long positions and profit.
        loss: short positions and loss.
        hindsight: everything that read the future.
        series: line colour by variant name; others take colours from `cycle` in order.
        cycle: colours of curves without a colour of their own.
    """

    name: Literal["light", "dark"]
    paper: str
    ink: str
    muted: str
    grid: str
    gain: str
    loss: str
    hindsight: str
    cycle: tuple[str, ...]
    series: Mapping[str, str] = field(default_factory=dict)

    def colour(self, name: str, index: int = 0) -> str:
        """Colour of the curve called `name`, or the `index`-th of the cycle."""
        return self.series.get(name, self.cycle[index % len(self.cycle)])


LIGHT: Final = Theme(
    name="light",
    paper="#ffffff",
    ink="#16202e",
    muted="#5c6779",
    grid="#e4e8ee",
    gain="#0f8a5f",
    loss="#c8374a",
    hindsight="#a3428f",
    cycle=("#1f5fd0", "#0f8a8a", "#c77700", "#7a5af5", "#5c6779", "#b0483a", "#3f7d20", "#9aa4b2"),
    series={
        "full": "#1f5fd0",
        "no_refinement": "#0f8a8a",
        "base_archetype": "#c77700",
        "random_archetype": "#8f7be0",
        "buy_and_hold": "#5c6779",
        "always_flat": "#aab3c0",
        "hindsight_plan": "#a3428f",
    },
)
DARK: Final = Theme(
    name="dark",
    paper="#151b24",
    ink="#e8ecf2",
    muted="#98a3b3",
    grid="#2a3340",
    gain="#43c495",
    loss="#f0707f",
    hindsight="#d88ac8",
    cycle=("#6ea3ff", "#4cc9c0", "#f0b04a", "#a996ff", "#a3adbb", "#e58a7c", "#8cc46b", "#6b7686"),
    series={
        "full": "#6ea3ff",
        "no_refinement": "#4cc9c0",
        "base_archetype": "#f0b04a",
        "random_archetype": "#a996ff",
        "buy_and_hold": "#a3adbb",
        "always_flat": "#5d6877",
        "hindsight_plan": "#d88ac8",
    },
)


def new_figure(
    theme: Theme,
    height: float,
    *,
    width: float = WIDTH_INCHES,
    layout: Literal["constrained"] | None = "constrained",
) -> Figure:
    """An empty figure of `width` by `height` inches on the theme's paper; many axes are faster laid out by hand."""
    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, facecolor=theme.paper, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def dress(axes: Axes, theme: Theme, *, title: str = "", ylabel: str = "") -> None:
    """Give axes the house style: no frame but a base line, light grid, title at the left."""
    axes.set_facecolor(theme.paper)
    axes.set_axisbelow(True)
    axes.grid(True, axis="y", color=theme.grid, linewidth=0.8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(theme.grid)
    axes.tick_params(colors=theme.muted, labelsize=8, length=0, pad=4)
    if title:
        axes.set_title(title, loc="left", fontsize=9.5, color=theme.ink, fontweight="bold", pad=7)
    if ylabel:
        axes.set_ylabel(ylabel, fontsize=8, color=theme.muted)


def date_axis(axes: Axes, theme: Theme) -> None:
    """Readable UTC dates along the x axis."""
    locator = AutoDateLocator(minticks=4, maxticks=9)  # type: ignore[no-untyped-call]
    formatter = ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(formatter)
    axes.xaxis.get_offset_text().set(color=theme.muted, fontsize=8)


def thousands(axes: Axes) -> None:
    """Prices with a thousands separator along the y axis, with as many decimals as the ticks need."""
    low, high = sorted(axes.get_ylim())
    decimals = max(0, 1 - int(np.floor(np.log10(max(high - low, 1e-12)))))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.{min(decimals, 6)}f}"))


def legend(axes: Axes, theme: Theme, **options: Any) -> None:
    """A frameless legend in the muted colour; nothing where no artist has a label."""
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=8, labelcolor=theme.muted, handlelength=1.6, **{"frameon": False, **options})


def png_bytes(figure: Figure) -> bytes:
    """The figure as PNG without date or software metadata: same data, same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor=figure.get_facecolor(), metadata={"Software": None})
    return buffer.getvalue()


def require_equal_length(timestamps: NDArray[np.datetime64], **arrays: NDArray[Any]) -> None:
    """Raise `ValueError` naming the array whose first axis does not match the timestamps."""
    for name, array in arrays.items():
        if len(array) != len(timestamps):
            raise ValueError(f"{name} must have one value per timestamp, got {len(array)} for {len(timestamps)}")

"""Pictures: same data, same bytes; nothing about the machine in them; bad shapes refused."""

import struct

import numpy as np
import polars as pl
import pytest

from archetype_dagster.reporting import plots
from archetype_dagster.reporting.plots.performance import Curve

BARS = 400
TIMES = np.datetime64("2024-01-01T00:10", "us") + np.arange(BARS) * np.timedelta64(10, "m")
MARK = 2000.0 + 10.0 * np.sin(np.arange(BARS) / 20.0)
POSITION = np.repeat([0.0, 100.0, -100.0, 0.0], BARS // 4)


def curve(name: str = "full", *, hindsight: bool = False) -> Curve:
    return Curve(name, name, TIMES, 1000.0 + np.cumsum(np.cos(np.arange(BARS) / 9.0)), 1000.0, hindsight)


def chunks(png: bytes) -> list[str]:
    names, at = [], 8
    while at < len(png):
        (size,) = struct.unpack(">I", png[at : at + 4])
        names.append(png[at + 4 : at + 8].decode())
        at += 12 + size
    return names


PICTURES = {
    "equity": lambda theme: plots.equity([curve(), curve("hindsight_plan", hindsight=True)], theme=theme),
    "drawdown": lambda theme: plots.drawdown([curve(), curve("buy_and_hold")], theme=theme),
    "exposure": lambda theme: plots.exposure(TIMES, POSITION, max_position=100.0, theme=theme),
    "recent_trades": lambda theme: plots.recent_trades(TIMES, MARK, POSITION, bars=200, theme=theme),
    "archetype_behaviour": lambda theme: plots.archetype_behaviour(
        [plots.ArchetypeExample(k, "t", MARK[:72], np.repeat([1, 2, 0], 24).astype(np.int8)) for k in (0, 0, 3)],
        theme=theme,
    ),
    "archetype_profile": lambda theme: plots.archetype_profile(
        np.tile(np.repeat([1, 2], 36).astype(np.int8), (3, 1)), np.array([0, 1, 1]), num_codes=4, theme=theme
    ),
    "bars_quality": lambda theme: plots.bars_quality(
        TIMES,
        np.where(MARK > 2005, np.nan, MARK / 1e4),
        {"locked book (bars)": 12, "none": 0},
        bar_minutes=10,
        theme=theme,
    ),
    "usage": lambda theme: plots.usage([3, 0, 7], theme=theme),
    "learning_curves": lambda theme: plots.learning_curves(
        pl.DataFrame({"epoch": [1, 2], "loss": [1.0, 0.5], "accuracy": [None, 0.7]}),
        {"Loss": ["loss"], "Accuracy": ["accuracy"]},
        x="epoch",
        theme=theme,
    ),
    "price_history": lambda theme: plots.price_history(
        TIMES, MARK, splits={"train": (TIMES[0], TIMES[200])}, theme=theme
    ),
    "histograms": lambda theme: plots.histograms(np.column_stack([MARK, np.ones(BARS)]), ["wave", "flat"], theme=theme),
}


@pytest.mark.parametrize("name", PICTURES)
def test_same_data_gives_the_same_png_bytes_without_metadata(name):
    first, second = PICTURES[name](plots.LIGHT), PICTURES[name](plots.LIGHT)
    assert first == second
    assert set(chunks(first)) <= {"IHDR", "pHYs", "IDAT", "IEND"}


@pytest.mark.parametrize("name", ["equity", "archetype_behaviour", "usage"])
def test_themes_differ_but_have_the_same_size(name):
    light, dark = PICTURES[name](plots.LIGHT), PICTURES[name](plots.DARK)
    assert light != dark
    assert light[16:24] == dark[16:24]


def test_a_hindsight_curve_gets_a_panel_of_its_own():
    honest = plots.equity([curve()])
    both = plots.equity([curve(), curve("hindsight_plan", hindsight=True)])
    assert struct.unpack(">I", both[20:24])[0] > struct.unpack(">I", honest[20:24])[0]


def test_the_hindsight_flag_changes_the_picture():
    marked = plots.exposure(TIMES, POSITION, max_position=100.0, hindsight=True)
    assert marked != plots.exposure(TIMES, POSITION, max_position=100.0)


def test_drawdown_counts_the_initial_capital_as_the_first_peak():
    falling = Curve("full", "full", TIMES[:3], np.array([90.0, 95.0, 80.0]), 100.0)
    assert falling.drawdown == pytest.approx([-10.0, -5.0, -20.0])
    assert falling.cumulative_return == pytest.approx([-10.0, -5.0, -20.0])


def test_pictures_leave_no_global_figure_behind():
    import matplotlib.pyplot as plt

    PICTURES["usage"](plots.LIGHT)
    assert plt.get_fignums() == []


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.equity([]), "at least one curve"),
        (lambda: plots.exposure(TIMES, POSITION[:-1], max_position=1.0), "position must have one value per timestamp"),
        (lambda: plots.exposure(TIMES, POSITION, max_position=0.0), "max_position must be positive"),
        (lambda: plots.usage([]), "counts must be one-dimensional"),
        (lambda: plots.archetype_behaviour([]), "at least one example"),
        (lambda: plots.histograms(np.ones((3, 2)), ["one"]), r"values must be \(n, 1\)"),
        (lambda: plots.learning_curves(pl.DataFrame({"epoch": [1]}), {"Loss": ["loss"]}, x="epoch"), "missing.*loss"),
        (lambda: Curve("a", "a", TIMES, np.ones(BARS), 0.0), "initial_capital must be positive"),
    ],
)
def test_bad_input_is_refused_with_its_rule(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()

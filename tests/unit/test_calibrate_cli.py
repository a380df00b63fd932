"""`archetype calibrate`: the shipped calibrations come out of it, and bad input ends in one line."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from typer.testing import CliRunner

from archetype_dagster.calibrate_cli import app
from archetype_dagster.errors import MarketDataError, SettingsError
from archetype_dagster.market.impact import ImpactCurve
from archetype_dagster.settings import config_text


def calibrate(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """Six snapshots of a straight book around 10,000: level k lies k bp away and holds 2 units."""
    steps = np.arange(1.0, 31.0)
    lists = {"bids_px": 10_000 - steps, "asks_px": 10_000 + steps}
    lists |= {"bids_qty": np.full(30, 2.0), "asks_qty": np.full(30, 2.0)}
    file = tmp_path / "deep.parquet"
    pl.DataFrame({name: [values.tolist()] * 6 for name, values in lists.items()}).write_parquet(file)
    return file


def test_the_shipped_impact_curve_is_what_the_command_prints(shared_data: Path) -> None:
    printed = calibrate("impact", shared_data / "book" / "binance_spot_btcusdt_1000levels_2026-02-16.parquet")
    assert yaml.safe_load(printed) == yaml.safe_load(config_text("impact_curve.yaml"))


def test_the_shipped_modelled_book_is_what_the_command_prints(shared_data: Path) -> None:
    files = [
        shared_data / "book" / f"binance_spot_{name}usdt_{kind}_2024-08-08.parquet"
        for name in ("btc", "eth")
        for kind in ("book_1s_20lvl", "trades")
    ]
    assert yaml.safe_load(calibrate("book", *files)) == yaml.safe_load(config_text("modelled_book.yaml"))


def test_a_curve_is_written_to_a_file_that_can_be_read_back(deep: Path, tmp_path: Path) -> None:
    target = tmp_path / "curve.yaml"
    assert str(target) in calibrate("impact", deep, "--output", target)
    knots = np.array(yaml.safe_load(target.read_text())["knots"])
    curve = ImpactCurve(knots[:, 0], knots[:, 1])
    assert curve.distance(np.array([1e4, 5e5])).tolist() == [1.0, pytest.approx(25.0, abs=3.0)]
    assert target.read_text().startswith("# Made by `archetype calibrate impact` from deep.parquet.")


def test_the_judgement_has_a_row_for_each_order_and_their_mean(deep: Path) -> None:
    printed = calibrate("judge", f"here={deep}", "--level", "6", "--quantity", "4", "--quantity", "20").splitlines()
    assert printed[0] == "here, 3 snapshots: mean error (mean absolute error) in bp"
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed if line.startswith("|")]
    policies = ["last_level", "extrapolate, same snapshots", "extrapolate, first half"]
    assert table[0][:7] == ["visible levels", "order", "filled by them", "true cost", *policies]
    # 20 units reach level 10; the last level seen is level 6, so 2 units each miss 1, 2, 3 and 4 bp.
    assert [row[:5] for row in table[2:]] == [
        ["6", "buy 4", "100%", "1.50", "+0.00 (0.00)"],
        ["6", "sell 4", "100%", "1.50", "+0.00 (0.00)"],
        ["6", "buy 20", "0%", "5.50", "-1.00 (1.00)"],
        ["6", "sell 20", "0%", "5.50", "-1.00 (1.00)"],
        ["6", "mean", "50%", "3.50", "-0.50 (0.50)"],
    ]


def test_a_comparison_has_a_row_for_each_measure(shared_data: Path) -> None:
    bars = shared_data / "book" / "standx_perp_btcusd_bars_10min_72h.csv"
    printed = calibrate("compare", "--pair", "BTC", "--source", "book-table", "--path", bars, "--levels", "10")
    lines = printed.strip().splitlines()
    assert lines[0] == f"{bars.name}, 427 10-minute bars: median [quartiles]"
    assert [line.split("|")[1].strip() for line in lines[4:]] == [
        "spread [bp]",
        "depth of 5 levels, a side [BTC]",
        "depth of 10 levels, a side [BTC]",
        "distance of level 5 from the mid [bp]",
        "distance of level 10 from the mid [bp]",
        "cost of m = 8 BTC [bp]",
        "cost of 2m = 16 BTC [bp]",
    ]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["book", "a.parquet"], SettingsError, "takes a trades file after each book file, got 1 files"),
        (["judge", "a.parquet"], SettingsError, "a market to judge is NAME=FILE, got 'a.parquet'"),
        (["judge", "a=b.parquet", "a=c.parquet"], SettingsError, "each market needs a name of its own"),
        (["judge", "a=b.parquet", "--quantity", "-1"], SettingsError, "quantity must be positive, got -1"),
        (["judge", "a=nowhere.parquet"], MarketDataError, "nowhere.parquet: file does not exist"),
        (["judge", "a=nowhere.parquet", "--pair", "XRP"], SettingsError, "unknown pair 'XRP'"),
        (["impact", "nowhere.parquet"], MarketDataError, "nowhere.parquet: file does not exist"),
    ],
)
def test_bad_input_is_named(arguments: list[str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        calibrate(*arguments)


def test_a_shallow_table_makes_no_curve(tmp_path: Path) -> None:
    file = tmp_path / "trades.parquet"
    pl.DataFrame({"price": [1.0]}).write_parquet(file)
    with pytest.raises(MarketDataError, match="field bids_px: a deep book must have this column"):
        calibrate("impact", file)

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from archetype_dagster.envs import StockTradingEnv, generated_prices, price_panel
from archetype_dagster.envs.price_columns import price_columns
from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.book import mark_prices
from archetype_dagster.settings import PricePathSettings, StockTradingSettings

TIMES = [datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=hour) for hour in range(6)]
WIDE = pl.DataFrame({"timestamp": TIMES, "A": [1.0, 2, 3, 4, 5, 6], "B": [6, 5, 4, 3, 2, 1]})


def test_a_wide_frame_is_taken_as_it_is() -> None:
    panel = price_panel(WIDE)
    assert panel.names == ("A", "B")
    assert panel.prices.dtype == np.float64
    np.testing.assert_array_equal(panel.prices, WIDE.drop("timestamp").to_numpy())
    assert panel.timestamps[1] == np.datetime64("2024-01-01T01:00", "us")
    assert panel.segment.tolist() == [0] * 6
    days = WIDE.with_columns(timestamp=pl.date_range(TIMES[0].date(), TIMES[0].date() + timedelta(days=5), eager=True))
    assert price_panel(days).timestamps[5] == np.datetime64("2024-01-06", "us")


def test_bars_tables_are_joined_on_common_ends_and_keep_their_gaps(bars: pl.DataFrame) -> None:
    mine = bars.with_row_index().filter(~pl.col("index").is_between(200, 209)).drop("index")
    later = mine.with_columns(segment=pl.col("segment") + (pl.int_range(pl.len()) >= 200).cast(pl.Int32))
    plain = bars.select("timestamp", "close", "segment")
    panel = price_panel({"one": later, "two": plain})
    assert panel.names == ("one", "two")
    np.testing.assert_array_equal(panel.prices[:, 0], mark_prices(later))
    np.testing.assert_array_equal(panel.prices[:, 1], mine["close"].to_numpy())
    assert np.flatnonzero(np.diff(panel.segment)).tolist() == [149, 199]
    assert panel.rows_before[[0, 149, 150, 199, 200]].tolist() == [0, 149, 0, 49, 0]
    assert panel.rows_after[[0, 149, 150, 199]].tolist() == [149, 0, 49, 0]
    env = StockTradingEnv({"one": later, "two": plain}, settings=StockTradingSettings(turbulence_bars=30))
    assert env.bar_features[:3] == ("one.return", "one.trend", "one.volatility")
    assert price_panel(plain).names == ("price",)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (WIDE.with_columns(A=pl.Series([1.0, 2, None, 4, 5, 6])), "row 2, field A: a price must be positive"),
        (WIDE.with_columns(A=pl.Series([1.0, float("nan"), 3, 4, 5, 6])), "row 1, field A"),
        (WIDE.with_columns(B=pl.Series([1.0, 2, 3, 0, 5, 6])), "row 3, field B"),
        (WIDE.with_columns(B=pl.lit("x")), "must be a number"),
        (WIDE[[0, 1, 1, 2]], "row 2, field timestamp: times must increase"),
        (WIDE.drop("timestamp"), "a timestamp and an asset"),
        (WIDE[:0], "must have rows"),
        ({"one": WIDE}, "lacks"),
        ({}, "at least one asset"),
    ],
)
def test_prices_that_cannot_be_used_are_named_and_never_filled(frame: pl.DataFrame, message: str) -> None:
    with pytest.raises(MarketDataError, match=message):
        price_panel(frame)


def test_generated_prices_follow_their_seed_and_settings() -> None:
    settings = PricePathSettings(assets=4, bars=4_000, volatility_dispersion=0.0, correlation=0.5, trend_share=0.0)
    frame = generated_prices(settings)
    assert frame.equals(generated_prices(settings))
    assert not frame.equals(generated_prices(settings.model_copy(update={"seed": 1})))
    returns = np.diff(np.log(frame.drop("timestamp").to_numpy()), axis=0)
    np.testing.assert_allclose(returns.std(axis=0), 0.012, rtol=0.05)
    np.testing.assert_allclose(np.corrcoef(returns.T)[np.triu_indices(4, 1)], 0.5, atol=0.06)
    assert frame["timestamp"][1] - frame["timestamp"][0] == timedelta(days=1)


def test_columns_are_their_definitions() -> None:
    prices = generated_prices(PricePathSettings(assets=2, bars=40)).drop("timestamp").to_numpy()
    columns = price_columns(prices, 5, unit=100.0)
    logs = np.log(prices)
    for row in (5, 17, 39):
        returns = np.diff(logs[row - 5 : row + 1], axis=0)
        expected = [returns[-1], logs[row] - logs[row - 4 : row + 1].mean(axis=0), returns.std(axis=0)]
        np.testing.assert_allclose(columns[row], 100 * np.stack(expected, axis=1), rtol=1e-9)
    assert not columns[:5].any()

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from archetype_dagster.errors import MarketDataError, SettingsError
from archetype_dagster.policy_training import Tasks, load_prices, price_files
from archetype_dagster.policy_training.prices import within
from archetype_dagster.settings.policy_specs import CandleUniverse, PolicySpec

START = datetime(2024, 1, 1, tzinfo=UTC)


def candles(folder: Path, pair: str, *, rows: int = 240, missing: int | None = None, seed: int = 0) -> None:
    """Five-minute candles of a random walk, one of them missing."""
    close = 100 * np.exp(np.cumsum(0.001 * np.random.default_rng(seed).normal(size=rows)))
    opened = [START + timedelta(minutes=5 * row) for row in range(rows)]
    table = pl.DataFrame({"open_time": opened, "open": close, "high": close, "low": close, "close": close})
    table = table.with_columns(pl.lit(1.0).alias("volume"), pl.col("open_time").dt.epoch("ms"))
    keep = np.arange(rows) != (rows if missing is None else missing)
    table.filter(pl.Series(keep)).write_parquet(folder / f"{pair}USDT.parquet")


def universe(folder: Path, **changes: Any) -> CandleUniverse:
    values = {"source": "candles", "path": folder, "pairs": ("BTC", "ETH"), "bar_minutes": 10, **changes}
    return CandleUniverse.model_validate(values)


def test_candles_become_closes_of_whole_bars_and_a_gap_ends_a_segment(tmp_path: Path) -> None:
    candles(tmp_path, "BTC", missing=101)
    candles(tmp_path, "ETH", seed=1)
    prices = load_prices(universe(tmp_path))
    assert isinstance(prices, dict)
    assert {name: frame.height for name, frame in prices.items()} == {"BTC": 119, "ETH": 120}
    assert prices["BTC"]["segment"].max() == 1
    assert prices["ETH"]["timestamp"][0] == START + timedelta(minutes=10)
    later = within(prices, (START + timedelta(hours=10), START + timedelta(hours=11)))
    assert isinstance(later, dict)
    assert later["ETH"]["timestamp"].to_list() == [START + timedelta(hours=10, minutes=10 * n) for n in range(6)]


def test_the_files_count_by_what_is_in_them(tmp_path: Path) -> None:
    for pair in ("BTC", "ETH"):
        candles(tmp_path, pair)
    before = price_files(universe(tmp_path))
    assert sorted(before) == ["BTC/0", "ETH/0"]
    candles(tmp_path, "ETH", seed=9)
    after = price_files(universe(tmp_path))
    assert after["BTC/0"] == before["BTC/0"]
    assert after["ETH/0"] != before["ETH/0"]


def test_missing_files_and_pairs_are_refused(tmp_path: Path) -> None:
    candles(tmp_path, "BTC")
    with pytest.raises(MarketDataError, match=str(tmp_path)):
        load_prices(universe(tmp_path))
    with pytest.raises(SettingsError, match="unknown pair 'DOGE'"):
        load_prices(universe(tmp_path, pairs=("DOGE",)))


def test_a_specification_trades_real_candles(shared_data: Path, brief: Callable[..., PolicySpec]) -> None:
    real = {"source": "candles", "path": str(shared_data / "spot_15m"), "pairs": ["BTC", "ETH"], "bar_minutes": 60}
    dates = {
        **{"windows.train_start": "2024-01-01T00:00:00Z", "windows.train_end": "2024-02-01T00:00:00Z"},
        **{"windows.validation_start": "2024-02-01T00:00:00Z", "windows.validation_end": "2024-03-01T00:00:00Z"},
        **{"windows.evaluation_start": "2024-03-01T00:00:00Z", "windows.evaluation_end": "2024-04-01T00:00:00Z"},
    }
    tasks = Tasks.of(brief("transformer_stock_trading", {"universe": real, **dates}))
    assert tasks.evaluation.panel.names == ("BTC", "ETH")
    assert len(tasks.evaluation.panel) == 31 * 24
    assert (tasks.evaluation.panel.prices[:, 0] > 50_000).all()

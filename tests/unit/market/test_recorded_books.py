"""The longest recorded books: every bar's book is the last one known at its end, and locked ones are counted."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from archetype_dagster.market.bars import book_columns
from archetype_dagster.market.sources import bars_with_report, load_bars
from archetype_dagster.settings import Settings, load_settings

BARS_72H = "book/standx_perp_btcusd_bars_10min_72h.csv"
BOOK_24H = "book/standx_perp_btcusd_book_1s_10lvl_first24h.parquet"
TRADES_24H = "book/standx_perp_btcusd_trades_first24h.parquet"


def settings_for(path: Path, **market: str) -> Settings:
    chosen = {"source": "book-table", "path": str(path), **market}
    return load_settings("smoke", {f"market.{name}": value for name, value in chosen.items()})


def test_each_book_of_the_72_hours_is_the_last_snapshot_at_or_before_the_bars_end(shared_data: Path) -> None:
    bars, report = bars_with_report(settings_for(shared_data / BARS_72H), "BTC")
    file = pl.read_csv(shared_data / BARS_72H).filter(pl.col("close").is_not_null())
    end = (
        pl.from_epoch(file["bar_open_ms"] + 600_000, time_unit="ms").dt.replace_time_zone("UTC").dt.cast_time_unit("us")
    )
    assert bars["timestamp"].equals(end.alias("timestamp"))
    locked = (file["bid1_price"] == file["ask1_price"]).arg_true()
    untouched = pl.Series(range(file.height)).filter(~pl.Series(range(file.height)).is_in(locked.implode()))
    # Widening moves the prices of locked rows only, and no size.
    assert bars[untouched].select(book_columns(10)).equals(file[untouched].select(book_columns(10)))
    sizes = [name for name in book_columns(10) if name.endswith("size")]
    assert bars.select(sizes).equals(file.select(sizes))
    assert (report.locked_rows, report.crossed_rows, report.segments) == (len(locked), 0, 1)
    assert report.ingestion is not None
    # The last row has a book and no trades; the sides of its trades were never recorded.
    assert report.ingestion.count("malformed_candle", "candles") == 1
    assert report.ingestion.count("one_sided_trades", "bars") == 427
    assert bars["taker_buy_volume"].null_count() == 427


def test_snapshots_and_trades_of_the_first_day_give_the_bars_that_the_recorder_made(shared_data: Path) -> None:
    paths = {"prices_source": "book-table", "prices_path": str(shared_data / TRADES_24H)}
    settings = settings_for(shared_data / BOOK_24H, **paths)
    bars, report = bars_with_report(settings, "BTC")
    recorded = load_bars(shared_data / BARS_72H, "BTC")
    assert bars.height == 143
    assert bars.drop("segment").equals(recorded[1:144].drop("segment"))
    assert report.ingestion is not None
    assert report.ingestion.count("locked_book", "snapshots") == 33_864  # 46.8 % of 72,312
    assert report.ingestion.count("crossed_book", "snapshots") == 0
    snapshots = pl.read_parquet(shared_data / BOOK_24H)
    known = bars.select(pl.col("timestamp").dt.epoch("ms").alias("ts_ms")).join_asof(
        snapshots.sort("ts_ms"), on="ts_ms", strategy="backward"
    )
    sizes = [name for name in book_columns(10) if name.endswith("size")]
    assert bars.select(sizes).equals(known.select(sizes))

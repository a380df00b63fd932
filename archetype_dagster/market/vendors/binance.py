"""Binance's public archive of trades and candles, spot and um, with and without a header row, in ms and us.

The archive has the exchange's clock only: a trade is known at its time, a candle at its close.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.delimited import Layout, clock_times
from archetype_dagster.market.files import paths_of
from archetype_dagster.market.period import Period, files_of_period, within_named_days
from archetype_dagster.market.raw import CANDLES_SCHEMA, TRADES_SCHEMA, RawMarket
from archetype_dagster.market.row_stream import read_in_order, scan_frames
from archetype_dagster.market.validation import raise_first
from archetype_dagster.market.vendors.binance_archive import ArchiveKind, archive_files
from archetype_dagster.settings import PairSettings

_KLINE_ORDER: Final = (
    "open_time",
    "open",
    "high",
    "low",
    "close",
    "volume",
    "close_time",
    "quote_volume",
    "count",
    "taker_buy_volume",
    "taker_buy_quote_volume",
    "ignore",
)
_KLINES: Final = Layout(
    "Binance klines",
    {"open_time": pl.Int64(), "close_time": pl.Int64()}
    | {name: pl.Float64() for name in ("open", "high", "low", "close", "volume", "taker_buy_volume")},
    "open_time",
    [_KLINE_ORDER],
    {"taker_buy_base_asset_volume": "taker_buy_volume"},
)
_TRADE_TYPES: Final[dict[str, pl.DataType]] = {
    "trade_id": pl.Int64(),
    "price": pl.Float64(),
    "size": pl.Float64(),
    "time": pl.Int64(),
    "is_buyer_maker": pl.Boolean(),
}
_TRADE_ORDER: Final = ("trade_id", "price", "size", "quote_qty", "time", "is_buyer_maker")
_TRADES: Final = Layout(
    "Binance trades",
    _TRADE_TYPES,
    "time",
    [_TRADE_ORDER, (*_TRADE_ORDER, "is_best_match")],
    {"id": "trade_id", "qty": "size"},
)
_AGG_TRADE_ORDER: Final = ("trade_id", "price", "size", "first_trade_id", "last_trade_id", "time", "is_buyer_maker")
_AGG_TRADES: Final = Layout(
    "Binance aggTrades",
    _TRADE_TYPES,
    "time",
    [_AGG_TRADE_ORDER, (*_AGG_TRADE_ORDER, "is_best_match")],
    {"agg_trade_id": "trade_id", "quantity": "size", "transact_time": "time"},
)


@dataclass(frozen=True)
class BinanceKlines:
    """`klines` of any interval; one interval per series."""

    name: str = "binance-klines"
    summary: str = "Binance archive klines, spot or um; known at the candle's close"

    def files(self, path: Path, pair: PairSettings, period: Period | None = None) -> tuple[Path, ...]:
        """See `raw.Source.files`."""
        return paths_of(files_of_period(archive_files(path, pair, "klines"), period, includes_end=False))

    def read(self, path: Path, pair: PairSettings, period: Period | None = None) -> RawMarket:
        """Candles of the pair; see `raw.Source.read`."""
        files = files_of_period(archive_files(path, pair, "klines"), period, includes_end=False)
        for file in files:
            _KLINES.names(file)

        def frames() -> Iterator[pl.DataFrame]:
            length = None
            rows = read_in_order(files, _KLINES, _candles, by=("open_time",))
            for frame in rows if period is None else within_named_days(rows, files, clock="open_time"):
                lengths = frame["close_time"] - frame["open_time"]
                length = length or lengths.mode().max()
                # The exchange cuts a candle short where it stopped, but never makes one longer.
                if lengths.mode().max() != length or lengths.max() != length:
                    rule = f"candles must be of one length, {length!s}, got {lengths.max()!s}"
                    raise MarketDataError(rule, file=path, field="close_time")
                yield frame

        return RawMarket(candles=scan_frames(CANDLES_SCHEMA, frames))


@dataclass(frozen=True)
class BinanceTrades:
    """`trades` or `aggTrades`, told apart by the kind."""

    name: str = "binance-trades"
    summary: str = "Binance archive trades, spot or um; known at the exchange's time"
    kind: ArchiveKind = "trades"

    def files(self, path: Path, pair: PairSettings, period: Period | None = None) -> tuple[Path, ...]:
        """See `raw.Source.files`."""
        return paths_of(files_of_period(archive_files(path, pair, self.kind), period, includes_end=False))

    def read(self, path: Path, pair: PairSettings, period: Period | None = None) -> RawMarket:
        """Trades of the pair; see `raw.Source.read`. The number is the trade's or the aggregate's own."""
        layout = _AGG_TRADES if self.kind == "aggTrades" else _TRADES
        files = files_of_period(archive_files(path, pair, self.kind), period, includes_end=False)
        for file in files:
            layout.names(file)

        def frames() -> Iterator[pl.DataFrame]:
            rows = read_in_order(files, layout, _trades, by=("timestamp", "trade_id"))
            return rows if period is None else within_named_days(rows, files, clock="timestamp")

        return RawMarket(trades=scan_frames(TRADES_SCHEMA, frames))


BINANCE_AGG_TRADES: Final = BinanceTrades(
    "binance-agg-trades", "Binance archive aggTrades, spot or um; known at the exchange's time", "aggTrades"
)


def _candles(rows: pl.DataFrame) -> pl.DataFrame:
    opens, closes = clock_times(rows["open_time"]), clock_times(rows["close_time"])
    # The file's close is the last millisecond or microsecond inside the candle.
    in_milliseconds = closes.dt.epoch("us") == rows["close_time"] * 1000
    unit = pl.when(in_milliseconds).then(pl.duration(milliseconds=1)).otherwise(pl.duration(microseconds=1))
    candles = rows.with_columns(opens, closes).with_columns(pl.col("close_time") + unit)
    raise_first(
        candles, pl.col("close_time") <= pl.col("open_time"), "close_time", "a candle must close after it opens"
    )
    return candles.select(CANDLES_SCHEMA.keys())


def _trades(rows: pl.DataFrame) -> pl.DataFrame:
    timed = rows.with_columns(clock_times(rows["time"]).alias("timestamp"), taker_buy=~pl.col("is_buyer_maker"))
    return timed.select(TRADES_SCHEMA.keys())

"""Prices and volumes of bars: from trades, or from candles that divide the bar."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bars import BARS_SCHEMA, TIMESTAMP
from archetype_dagster.market.candles import bars_from_candles
from archetype_dagster.market.ingestion import FaultCount
from archetype_dagster.market.raw_faults import malformed_candle, malformed_trade
from archetype_dagster.market.record_batches import (
    BAR_END,
    RECORD_TIME,
    BarPart,
    bar_end,
    refusable,
    summarise_bars,
    time_at,
)
from archetype_dagster.settings import IngestionSettings

PRICE_COLUMNS: Final = ("open", "high", "low", "close", "volume", "taker_buy_volume")
_RESIDUE: Final = 1e-12


def prices_from_trades(trades: pl.LazyFrame, *, bar_minutes: int, policies: IngestionSettings) -> BarPart:
    """Open, high, low, close, volume and taker-buy volume of every bar that has a trade.

    A trade at a bar's very end is of the next bar. The taker-buy volume is null where a trade's taker is
    unknown, and, by the policy `one_sided_trades`, where one side took everything.

    Args:
        trades: frame of `raw.TRADES_SCHEMA`.
        bar_minutes: length of a bar.
        policies: for malformed and repeated trades, and for takers all on one side.

    Raises:
        MarketDataError: a fault that a policy refuses.
    """
    time, malformed, repeated = pl.col(RECORD_TIME), pl.col("malformed"), pl.col("repeated")
    price, size, taker, number = pl.col("price"), pl.col("size"), pl.col("taker_buy"), pl.col("trade_id")

    def summarise(rows: pl.DataFrame) -> pl.DataFrame:
        rows = rows.with_columns(malformed_trade().alias("malformed"))
        counted = rows.group_by(BAR_END, maintain_order=True).agg(
            time.first().alias("first"),
            time.last().alias("last"),
            pl.len().alias("records"),
            malformed.sum().alias("malformed"),
            time.filter(malformed).first().alias("malformed_at"),
        )
        again = (time == time.shift(1)) & (number == number.shift(1))
        good = rows.filter(~malformed).with_columns(again.fill_null(value=False).alias("repeated"))
        kept = ~repeated
        prices = good.group_by(BAR_END, maintain_order=True).agg(
            repeated.sum().alias("repeated"),
            time.filter(repeated).first().alias("repeated_at"),
            price.filter(kept).first().alias("open"),
            price.filter(kept).max().alias("high"),
            price.filter(kept).min().alias("low"),
            price.filter(kept).last().alias("close"),
            size.filter(kept).sum().alias("volume"),
            pl.when(taker.filter(kept).null_count() == 0)
            .then(size.filter(kept & taker).sum())
            .alias("taker_buy_volume"),
        )
        return counted.join(prices, on=BAR_END, how="left", maintain_order="left")

    columns = ("timestamp", "price", "size", "taker_buy", "trade_id")
    table = summarise_bars(
        trades.select(columns), summarise, bar_minutes=bar_minutes, includes_end=False, what="trades"
    )
    total = table.select(pl.col("records", "malformed", "repeated").sum()).row(0, named=True)
    rows, one_sided = _known_takers(table.filter(pl.col("close").is_not_null()), policies)
    return BarPart(
        rows=rows,
        records=total["records"],
        first=time_at(table["first"], 0),
        last=time_at(table["last"], -1),
        faults=(
            refusable("malformed_trade", "trades", total["malformed"], table["malformed_at"], policies.malformed_trade),
            refusable("repeated_record", "trades", total["repeated"], table["repeated_at"], policies.repeated_record),
            one_sided,
        ),
    )


def prices_from_candles(candles: pl.LazyFrame, *, bar_minutes: int, policies: IngestionSettings) -> BarPart:
    """The bars all of whose candles are there.

    Args:
        candles: frame of `raw.CANDLES_SCHEMA`.
        bar_minutes: length of a bar, a multiple of the candles' length.
        policies: for malformed and repeated candles, incomplete bars, and takers all on one side.

    Raises:
        MarketDataError: candles of several lengths or of one that does not divide the bar, or a fault that a
            policy refuses.
    """
    try:
        read = candles.collect(engine="streaming")
    except pl.exceptions.PolarsError as error:
        raise MarketDataError(f"candles cannot be read to their end: {error}") from error
    if read["open_time"].null_count() or read["close_time"].null_count():
        raise MarketDataError("candles must have a time, got null", field="open_time")
    read = read.sort("open_time", maintain_order=True)
    length = _candle_length(read, bar_minutes)
    cut_short = pl.col("close_time") - pl.col("open_time") < length
    malformed = read.select(malformed_candle() | cut_short).to_series()
    good = read.filter(~malformed)
    distinct = good.unique(maintain_order=True)
    usable = distinct.filter(pl.col("open_time").is_unique())
    bars = pl.DataFrame(schema={name: BARS_SCHEMA[name] for name in (BAR_END, *PRICE_COLUMNS)})
    if usable.height:
        _check_lengths(usable, length)
        bars = bars_from_candles(usable, bar_minutes=bar_minutes)
    touched = usable.select(bar_end("open_time", bar_minutes, includes_end=False)).to_series()
    cut = touched.unique().filter(~touched.unique().is_in(bars["timestamp"].implode()))
    rows, one_sided = _known_takers(bars, policies)
    return BarPart(
        rows=rows,
        records=read.height,
        first=time_at(read["open_time"], 0),
        last=time_at(read["close_time"], -1),
        candle=length if usable.height else None,
        faults=(
            refusable(
                "malformed_candle",
                "candles",
                int(malformed.sum()),
                read.filter(malformed)["open_time"],
                policies.malformed_candle,
            ),
            refusable(
                "repeated_record",
                "candles",
                good.height - usable.height,
                good.filter(pl.col("open_time").is_duplicated())["open_time"],
                policies.repeated_record,
            ),
            refusable("incomplete_bar", "bars", len(cut), cut, policies.incomplete_bar),
            one_sided,
        ),
    )


def _candle_length(candles: pl.DataFrame, bar_minutes: int) -> timedelta:
    """Length of the first candle that fills a place of the bars' grid; of the first candle where none does, or zero.

    An exchange that goes down closes its candle early, so neither the first nor any other one is sure to be whole.
    """
    length = (pl.col("close_time") - pl.col("open_time")).dt.total_microseconds()
    bar = bar_minutes * 60_000_000
    fills = (length > 0) & (bar % length == 0) & (pl.col("open_time").dt.epoch("us") % length == 0)
    micros = candles.select(length.filter(fills).first().fill_null(length.first()).fill_null(0)).item()
    return timedelta(microseconds=int(micros))


def _check_lengths(candles: pl.DataFrame, length: timedelta) -> None:
    lengths = candles["close_time"] - candles["open_time"]
    odd = (lengths > length).arg_true()
    if len(odd):
        raise MarketDataError(
            f"candles must be of one length, got {length} and then {lengths[odd[0]]} at {candles['open_time'][odd[0]]}",
            field="close_time",
        )


def _known_takers(bars: pl.DataFrame, policies: IngestionSettings) -> tuple[pl.DataFrame, FaultCount]:
    """Bars in the order of the schema; takers all on one side are counted and met by the policy."""
    taker, volume = pl.col("taker_buy_volume"), pl.col("volume")
    one_sided = (taker <= _RESIDUE * volume) | (taker >= (1 - _RESIDUE) * volume)
    flagged = bars.select(((volume > 0) & one_sided).fill_null(value=False)).to_series()
    known = bars if policies.one_sided_trades == "keep" else bars.with_columns(pl.when(~flagged).then(taker))
    rows = known.select(pl.col(BAR_END).cast(TIMESTAMP), *[pl.col(n).cast(BARS_SCHEMA[n]) for n in PRICE_COLUMNS])
    return rows, FaultCount("one_sided_trades", "bars", int(flagged.sum()), policies.one_sided_trades)

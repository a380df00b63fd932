"""From what a backtest environment is given - nothing, a source, a table, a dataset - to its legs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from archetype_dagster.backtest.engine.instruments import Instrument
from archetype_dagster.envs.legs import Leg, aligned, leg_from_bars, leg_from_dataset
from archetype_dagster.market import MarketDataset, load_bars
from archetype_dagster.market.feature_table import FeatureTable
from archetype_dagster.market.scaler import FeatureScaler
from archetype_dagster.seeding import numpy_generator
from archetype_dagster.settings import (
    EnvironmentSettings,
    ExecutionSettings,
    MarketSettings,
    Settings,
    SyntheticMarketSettings,
)
from archetype_dagster.types import FloatArray

MarketData = pl.DataFrame | MarketDataset | FeatureTable | MarketSettings | Instrument | str | Path
# Four weeks: enough for thousands of episodes, built in a fraction of a second.
EMBEDDED_MARKET: Final = MarketSettings(
    synthetic=SyntheticMarketSettings(
        start=datetime(2024, 1, 1, 0, 10, tzinfo=UTC), end=datetime(2024, 1, 29, tzinfo=UTC)
    )
)
# Size and memory of the embedded swap's premium over spot: what the real BTC swap showed against spot at 5 minutes.
_BASIS_MEAN: Final = -2.6e-4
_BASIS_DEVIATION: Final = 4.5e-4
_BASIS_MEMORY: Final = 0.98
# The rule of the largest swap venue: premium plus interest less premium, the latter bounded.
_INTEREST: Final = 1e-4
_INTEREST_BOUND: Final = 5e-4
_FUNDING_HOURS: Final = 8


def single_leg(
    data: MarketData | None,
    pair: str,
    settings: EnvironmentSettings,
    execution: ExecutionSettings,
    *,
    scaler: FeatureScaler | None = None,
) -> Leg:
    """The leg of a single-leg environment, whose unit is the pair's m.

    Args:
        data: None or an instrument for the embedded market; whatever `load_bars` takes; a bars table, a dataset
            or a feature table.
        pair: the pair, unless the data names it.
        settings: of the environment.
        execution: of its trades; a dataset's costs are already priced and only its delay must agree.
        scaler: for the features of bars.
    """
    if isinstance(data, FeatureTable):
        data = data.dataset(Settings(execution=execution))
    if isinstance(data, MarketDataset):
        if data.execution_delay_bars != execution.execution_delay_bars:
            raise ValueError(
                f"the dataset and the execution settings must have one execution_delay_bars, got "
                f"{data.execution_delay_bars} and {execution.execution_delay_bars}"
            )
        return leg_from_dataset(data, settings)
    if isinstance(data, Instrument):
        pair, data = data.base, None
    bars = data if isinstance(data, pl.DataFrame) else load_bars(EMBEDDED_MARKET if data is None else data, pair)
    spec = Settings().pair(pair)
    return leg_from_bars(bars, spec, execution, settings, name=pair, unit=spec.max_position, scaler=scaler)


def several_legs(
    legs: Sequence[tuple[Instrument, float]],
    data: Sequence[pl.DataFrame] | None,
    funding: Mapping[str, pl.DataFrame] | None,
    settings: EnvironmentSettings,
    execution: ExecutionSettings,
) -> list[Leg]:
    """Aligned legs, each with its own bars, scale and funding.

    Args:
        legs: two or three of instrument and scale: contracts held at an action of one.
        data: bars of each leg, in their order; None for the embedded market.
        funding: settlements by symbol, of swaps; the embedded market brings its own.
        settings: of the environment.
        execution: of its trades.

    Raises:
        ValueError: another number of legs or of tables, two legs of one symbol, a coin-margined swap, or funding
            for what pays none.
    """
    instruments = [instrument for instrument, _ in legs]
    symbols = [instrument.symbol for instrument in instruments]
    if len(legs) not in (2, 3):
        raise ValueError(f"legs must be two or three, got {len(legs)}")
    if len(set(symbols)) < len(symbols):
        raise ValueError(f"legs must be different instruments, got {symbols}")
    for instrument in instruments:
        if instrument.settle == "coin_margin":
            raise ValueError(f"legs must be linear in the price, got the coin-margined {instrument.symbol}")
    if data is None:
        if funding is not None:
            raise ValueError("the embedded market brings its own funding, got a funding table without bars")
        data, funding = embedded_legs(instruments)
    funding = funding or {}
    if len(data) != len(legs):
        raise ValueError(f"data must hold the bars of each of {len(legs)} legs, got {len(data)} tables")
    payers = {instrument.symbol for instrument in instruments if instrument.kind == "swap"}
    if not set(funding) <= payers:
        raise ValueError(f"funding must name swaps among the legs, {sorted(payers)}, got {sorted(funding)}")
    specs = Settings()
    return aligned(
        [
            leg_from_bars(
                bars,
                specs.pair(instrument.base),
                execution,
                settings,
                name=instrument.symbol,
                unit=scale * instrument.contract_size,
                funding=funding.get(instrument.symbol),
            )
            for (instrument, scale), bars in zip(legs, data, strict=True)
        ]
    )


def embedded_legs(
    instruments: Sequence[Instrument], market: MarketSettings = EMBEDDED_MARKET
) -> tuple[list[pl.DataFrame], dict[str, pl.DataFrame]]:
    """Bars and funding of the embedded market: swaps follow the spot of their base with a wandering premium.

    The premium is a seeded first-order autoregression with the mean and deviation of the real BTC swap against
    spot at 5 minutes. Funding settles every 8 hours at the mean premium of those hours plus 1 bp less premium,
    the latter kept within 5 bp either way.
    """
    tables, funding = [], {}
    for instrument in instruments:
        bars = load_bars(market, instrument.base)
        if instrument.kind == "swap":
            premium = _premium(bars.height, instrument.symbol)
            bars = _at_premium(bars, premium)
            funding[instrument.symbol] = _funding(bars["timestamp"], premium)
        tables.append(bars)
    return tables, funding


def _premium(rows: int, symbol: str) -> FloatArray:
    noise = numpy_generator(0, "embedded_premium", symbol).standard_normal(rows)
    from scipy.signal import lfilter  # here, because it is slow to load and few need it

    walk = lfilter([np.sqrt(1 - _BASIS_MEMORY**2)], [1.0, -_BASIS_MEMORY], noise)
    return np.asarray(_BASIS_MEAN + _BASIS_DEVIATION * walk)


def _at_premium(bars: pl.DataFrame, premium: FloatArray) -> pl.DataFrame:
    """Every price of a bar times one plus the premium at its end, so that candles and books stay consistent."""
    priced = [name for name in bars.columns if name.endswith("_price") or name in {"open", "high", "low", "close"}]
    return bars.with_columns(pl.col(priced) * pl.Series(1 + premium))


def _funding(ends: pl.Series, premium: FloatArray) -> pl.DataFrame:
    window = pl.col("timestamp").dt.offset_by("-1us").dt.truncate(f"{_FUNDING_HOURS}h")
    means = (
        pl.DataFrame({"timestamp": ends, "premium": premium})
        .group_by(window.dt.offset_by(f"{_FUNDING_HOURS}h").alias("timestamp"))
        .agg(pl.col("premium").mean())
        .sort("timestamp")
        .filter(pl.col("timestamp") <= ends[-1])
    )
    premiums = pl.col("premium")
    rate = premiums + (_INTEREST - premiums).clip(-_INTEREST_BOUND, _INTEREST_BOUND)
    return means.select("timestamp", rate.alias("rate"))

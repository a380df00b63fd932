"""One leg of an environment: the rows of one instrument with their marks, order losses, funding and features."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from archetype_dagster.backtest.engine.funding import funding_schedule
from archetype_dagster.backtest.replay import bar_ends
from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.book import order_slippage
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.market.features import FEATURE_NAMES, compute_features, feature_rows
from archetype_dagster.market.impact import ImpactCurve
from archetype_dagster.market.scaler import FeatureScaler
from archetype_dagster.settings import EnvironmentSettings, ExecutionSettings, PairSettings
from archetype_dagster.types import FLAT, LONG, SHORT, FloatArray, StateArray


@dataclass(frozen=True)
class Leg:
    """T rows of one instrument; row t holds only what was known at bar end t.

    Attributes:
        name: what the leg is called.
        timestamps: datetime64[us] (T,), bar ends, UTC.
        mark: float64 (T,), mid prices, quote units.
        volume: float64 (T,), traded in the bar, base units.
        features: float32 (T, F), F zero where none are shown.
        feature_names: their F names.
        segment: int32 (T,), equal for rows without a gap between them.
        unit: position at an action of one, base units.
        losses: float64 (T, 2, Q + 1), execution loss O with commission of buying and of selling
            0, 1/s, 2/s .. 2 units, quote units.
        sizes_per_unit: s, so that Q = 2 s.
        funding: float64 (T,), what a long position paid since the row before, quote units per base unit.
        settled_rate: float64 (T,), the newest rate settled up to the row; zero before the first.
        has_funding: whether the instrument pays funding at all.
        base: base asset; legs of one base are compared by their basis.
        volume_is_scaled: the volume is a scaled feature and shown as it is.
    """

    name: str
    timestamps: NDArray[np.datetime64]
    mark: FloatArray
    volume: FloatArray
    features: StateArray
    feature_names: tuple[str, ...]
    segment: NDArray[np.int32]
    unit: float
    losses: FloatArray
    sizes_per_unit: int
    funding: FloatArray
    settled_rate: FloatArray
    has_funding: bool
    base: str
    volume_is_scaled: bool = False

    def __len__(self) -> int:
        return len(self.mark)

    def rows(self, chosen: NDArray[np.intp], segment: NDArray[np.int32]) -> Leg:
        """Some rows, in order, under another segmentation; funding settled in between falls on the next row kept."""
        paid = np.add.reduceat(self.funding[: chosen[-1] + 1], np.append(0, chosen[:-1] + 1))
        paid[0] = 0.0
        return replace(
            self,
            timestamps=self.timestamps[chosen],
            mark=self.mark[chosen],
            volume=self.volume[chosen],
            features=self.features[chosen],
            segment=segment,
            losses=self.losses[chosen],
            funding=paid,
            settled_rate=self.settled_rate[chosen],
        )


def leg_from_bars(
    bars: pl.DataFrame,
    pair: PairSettings,
    execution: ExecutionSettings,
    settings: EnvironmentSettings,
    *,
    name: str,
    unit: float,
    commission_rate: float | None = None,
    funding: pl.DataFrame | None = None,
    scaler: FeatureScaler | None = None,
) -> Leg:
    """A leg from a bars table; with features only the rows that have them, as in a feature table.

    Args:
        bars: bars of one instrument with a book and segments.
        pair: gives the liquidity beyond the visible book.
        execution: commission and depth policy.
        settings: features and the sizes priced.
        name: what to call the leg.
        unit: base units at an action of one.
        commission_rate: the instrument's own, instead of that of `execution`.
        funding: a swap's settlements as `funding_schedule` takes them; those without a mark of their own
            settle at the mark of the first row at or after them.
        scaler: fitted on training rows; without one features are shown as computed.

    Raises:
        ValueError: a unit that is not positive and finite.
        MarketDataError: unusable bars or funding.
    """
    if not (np.isfinite(unit) and unit > 0):
        raise ValueError(f"unit must be positive and finite, got unit={unit} for {name}")
    steps = settings.sizes_per_unit
    quantities = unit * np.arange(2 * steps + 1) / steps
    curve = ImpactCurve.default().scaled(pair.liquidity_scale)
    mark, slippage = order_slippage(bars, quantities.tolist(), depth_policy=execution.depth_policy, impact_curve=curve)
    rate = execution.commission_rate if commission_rate is None else commission_rate
    losses = slippage + (rate * quantities)[:, np.newaxis] * mark
    timestamps = bar_ends(bars)
    settled, newest = _settlements(funding, timestamps, mark)
    leg = Leg(
        name=name,
        timestamps=timestamps,
        mark=mark,
        volume=bars["volume"].to_numpy(),
        features=np.empty((len(mark), 0), dtype=np.float32),
        feature_names=(),
        segment=bars["segment"].to_numpy(),
        unit=unit,
        losses=np.ascontiguousarray(losses.transpose(2, 0, 1)),
        sizes_per_unit=steps,
        funding=settled,
        settled_rate=newest,
        has_funding=funding is not None,
        base=pair.base,
    )
    if not settings.features:
        return leg
    values = compute_features(bars).select(FEATURE_NAMES).to_numpy()
    shown = values.astype(np.float32) if scaler is None else scaler.transform(values)
    kept = feature_rows(bars)
    return replace(leg.rows(kept, leg.segment[kept]), features=shown, feature_names=FEATURE_NAMES)


def leg_from_dataset(dataset: MarketDataset, settings: EnvironmentSettings) -> Leg:
    """A leg from a dataset, whose table prices m and 2 m: losses are linear between 0, m and 2 m.

    The dataset holds no volume as traded; the first column of its scaled states, which is the volume in a
    feature table, stands for it.

    Raises:
        MarketDataError: a table whose losses depend on more than side and size of the order.
    """
    losses = np.zeros((len(dataset), 2, 3))
    for side, (start, end) in enumerate(((SHORT, LONG), (LONG, SHORT))):
        if not np.array_equal(dataset.costs[:, start, FLAT], dataset.costs[:, FLAT, end]):
            raise MarketDataError("the cost table must price orders by side and size alone", field="costs")
        losses[:, side, 1], losses[:, side, 2] = dataset.costs[:, FLAT, end], dataset.costs[:, start, end]
    shown = dataset.states if settings.features else np.empty((len(dataset), 0), dtype=np.float32)
    named = FEATURE_NAMES
    if dataset.num_features != len(FEATURE_NAMES):
        named = tuple(str(column) for column in range(dataset.num_features))
    return Leg(
        name=dataset.pair,
        timestamps=dataset.timestamps,
        mark=dataset.mark,
        volume=dataset.states[:, 0].astype(np.float64),
        features=shown,
        feature_names=named if settings.features else (),
        segment=dataset.segment,
        unit=dataset.max_position,
        losses=losses,
        sizes_per_unit=1,
        funding=np.zeros(len(dataset)),
        settled_rate=np.zeros(len(dataset)),
        has_funding=False,
        base=dataset.pair,
        volume_is_scaled=True,
    )


def aligned(legs: list[Leg]) -> list[Leg]:
    """The rows whose time all legs have; a segment ends where any leg's does or where a row is left out.

    Raises:
        MarketDataError: fewer than two common times.
    """
    common = legs[0].timestamps
    for leg in legs[1:]:
        common = common[np.isin(common, leg.timestamps, assume_unique=True)]
    if len(common) < 2:
        raise MarketDataError(f"the legs {[leg.name for leg in legs]} have {len(common)} bar ends in common")
    chosen = [np.searchsorted(leg.timestamps, common) for leg in legs]
    breaks = np.zeros(len(common), dtype=np.bool_)
    for leg, rows in zip(legs, chosen, strict=True):
        breaks[1:] |= (np.diff(leg.segment[rows]) != 0) | (np.diff(rows) != 1)
    segment = np.cumsum(breaks).astype(np.int32)
    return [leg.rows(rows, segment) for leg, rows in zip(legs, chosen, strict=True)]


def _settlements(
    funding: pl.DataFrame | None, timestamps: NDArray[np.datetime64], mark: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """What was settled in (row before, row] on one base unit, and the newest rate up to the row, float64 (T,) each."""
    settled, newest = np.zeros(len(timestamps)), np.zeros(len(timestamps))
    if funding is None:
        return settled, newest
    schedule = funding_schedule(funding)
    times = schedule.times.astype("datetime64[us]")
    row = np.searchsorted(timestamps, times)
    # What was settled up to the first row was paid by someone else: no position is held into it.
    inside = (row > 0) & (row < len(timestamps))
    row = row[inside]
    prices = np.where(np.isnan(schedule.marks[inside]), mark[row], schedule.marks[inside])
    np.add.at(settled, row, schedule.rates[inside] * prices)
    known = np.searchsorted(times, timestamps, side="right")
    newest[known > 0] = schedule.rates[known[known > 0] - 1]
    return settled, newest

"""The feature table: raw features, marks and trade costs per bar, and the scaler fitted on training rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import polars as pl

from archetype_dagster.artifacts import read_json, read_table, write_json
from archetype_dagster.errors import ArtifactError, MarketDataError
from archetype_dagster.market.book import execution_cost_parts, mark_prices
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.market.features import FEATURE_NAMES, WARMUP_BARS, compute_features, feature_rows
from archetype_dagster.market.scaler import FeatureScaler
from archetype_dagster.settings import Settings
from archetype_dagster.types import ACTION_NAMES, FloatArray

FEATURES_FILE: Final = "features.parquet"
COSTS_FILE: Final = "trade_costs.parquet"
SCALER_FILE: Final = "scaler.json"
FACTS_FILE: Final = "table.json"

_TIMESTAMP: Final = pl.Datetime("us", "UTC")
_CHANGES: Final = {
    f"cost_{ACTION_NAMES[before]}_{ACTION_NAMES[after]}": (before, after)
    for before in range(3)
    for after in range(3)
    if before != after
}
_FEATURES_SCHEMA: Final = {
    "timestamp": _TIMESTAMP,
    **dict.fromkeys(FEATURE_NAMES, pl.Float64()),
    "mark": pl.Float64(),
    "segment": pl.Int32(),
}
_COSTS_SCHEMA: Final = {"timestamp": _TIMESTAMP, **dict.fromkeys(_CHANGES, pl.Float64())}


@dataclass(frozen=True)
class FeatureTable:
    """Everything learning needs to know of the bars of one pair.

    Attributes:
        pair: traded pair.
        features: `timestamp`, the 45 unscaled features, `mark` (quote units) and `segment`; one row
            for each bar past its segment's warm-up.
        costs: `timestamp` and the six changes of position, `cost_short_flat` ..., in quote units;
            the same rows.
        scaler: fitted on the training split's rows.
    """

    pair: str
    features: pl.DataFrame
    costs: pl.DataFrame
    scaler: FeatureScaler

    def dataset(self, settings: Settings) -> MarketDataset:
        """The rows as aligned arrays, scaled.

        Raises:
            MarketDataError: no horizon fits into any run of rows without a gap.
        """
        table = np.zeros((self.costs.height, 3, 3))
        for name, (before, after) in _CHANGES.items():
            table[:, before, after] = self.costs[name].to_numpy()
        dataset = MarketDataset(
            pair=self.pair,
            timestamps=self.features["timestamp"].dt.replace_time_zone(None).to_numpy(),
            states=self.scaler.transform(_feature_matrix(self.features)),
            mark=self.features["mark"].to_numpy(),
            costs=table,
            segment=self.features["segment"].to_numpy(),
            max_position=settings.pair(self.pair).max_position,
            horizon_bars=settings.planner.horizon_bars,
            execution_delay_bars=settings.execution.execution_delay_bars,
        )
        _require_a_horizon(dataset)
        return dataset

    def save(self, directory: Path) -> None:
        """Write the table's files into an existing folder."""
        self.features.write_parquet(directory / FEATURES_FILE)
        self.costs.write_parquet(directory / COSTS_FILE)
        self.scaler.save(directory / SCALER_FILE)
        write_json(directory / FACTS_FILE, {"pair": self.pair})

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read a table written by `save`.

        Raises:
            ArtifactError: a file is missing, damaged or has other columns than expected.
        """
        features = read_table(directory / FEATURES_FILE, _FEATURES_SCHEMA)
        costs = read_table(directory / COSTS_FILE, _COSTS_SCHEMA)
        if not features["timestamp"].equals(costs["timestamp"]):
            raise ArtifactError(f"{directory}: {FEATURES_FILE} and {COSTS_FILE} do not have the same rows")
        scaler = FeatureScaler.load(directory / SCALER_FILE)
        if len(scaler.mean) != len(FEATURE_NAMES):
            raise ArtifactError(
                f"{directory / SCALER_FILE} scales {len(scaler.mean)} features, expected {len(FEATURE_NAMES)}"
            )
        try:
            pair = str(read_json(directory / FACTS_FILE)["pair"])
        except (KeyError, TypeError) as error:
            raise ArtifactError(f"{directory / FACTS_FILE} names no pair ({error})") from error
        return cls(pair, features, costs, scaler)


def build_feature_table(
    bars: pl.DataFrame, settings: Settings, pair: str, *, scaler: FeatureScaler | None = None
) -> FeatureTable:
    """Compute features, marks and trade costs of validated bars, and fit the scaler on the training split.

    Args:
        bars: bars of one pair in the bars schema, with segments.
        settings: the run's settings; execution, features, splits, planner and pairs are read.
        pair: traded pair.
        scaler: a scaler to use instead of fitting one, e.g. for bars outside the training split.

    Raises:
        SettingsError: unknown pair.
        MarketDataError: unusable bars, no feature row in the training split, or no horizon that fits.
    """
    spec = settings.pair(pair)
    rows = feature_rows(bars)
    if not rows.size:
        raise MarketDataError(
            f"no bar has {WARMUP_BARS} predecessors in its segment: found {bars.height} bars, "
            f"a segment needs {WARMUP_BARS + 1}"
        )
    features = compute_features(bars, scale=settings.features.scale).with_columns(
        pl.Series("mark", mark_prices(bars)[rows]),
        _segments(bars).gather(rows),
    )
    parts = execution_cost_parts(bars, settings.execution, spec)
    costs = (parts.slippage + parts.commission)[rows]
    timestamp = features["timestamp"]
    table = FeatureTable(
        pair=pair,
        features=features,
        costs=pl.DataFrame([timestamp, *(pl.Series(name, costs[:, a, b]) for name, (a, b) in _CHANGES.items())]),
        scaler=_fit_on_training_rows(features, settings) if scaler is None else scaler,
    )
    table.dataset(settings)
    return table


def _fit_on_training_rows(features: pl.DataFrame, settings: Settings) -> FeatureScaler:
    start, end = settings.splits.train_start, settings.splits.train_end
    training = features.filter(pl.col("timestamp").is_between(start, end, closed="left"))
    if not training.height:
        raise MarketDataError(
            f"no feature row in the training split [{start:%Y-%m-%d %H:%M}, {end:%Y-%m-%d %H:%M}); "
            f"rows run from {features['timestamp'][0]} to {features['timestamp'][-1]}",
            field="timestamp",
        )
    return FeatureScaler.fit(_feature_matrix(training), clip_sigma=settings.features.clip_sigma)


def _feature_matrix(features: pl.DataFrame) -> FloatArray:
    # Row-major, because horizons are cut from whole rows.
    return np.ascontiguousarray(features.select(FEATURE_NAMES).to_numpy())


def _segments(bars: pl.DataFrame) -> pl.Series:
    if "segment" in bars.columns:
        return bars["segment"].cast(pl.Int32)
    return pl.Series("segment", np.zeros(bars.height, dtype=np.int32))


def _require_a_horizon(dataset: MarketDataset) -> None:
    if dataset.horizon_starts().size:
        return
    needed = dataset.horizon_bars + dataset.execution_delay_bars + 1
    changes = np.flatnonzero(np.diff(dataset.segment)) + 1
    longest = int(np.diff(np.concatenate([[0], changes, [len(dataset)]])).max())
    raise MarketDataError(
        f"no horizon fits: the longest run without a gap has {longest} rows after {WARMUP_BARS} bars of warm-up, "
        f"a horizon of {dataset.horizon_bars} bars needs {needed}"
    )

"""What the pipeline computes from bars up to the final action, laid open for the leak check."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from archetype_dagster.backtest.leaks import LeakReport, TracedRows, check_no_lookahead
from archetype_dagster.backtest.policy import TradingPolicy, decide
from archetype_dagster.market.feature_table import build_feature_table
from archetype_dagster.market.features import FEATURE_NAMES, WARMUP_BARS
from archetype_dagster.market.scaler import FeatureScaler
from archetype_dagster.settings import Settings

DECODED: Final = frozenset({"decoder_logits", "base_actions", "refiner_context", "refiner_logits", "actions"})
"""Arrays that depend on the decoder, and so on the horizon's future where the decoder reads it."""

_HORIZONS: Final = 4


def check_policy(
    bars: pl.DataFrame,
    settings: Settings,
    pair: str,
    scaler: FeatureScaler,
    policy: TradingPolicy,
    *,
    horizons: int = _HORIZONS,
) -> LeakReport:
    """Leak check of the real pipeline, from bars to final actions, on the newest few horizons.

    With a decoder that reads the horizon's future the status is `hindsight`, and all that does not
    depend on it must be causal all the same.

    Args:
        bars: bars of the pair, segmented; the end of the longest segment is used.
        settings: the run's settings; `evaluation.leak_check_cuts` random times are tried.
        pair: traded pair.
        scaler: the policy's scaler.
        policy: the frozen phases.
        horizons: whole horizons to work on.

    Raises:
        MarketDataError: no segment that holds one horizon after its warm-up.
    """
    return check_no_lookahead(
        lambda changed: pipeline_trace(changed, settings, pair, scaler, policy),
        newest_horizons(bars, settings, horizons),
        cuts=settings.evaluation.leak_check_cuts,
        seed=settings.seed,
        hindsight=DECODED if policy.hindsight else (),
    )


def newest_horizons(bars: pl.DataFrame, settings: Settings, horizons: int = _HORIZONS) -> pl.DataFrame:
    """The last bars of the longest segment: warm-up, a lookback and a few horizons, as far as they are there."""
    window = bars.filter(pl.col("segment") == bars["segment"].mode().min())
    before = WARMUP_BARS + max(settings.selection.lookback_bars, settings.refinement.lookback_bars) - 1
    length = before + horizons * settings.planner.horizon_bars + settings.execution.execution_delay_bars
    return window.tail(length)


def pipeline_trace(
    bars: pl.DataFrame, settings: Settings, pair: str, scaler: FeatureScaler, policy: TradingPolicy
) -> dict[str, TracedRows]:
    """Run features, selection, decoding and refinement on bars and keep every number on the way.

    Args:
        bars: bars of the pair, segmented, with room for one horizon after the warm-up.
        settings: the run's settings.
        pair: traded pair.
        scaler: the policy's scaler; none is fitted here.
        policy: the frozen phases.

    Returns:
        features, states, marks, costs, selector_logits, codes, decoder_logits, base_actions, actions,
        with a refiner refiner_context and refiner_logits, and of a continuous policy embeddings in place of
        selector_logits and codes; each with the bar end it was known at.

    Raises:
        MarketDataError: unusable bars, or too few for one horizon.
    """
    table = build_feature_table(bars, settings, pair, scaler=scaler)
    dataset = table.dataset(settings)
    decisions = decide(policy, dataset, trace=True)
    numbers = decisions.trace
    if numbers is None:
        raise ValueError("decide kept no trace")
    by_row = {
        "features": table.features.select(FEATURE_NAMES).to_numpy(),
        "states": dataset.states,
        "mark": dataset.mark,
        "costs": dataset.costs,
        "decoder_logits": numbers.decoder_logits,
        "base_actions": decisions.base_actions,
        "refiner_context": numbers.context,
        "refiner_logits": numbers.refiner_logits,
        "actions": decisions.actions,
    }
    by_horizon = (
        {"embeddings": numbers.selector_logits}
        if policy.continuous
        else {"selector_logits": numbers.selector_logits, "codes": decisions.codes}
    )
    traced = {name: TracedRows(dataset.timestamps, values) for name, values in by_row.items() if values is not None}
    horizon_starts = dataset.timestamps[decisions.starts]
    traced |= {name: TracedRows(horizon_starts, np.asarray(values)) for name, values in by_horizon.items()}
    return traced

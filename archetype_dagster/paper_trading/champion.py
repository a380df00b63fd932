"""Whether a new bundle is better than the champion: both streamed over the same validation bars, at the same prices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from archetype_dagster.backtest.accounts import trade_every_bar
from archetype_dagster.backtest.performance import Performance
from archetype_dagster.backtest.replay import price_bars
from archetype_dagster.deployment import OnnxPolicy
from archetype_dagster.errors import ArtifactError, MarketDataError, SealedSplitError
from archetype_dagster.market.features import WARMUP_BARS
from archetype_dagster.settings import Settings, SplitSettings
from archetype_dagster.settings.paper_trading import ChampionSettings
from archetype_dagster.types import FLAT, JsonDict


@dataclass(frozen=True)
class Judgement:
    """One bundle on the validation window.

    Attributes:
        bundle: hash of the bundle.
        performance: the six metrics.
        net_value: at the window's end, quote units.
        trades: bars with a trade.
        bars: bars of the window.
    """

    bundle: str
    performance: Performance
    net_value: float
    trades: int
    bars: int

    def as_dict(self) -> JsonDict:
        """The judgement as plain JSON values."""
        return {**vars(self), "performance": self.performance.as_dict()}


@dataclass(frozen=True)
class Comparison:
    """A candidate beside the champion.

    Attributes:
        candidate: the new bundle.
        champion: the present one; None where there is none yet.
        settings: what is compared, and by how much it must be better.
    """

    candidate: Judgement
    champion: Judgement | None
    settings: ChampionSettings

    @property
    def promotes(self) -> bool:
        """True where the candidate takes the champion's place: no champion yet, or better by the margin.

        An undefined Sharpe ratio is worse than any; of two undefined ones the total return decides.
        """
        if self.champion is None:
            return True
        if self.champion.bundle == self.candidate.bundle:
            return False
        new, old = (getattr(one.performance, self.settings.metric) for one in (self.candidate, self.champion))
        if new is None and old is None:
            new, old = self.candidate.performance.total_return, self.champion.performance.total_return
        return new is not None and (old is None or new > old + self.settings.margin)

    def as_dict(self) -> JsonDict:
        """The comparison as plain JSON values."""
        return {
            "candidate": self.candidate.as_dict(),
            "champion": None if self.champion is None else self.champion.as_dict(),
            "metric": self.settings.metric,
            "margin": self.settings.margin,
            "promotes": self.promotes,
        }


def validation_bars(file: Path, splits: SplitSettings) -> pl.DataFrame:
    """The bars of the validation window and those before it that warm the features up; none after it is read.

    Args:
        file: Parquet file in the bars schema, oldest first.
        splits: the date ranges.

    Raises:
        MarketDataError: no bar in the window.
    """
    known = pl.scan_parquet(file).filter(pl.col("timestamp") < splits.validation_end).collect()
    first = int(known["timestamp"].search_sorted(splits.validation_start))
    if first == known.height:
        raise MarketDataError(
            f"no bar ends from {splits.validation_start} until before {splits.validation_end}", file=file
        )
    return known[max(first - WARMUP_BARS, 0) :]


def judge_bundle(directory: Path, bars: pl.DataFrame, settings: Settings, pair: str) -> Judgement:
    """Stream a bundle over the validation window and keep its account; flat on bars without features.

    Args:
        directory: the bundle.
        bars: of `validation_bars`, segmented.
        settings: the run's settings, whose costs and execution hold for every bundle.
        pair: traded pair.

    Raises:
        ArtifactError: a damaged bundle, or one of another pair or bar length.
        SealedSplitError: bars after the validation split.
        MarketDataError: bars that break a rule of the book.
    """
    splits = settings.splits
    if bars["timestamp"][-1] >= splits.validation_end:
        raise SealedSplitError(
            f"a champion is chosen on bars that end before {splits.validation_end}, got one at {bars['timestamp'][-1]}"
        )
    policy = OnnxPolicy.load(directory)
    facts = {"pair": pair, "bar_minutes": settings.market.bar_minutes}
    for name, wanted in facts.items():
        if policy.manifest[name] != wanted:
            raise ArtifactError(f"{directory}: the bundle's {name} is {policy.manifest[name]}, compared is {wanted}")
    decisions = [policy.on_bar(row) for row in bars.iter_rows(named=True)]
    actions = np.array([FLAT if decision is None else decision.action for decision in decisions], dtype=np.int8)
    starts = np.array([decision is not None and decision.tau == 0 for decision in decisions])
    first = int(bars["timestamp"].search_sorted(splits.validation_start))
    priced = price_bars(bars[first:], settings.pair(pair), settings.execution)
    ledger = trade_every_bar(
        actions[first:],
        priced,
        settings=settings.execution,
        horizon_starts=np.flatnonzero(starts[first:]),
    )
    return Judgement(
        bundle=policy.bundle.hash,
        performance=ledger.performance(settings.market.bars_per_year),
        net_value=float(ledger.net_value[-1]),
        trades=ledger.trades,
        bars=len(priced),
    )

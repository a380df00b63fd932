"""The out-of-sample comparison: the policy, its parts and its bounds on the same test bars.

Everything here is arithmetic on frozen parts. What is printed and drawn from it is `reporting`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from archetype_dagster.backtest.accounts import SplitAccounts
from archetype_dagster.backtest.ledger import Ledger
from archetype_dagster.backtest.performance import Performance, mean_performance
from archetype_dagster.backtest.policy import Decisions, TradingPolicy, archetype_actions, decide, padded_horizons
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.market.feature_table import FeatureTable
from archetype_dagster.market.splits import split_dataset
from archetype_dagster.planning.single_trade import plan_single_trade
from archetype_dagster.seeding import numpy_generator
from archetype_dagster.settings import Settings
from archetype_dagster.types import FLAT, LONG, ActionArray, FloatArray, IndexArray, NoProgress, Progress

VARIANTS: Final[Mapping[str, str]] = {
    "full": "archetype selection with refinement",
    "no_refinement": "archetype selection, base actions",
    "base_archetype": "the one archetype that earned most on validation, always",
    "random_archetype": "an archetype drawn at random for each horizon: mean over the draws, curve of the median one",
    "buy_and_hold": "long from the first bar",
    "always_flat": "no position",
    "hindsight_plan": "the planner's single trade per horizon, which knows the horizon's prices",
}


@dataclass(frozen=True)
class Variant:
    """One account on the test bars.

    Attributes:
        name: key of `VARIANTS`.
        ledger: the account.
        performance: its metrics; for `random_archetype` the means over all draws.
        hindsight: it reads prices it could not have known.
    """

    name: str
    ledger: Ledger
    performance: Performance
    hindsight: bool


@dataclass(frozen=True)
class Evaluation:
    """The test split, traded by every variant.

    Attributes:
        pair: traded pair.
        variants: accounts by name, in the order of `VARIANTS`.
        decisions: what the full policy decided, on the dataset's rows.
        bar_rows: int64 (T,), test bar of each of those rows.
        base_code: archetype of `base_archetype`.
        validation_profits: float64 (K,), what each archetype alone earned on validation, quote units.
        random_draws: metrics of each draw behind `random_archetype`.
        bars: number of test bars.
        book_sources: distinct sources of their books: observed, modelled.
        periods_per_year: n of the metrics.
        max_position: m, base units.
    """

    pair: str
    variants: dict[str, Variant]
    decisions: Decisions
    bar_rows: IndexArray
    base_code: int
    validation_profits: FloatArray
    random_draws: tuple[Performance, ...]
    bars: int
    book_sources: tuple[str, ...]
    periods_per_year: float
    max_position: float

    @property
    def full(self) -> Variant:
        """The whole policy."""
        return self.variants["full"]

    @property
    def hindsight(self) -> bool:
        """True where the policy's decoder reads the horizon's future."""
        return self.full.hindsight

    @property
    def num_codes(self) -> int:
        """Number of archetypes K."""
        return len(self.validation_profits)

    @cached_property
    def code_usage(self) -> IndexArray:
        """int64 (K,), test horizons for which each archetype was chosen."""
        return np.bincount(self.decisions.codes, minlength=self.num_codes).astype(np.int64)

    @cached_property
    def overrides(self) -> dict[str, int]:
        """Horizons by what the refiner did: short, none, long."""
        directions = self.decisions.override_directions
        return {name: int((directions == value).sum()) for name, value in (("short", -1), ("none", 0), ("long", 1))}

    @cached_property
    def horizon_rows(self) -> tuple[NDArray[np.intp], ...]:
        """Test bars of each horizon of the full policy."""
        return tuple(np.split(self.bar_rows, self.decisions.starts[1:]))

    @cached_property
    def horizon_returns(self) -> FloatArray:
        """float64 (n,), profit of each horizon of the full policy over m p_0, a fraction; zero after ruin."""
        ledger = self.full.ledger
        reached = self.bar_rows < len(ledger)
        rewards = np.zeros(len(self.bar_rows))
        rewards[reached] = ledger.reward[self.bar_rows[reached]]
        mark = self.variants["always_flat"].ledger.mark[self.bar_rows[self.decisions.starts]]
        return np.asarray(np.add.reduceat(rewards, self.decisions.starts) / (self.max_position * mark))


def evaluate(
    bars: pl.DataFrame,
    table: FeatureTable,
    policy: TradingPolicy,
    settings: Settings,
    pair: str,
    *,
    progress: Progress | None = None,
) -> Evaluation:
    """Trade the test split with every variant, at the same prices and from the same capital.

    Bars without features (the warm-up after a gap, the purged start of the split) are flat, so a
    position is closed on the first bar after a gap. Nothing is traded on the last bar.

    Args:
        bars: all bars of the pair, segmented, that `table` was built from.
        table: their features, costs and scaler.
        policy: the frozen phases.
        settings: the run's settings.
        pair: traded pair.
        progress: told after each variant.

    Raises:
        MarketDataError: a split without bars, or a table of other bars.
    """
    progress = NoProgress() if progress is None else progress
    progress.start(f"{pair}: evaluation", len(VARIANTS))
    splits = split_dataset(table.dataset(settings), settings.splits)
    dates = settings.splits
    test = SplitAccounts(bars, splits.test, settings, (dates.test_start, dates.test_end))
    validation = SplitAccounts(bars, splits.validation, settings, (dates.validation_start, dates.validation_end))

    profits = np.array(
        [_profit(validation.trade(row)) for row in archetype_actions(policy.codebook, splits.validation)]
    )
    base_code = int(profits.argmax())
    by_code = archetype_actions(policy.codebook, splits.test)
    decisions = decide(policy, splits.test)
    accounts = {
        "full": test.trade(decisions.actions),
        "no_refinement": test.trade(decide(policy.without_refinement(), splits.test, codes=decisions.codes).actions),
        "base_archetype": test.trade(by_code[base_code]),
        "buy_and_hold": test.hold(LONG),
        "always_flat": test.hold(FLAT),
        "hindsight_plan": test.trade(_planned(splits.test, settings)),
    }
    progress.advance(len(accounts))
    draws = _random_archetypes(by_code, decisions, test, settings)
    per_year = settings.market.bars_per_year
    random_draws = tuple(draw.performance(per_year) for draw in draws)
    accounts["random_archetype"] = draws[_median(random_draws)]
    progress.advance(len(VARIANTS))
    progress.finish()

    reads_future = {"hindsight_plan"}
    if policy.hindsight:
        reads_future |= {"full", "no_refinement", "base_archetype", "random_archetype"}
    metrics = {name: ledger.performance(per_year) for name, ledger in accounts.items()}
    metrics["random_archetype"] = mean_performance(random_draws)
    return Evaluation(
        pair=pair,
        variants={name: Variant(name, accounts[name], metrics[name], name in reads_future) for name in VARIANTS},
        decisions=decisions,
        bar_rows=test.bar_rows,
        base_code=base_code,
        validation_profits=profits,
        random_draws=random_draws,
        bars=len(test.priced),
        book_sources=test.book_sources,
        periods_per_year=per_year,
        max_position=settings.pair(pair).max_position,
    )


def _planned(dataset: MarketDataset, settings: Settings) -> ActionArray:
    """The planner's actions on every row, int8 (T,), horizons cut like the policy's."""
    starts, lengths = dataset.decision_starts()
    batch = padded_horizons(dataset, starts)
    plans = plan_single_trade(
        batch.mark,
        batch.costs,
        max_position=dataset.max_position,
        gamma=settings.planner.gamma,
        trade_constraint=settings.planner.trade_constraint,
    )
    return plans[np.arange(dataset.horizon_bars) < lengths[:, np.newaxis]]


def _random_archetypes(
    by_code: ActionArray, decisions: Decisions, account: SplitAccounts, settings: Settings
) -> list[Ledger]:
    """Ledgers of uniformly random archetypes per horizon; `by_code` int8 (K, T) are every archetype's actions."""
    horizon = np.repeat(np.arange(len(decisions.starts)), decisions.lengths)
    rows = np.arange(by_code.shape[1])
    ledgers = []
    for draw in range(settings.evaluation.random_archetype_draws):
        generator = numpy_generator(settings.seed, "random_archetype", draw)
        codes = generator.integers(len(by_code), size=len(decisions.starts))
        ledgers.append(account.trade(by_code[codes[horizon], rows]))
    return ledgers


def _median(runs: tuple[Performance, ...]) -> int:
    """The run with the median total return, the lower one of two."""
    order = np.argsort([run.total_return for run in runs], kind="stable")
    return int(order[(len(order) - 1) // 2])


def _profit(ledger: Ledger) -> float:
    return float(ledger.net_value[-1] - ledger.initial_capital)

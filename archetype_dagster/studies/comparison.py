"""Table 1 of one pair: every method on the same test bars, at the same costs and from the same capital."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import polars as pl

from archetype_dagster.artifacts import read_json, read_table, write_json
from archetype_dagster.backtest.accounts import SplitAccounts
from archetype_dagster.backtest.ledger import Ledger
from archetype_dagster.backtest.performance import Performance
from archetype_dagster.baselines import BASELINES, Strategy
from archetype_dagster.errors import ArtifactError, SettingsError
from archetype_dagster.market.feature_table import FeatureTable
from archetype_dagster.market.splits import split_dataset
from archetype_dagster.settings import Settings
from archetype_dagster.types import FLAT, LONG, JsonDict

POLICY: Final = "archetype_trader"
METHODS: Final[Mapping[str, str]] = {
    **{name: baseline.label for name, baseline in BASELINES.items()},
    POLICY: "ArchetypeTrader",
}
COMPARISON_FILE: Final = "comparison.json"

# They hold through the bars without features too, as the same rows of the report do.
_HELD: Final = {"buy_and_hold": LONG, "always_flat": FLAT}


@dataclass(frozen=True)
class Method:
    """One row of the table.

    Attributes:
        name: key of `METHODS`.
        ledger: the account on the test bars.
        performance: its metrics.
        hindsight: it reads prices it could not have known.
    """

    name: str
    ledger: Ledger
    performance: Performance
    hindsight: bool = False

    @property
    def label(self) -> str:
        """Name in tables."""
        return METHODS[self.name]

    def as_dict(self) -> JsonDict:
        """Metrics and money by name, ready for JSON."""
        return {
            "label": self.label,
            "hindsight": self.hindsight,
            **self.performance.as_dict(),
            "trades": self.ledger.trades,
            "fees": float(self.ledger.fee.sum()),
            "slippage": float(self.ledger.slippage.sum()),
        }


@dataclass(frozen=True)
class MethodComparison:
    """All methods of one pair.

    Attributes:
        pair: traded pair.
        methods: by name, in the order of `METHODS`.
        facts: data source, sources of the books, span, capital, seed and settings hash of the run.
    """

    pair: str
    methods: dict[str, Method]
    facts: JsonDict

    def as_dict(self) -> JsonDict:
        """Facts and every method's numbers, ready for JSON."""
        return {
            "pair": self.pair,
            **self.facts,
            "methods": {name: method.as_dict() for name, method in self.methods.items()},
        }

    def save(self, directory: Path) -> None:
        """Write comparison.json and a ledger per method into an existing folder."""
        write_json(directory / COMPARISON_FILE, self.as_dict())
        for name, method in self.methods.items():
            method.ledger.frame().write_parquet(directory / _ledger_file(name))

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            ArtifactError: a file is missing, damaged or lacks a field.
        """
        saved = read_json(directory / COMPARISON_FILE)
        try:
            pair, facts = saved.pop("pair"), dict(saved)
            rows = facts.pop("methods")
            methods = {name: _method(name, rows[name], facts, directory) for name in METHODS if name in rows}
        except (KeyError, TypeError) as error:
            raise ArtifactError(f"{directory / COMPARISON_FILE} lacks {error}") from error
        return cls(pair, methods, facts)


def compare_methods(
    bars: pl.DataFrame,
    table: FeatureTable,
    strategies: Mapping[str, Strategy],
    policy: Ledger,
    settings: Settings,
    pair: str,
    *,
    hindsight: bool,
) -> MethodComparison:
    """Trade the test split with every fitted baseline beside the policy's own account.

    Bars without features are flat for all but the two that hold.

    Args:
        bars: all bars of the pair, segmented, that `table` was built from.
        table: features, costs and scaler.
        strategies: fitted baselines by name.
        policy: the policy's ledger on the same test bars.
        settings: the run's settings.
        pair: traded pair.
        hindsight: the policy reads prices it could not have known.

    Raises:
        SettingsError: an unknown baseline.
        MarketDataError: no bars in the test split, or a table of other bars.
    """
    unknown = sorted(strategies.keys() - BASELINES.keys())
    if unknown:
        raise SettingsError(f"unknown baseline {', '.join(unknown)}; choose from {', '.join(BASELINES)}")
    dataset = split_dataset(table.dataset(settings), settings.splits).test
    test = SplitAccounts(bars, dataset, settings, (settings.splits.test_start, settings.splits.test_end))
    ledgers = {
        name: test.hold(_HELD[name]) if name in _HELD else test.trade(strategies[name].actions(dataset))
        for name in BASELINES
        if name in strategies
    }
    per_year = settings.market.bars_per_year
    methods = {name: Method(name, ledger, ledger.performance(per_year)) for name, ledger in ledgers.items()}
    methods[POLICY] = Method(POLICY, policy, policy.performance(per_year), hindsight)
    return MethodComparison(
        pair=pair,
        methods=methods,
        facts={
            "source": settings.market.source,
            "book_sources": list(test.book_sources),
            "first_bar": f"{test.priced.timestamps[0]}Z",
            "last_bar": f"{test.priced.timestamps[-1]}Z",
            "bars": len(test.priced),
            "bar_minutes": settings.market.bar_minutes,
            "initial_capital": policy.initial_capital,
            "max_position": policy.max_position,
            "commission_rate": policy.commission_rate,
            "quote": settings.pair(pair).quote,
            "seed": settings.seed,
            "settings_hash": settings.content_hash,
        },
    )


def _method(name: str, row: JsonDict, facts: JsonDict, directory: Path) -> Method:
    ledger = Ledger.from_frame(
        read_table(directory / _ledger_file(name)),
        initial_capital=facts["initial_capital"],
        max_position=facts["max_position"],
        commission_rate=facts["commission_rate"],
        ruined=row["ruined"],
    )
    return Method(name, ledger, Performance.from_dict(row), row["hindsight"])


def _ledger_file(name: str) -> str:
    return f"ledger-{name}.parquet"

"""The numbers of the report: rows of its tables, computed from ledgers and never typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from archetype_dagster.backtest.evaluation import VARIANTS, Evaluation
from archetype_dagster.backtest.ledger import Ledger
from archetype_dagster.backtest.performance import Performance
from archetype_dagster.reporting.rendering import ruin_text
from archetype_dagster.types import LONG, SHORT, IndexArray, JsonDict

VARIANT_LABELS: Final[Mapping[str, str]] = {
    "full": "Full policy",
    "no_refinement": "No refinement",
    "base_archetype": "Best single archetype",
    "random_archetype": "Random archetype",
    "buy_and_hold": "Buy and hold",
    "always_flat": "Always flat",
    "hindsight_plan": "Hindsight plan",
}
# The paper's columns: heading, name in `Performance`, and what scales it to the heading's unit.
METRIC_COLUMNS: Final[tuple[tuple[str, str, int], ...]] = (
    ("TR %", "total_return", 100),
    ("ASR", "sharpe", 1),
    ("ACR", "calmar", 1),
    ("ASoR", "sortino", 1),
    ("AVOL %", "annual_volatility", 100),
    ("MDD %", "max_drawdown", 100),
)
_IDENTITY_TOLERANCE = 1e-9


@dataclass(frozen=True)
class VariantRow:
    """One account of the report.

    Attributes:
        name: variant name, e.g. `no_refinement`.
        label: name shown to people.
        meaning: what the variant does, in one line.
        hindsight: True where it read the future.
        metrics: the six metrics.
        ledger: the account behind the curve and the money columns.
        draws: metrics of the repeated runs whose means `metrics` are; empty for a single account.
    """

    name: str
    label: str
    meaning: str
    hindsight: bool
    metrics: Performance
    ledger: Ledger
    draws: tuple[Performance, ...] = ()

    def __post_init__(self) -> None:
        m = self.metrics
        if m.calmar is None or m.sharpe is None:
            return
        expected = m.sharpe * m.annual_volatility / m.max_drawdown
        if not abs(m.calmar - expected) <= _IDENTITY_TOLERANCE * max(1.0, abs(expected)):
            raise ValueError(f"{self.name}: ACR must equal ASR AVOL / MDD, got {m.calmar!r} for {expected!r}")

    @property
    def ruined(self) -> bool:
        """True where the net value reached zero; of repeated runs, where it did in all of them."""
        return all(draw.ruined for draw in self.draws) if self.draws else self.ledger.ruined

    @property
    def ruin(self) -> str:
        """What to say of ruin, in a word or two; empty where there is none."""
        if not self.draws:
            return ruin_text(self.ledger.ruined, 1)
        return ruin_text(sum(draw.ruined for draw in self.draws), len(self.draws), "draws")

    @property
    def bars(self) -> int:
        """Bars of the account; fewer than the test split's after ruin."""
        return len(self.ledger)

    @property
    def trades(self) -> int:
        """Bars with a trade."""
        return self.ledger.trades

    @property
    def commission(self) -> float:
        """Commission paid, quote units."""
        return float(self.ledger.fee.sum())

    @property
    def slippage(self) -> float:
        """Loss against the mid by crossing the book, quote units."""
        return float(self.ledger.slippage.sum())

    @property
    def net(self) -> float:
        """Change of net value, quote units."""
        return float(self.ledger.net_value[-1] - self.ledger.initial_capital)

    @property
    def gross(self) -> float:
        """Result at mid prices before commission and slippage, quote units."""
        return self.net + self.commission + self.slippage

    @property
    def traded_notional(self) -> float:
        """Bought plus sold, at the mark, quote units."""
        return float((self.ledger.turnover * self.ledger.mark).sum())

    @property
    def turnover(self) -> float:
        """Traded notional over initial capital."""
        return self.traded_notional / self.ledger.initial_capital

    @property
    def cost_bps(self) -> float | None:
        """Commission and slippage in basis points of the traded notional; None without a trade."""
        notional = self.traded_notional
        return 1e4 * (self.commission + self.slippage) / notional if notional else None

    @property
    def long_share(self) -> float:
        """Fraction of bars held long."""
        return float(np.mean(self.ledger.position > 0))

    @property
    def short_share(self) -> float:
        """Fraction of bars held short."""
        return float(np.mean(self.ledger.position < 0))

    @property
    def flat_share(self) -> float:
        """Fraction of bars without a position."""
        return float(np.mean(self.ledger.position == 0))

    def as_dict(self) -> JsonDict:
        """Metrics and money columns by name, ready for JSON; fractions, not percent."""
        extra = (
            "hindsight",
            "bars",
            "trades",
            "gross",
            "slippage",
            "commission",
            "net",
            "turnover",
            "cost_bps",
            "long_share",
            "flat_share",
            "short_share",
        )
        ruin = {"ruined": self.ruined, "ruin": self.ruin}
        return {**self.metrics.as_dict(), **{name: getattr(self, name) for name in extra}, **ruin}


@dataclass(frozen=True)
class ArchetypeRow:
    """What one archetype did on the test split; fractions, None where it was never chosen.

    Attributes:
        code: archetype index.
        horizons: horizons for which it was chosen.
        share: of all horizons.
        overridden: of its horizons, those in which the refiner acted.
        mean_return: mean profit of its horizons over m p_0.
        win_rate: its horizons with a profit.
        long_share: its bars whose base action is long.
        short_share: its bars whose base action is short.
    """

    code: int
    horizons: int
    share: float
    overridden: float | None
    mean_return: float | None
    win_rate: float | None
    long_share: float | None
    short_share: float | None


def variant_rows(evaluation: Evaluation) -> list[VariantRow]:
    """One row a variant, in the evaluation's order."""
    detail = {"base_archetype": f"; here archetype {evaluation.base_code}"}
    return [
        VariantRow(
            name=name,
            label=VARIANT_LABELS[name],
            meaning=VARIANTS[name] + detail.get(name, ""),
            hindsight=variant.hindsight,
            metrics=variant.performance,
            ledger=variant.ledger,
            draws=evaluation.random_draws if name == "random_archetype" else (),
        )
        for name, variant in evaluation.variants.items()
    ]


def archetype_rows(evaluation: Evaluation) -> list[ArchetypeRow]:
    """One row an archetype, the unused ones included."""
    decisions = evaluation.decisions
    by_bar = np.repeat(decisions.codes, decisions.lengths)
    returns = evaluation.horizon_returns
    counts = evaluation.code_usage

    def mean_by_code(codes: IndexArray, values: NDArray[Any]) -> list[float | None]:
        total = np.bincount(codes, weights=values.astype(np.float64), minlength=len(counts))
        number = np.bincount(codes, minlength=len(counts))
        return [float(part / n) if n else None for part, n in zip(total, number, strict=True)]

    columns = zip(
        mean_by_code(decisions.codes, decisions.override_rows >= 0),
        mean_by_code(decisions.codes, returns),
        mean_by_code(decisions.codes, returns > 0),
        mean_by_code(by_bar, decisions.base_actions == LONG),
        mean_by_code(by_bar, decisions.base_actions == SHORT),
        strict=True,
    )
    return [
        ArchetypeRow(code, int(count), float(count / counts.sum()), *values)
        for code, (count, values) in enumerate(zip(counts, columns, strict=True))
    ]


def monthly_returns(ledger: Ledger) -> dict[str, float]:
    """Return of each calendar month, UTC, on the net value at its start: a fraction by `YYYY-MM`.

    A bar belongs to the month it covers, so one that ends at midnight on the first belongs to the month
    before; the account opens at the end of the very first bar, which belongs to the month that begins there.
    """
    covered = np.maximum(ledger.timestamps - np.timedelta64(1, "us"), ledger.timestamps[0])
    months = covered.astype("datetime64[M]")
    names, first = np.unique(months, return_index=True)
    path = ledger.net_value_path
    closing = path[np.append(first[1:], len(ledger))]
    opening = path[first]
    return {str(name): float(end / start - 1.0) for name, start, end in zip(names, opening, closing, strict=True)}

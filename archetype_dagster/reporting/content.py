"""The numbers of the report: rows of its tables, computed from ledgers and never typed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from archetype_dagster.backtest.ledger import Ledger
from archetype_dagster.backtest.performance import Performance
from archetype_dagster.types import FLAT, LONG, SHORT, ActionArray, FloatArray, IndexArray, JsonDict

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
    """

    name: str
    label: str
    meaning: str
    hindsight: bool
    metrics: Performance
    ledger: Ledger

    def __post_init__(self) -> None:
        m = self.metrics
        if m.calmar is None or m.sharpe is None:
            return
        expected = m.sharpe * m.annual_volatility / m.max_drawdown
        if not abs(m.calmar - expected) <= _IDENTITY_TOLERANCE * max(1.0, abs(expected)):
            raise ValueError(f"{self.name}: ACR must equal ASR AVOL / MDD, got {m.calmar!r} for {expected!r}")

    @property
    def ruined(self) -> bool:
        """True where the net value reached zero."""
        return self.metrics.ruined or self.ledger.ruined

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
        return {**self.metrics.as_dict(), **{name: getattr(self, name) for name in extra}, "ruined": self.ruined}


@dataclass(frozen=True)
class ArchetypeRow:
    """What one archetype did on the test split.

    Attributes:
        code: archetype index.
        horizons: horizons for which it was chosen.
        share: of all horizons, a fraction.
        overridden: of its horizons, the fraction that the refiner overrode; None without any.
        mean_return: mean profit of its horizons over m p_0, a fraction; None without any.
        win_rate: fraction of its horizons with a profit; None without any.
        long_share: fraction of its bars whose base action is long; None without any.
        short_share: fraction of its bars whose base action is short; None without any.
    """

    code: int
    horizons: int
    share: float
    overridden: float | None
    mean_return: float | None
    win_rate: float | None
    long_share: float | None
    short_share: float | None


def archetype_rows(
    codes: IndexArray,
    overridden: IndexArray,
    returns: FloatArray,
    actions: Sequence[ActionArray],
    *,
    num_codes: int,
) -> list[ArchetypeRow]:
    """Summarise n horizons by the archetype chosen for each.

    Args:
        codes: int64 (n,), archetype of each horizon.
        overridden: bool or int (n,), 1 where the refiner acted.
        returns: float64 (n,), profit of each horizon over m p_0, a fraction.
        actions: n arrays int8 (length,), base actions of each horizon.
        num_codes: K.
    """
    counts = np.bincount(codes, minlength=num_codes)
    lengths = np.array([len(horizon) for horizon in actions])

    def by_code(values: FloatArray, weights: FloatArray) -> list[float | None]:
        total = np.bincount(codes, weights=values, minlength=num_codes)
        weight = np.bincount(codes, weights=weights, minlength=num_codes)
        return [float(t / w) if w else None for t, w in zip(total, weight, strict=True)]

    ones = np.ones(len(codes))
    held = {action: np.array([(horizon == action).sum() for horizon in actions]) for action in (SHORT, FLAT, LONG)}
    columns = zip(
        by_code(overridden.astype(np.float64), ones),
        by_code(returns, ones),
        by_code((returns > 0).astype(np.float64), ones),
        by_code(held[LONG].astype(np.float64), lengths.astype(np.float64)),
        by_code(held[SHORT].astype(np.float64), lengths.astype(np.float64)),
        strict=True,
    )
    total = max(len(codes), 1)
    return [
        ArchetypeRow(code, int(count), count / total, *values)
        for code, (count, values) in enumerate(zip(counts, columns, strict=True))
    ]


def monthly_returns(ledger: Ledger) -> dict[str, float]:
    """Return of each calendar month, UTC, on the net value at its start: a fraction by `YYYY-MM`.

    A bar belongs to the month in which it began to end, so one that ends at midnight on the first
    belongs to the month before.
    """
    months = (ledger.timestamps - np.timedelta64(1, "us")).astype("datetime64[M]")
    names, first = np.unique(months, return_index=True)
    path = ledger.net_value_path
    closing = path[np.append(first[1:], len(ledger))]
    opening = path[first]
    return {str(name): float(end / start - 1.0) for name, start, end in zip(names, opening, closing, strict=True)}

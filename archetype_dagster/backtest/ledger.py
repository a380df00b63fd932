"""The per-bar record of a replay, and the check that its two accountings agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from archetype_dagster.backtest.performance import Performance, bars_per_year, performance
from archetype_dagster.types import ActionArray, BoolArray, FloatArray, JsonDict

RECONCILIATION_TOLERANCE: Final = 1e-9


@dataclass(frozen=True)
class Ledger:
    """What a run held, paid and was worth at each bar, oldest first; the run ends at ruin.

    Attributes:
        timestamps: datetime64[us] (T,), bar ends, UTC.
        mark: float64 (T,), mark price p_t, quote units.
        action: int8 (T,), action decided at that bar (0 short, 1 flat, 2 long).
        position: float64 (T,), P_t after the bar's trade, base units.
        traded: float64 (T,), signed net change of the position, base units.
        turnover: float64 (T,), base units bought plus base units sold.
        fee: float64 (T,), commission paid, quote units.
        slippage: float64 (T,), loss against the mark by crossing the book, quote units.
        cash: float64 (T,), after the bar's trade, quote units.
        net_value: float64 (T,), V_t = cash + P_t p_t after the bar's trade, quote units.
        reward: float64 (T,), r_t = P_t (p_{t+1} - p_t) - O_t; the last bar's is -O_t, quote units.
        initial_capital: V_1, net value before the first trade, quote units.
        max_position: m, base units.
        commission_rate: commission as a fraction of the traded notional at the mark.
        ruined: the last row's net value is zero or less and the run stopped there.
    """

    timestamps: NDArray[np.datetime64]
    mark: FloatArray
    action: ActionArray
    position: FloatArray
    traded: FloatArray
    turnover: FloatArray
    fee: FloatArray
    slippage: FloatArray
    cash: FloatArray
    net_value: FloatArray
    reward: FloatArray
    initial_capital: float
    max_position: float
    commission_rate: float
    ruined: bool = False

    def __len__(self) -> int:
        return len(self.mark)

    @property
    def net_value_path(self) -> FloatArray:
        """float64 (T + 1,), the initial capital followed by the net value of each bar."""
        return np.concatenate([[self.initial_capital], self.net_value])

    @property
    def trades(self) -> int:
        """Number of bars with a trade."""
        return int(np.count_nonzero(self.turnover))

    def performance(self, periods_per_year: float | None = None) -> Performance:
        """The six metrics of `net_value_path`; n comes from the bars' own clock unless it is given."""
        per_year = bars_per_year(self.timestamps) if periods_per_year is None else periods_per_year
        return performance(self.net_value_path, periods_per_year=per_year)

    def frame(self) -> pl.DataFrame:
        """One row per bar: `timestamp` (Datetime us UTC) and every per-bar array under its own name."""
        arrays = {item.name: getattr(self, item.name) for item in fields(self)}
        columns = {name: values for name, values in arrays.items() if isinstance(values, np.ndarray)}
        timestamps = pl.Series("timestamp", columns.pop("timestamps")).dt.replace_time_zone("UTC")
        return pl.DataFrame([timestamps, *(pl.Series(name, values) for name, values in columns.items())])

    @classmethod
    def from_frame(
        cls,
        frame: pl.DataFrame,
        *,
        initial_capital: float,
        max_position: float,
        commission_rate: float,
        ruined: bool,
    ) -> Self:
        """The ledger whose `frame` this is; what the bars do not say is given beside it, in the ledger's own units."""
        return cls(
            timestamps=frame["timestamp"].dt.replace_time_zone(None).to_numpy(),
            **{name: frame[name].to_numpy() for name in frame.columns if name != "timestamp"},
            initial_capital=initial_capital,
            max_position=max_position,
            commission_rate=commission_rate,
            ruined=ruined,
        )


@dataclass(frozen=True)
class Reconciliation:
    """Whether a ledger's cash and its rewards tell the same story.

    Attributes:
        reward_sum: sum of the rewards, quote units.
        net_value_change: V_T - V_1, quote units.
        relative_error: their difference over the larger of initial capital and change.
        total_fee: commission paid, quote units.
        total_slippage: slippage paid, quote units.
        failures: one line per broken rule; empty when all hold.
    """

    reward_sum: float
    net_value_change: float
    relative_error: float
    total_fee: float
    total_slippage: float
    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """True when no rule is broken."""
        return not self.failures

    def as_dict(self) -> JsonDict:
        """The numbers and failures by name, ready for JSON."""
        return {**vars(self), "failures": list(self.failures), "passed": self.passed}


@dataclass(frozen=True)
class RuleCheck:
    """One rule, tried at every bar.

    Attributes:
        rule: what must hold, in words.
        broken: number of bars at which it does not.
        row: first such bar, None where it holds throughout.
        timestamp: bar end of that bar, UTC.
    """

    rule: str
    broken: int
    row: int | None
    timestamp: np.datetime64 | None

    @property
    def passed(self) -> bool:
        """True where the rule holds at every bar."""
        return not self.broken

    def __str__(self) -> str:
        if self.passed:
            return f"{self.rule}: holds"
        more = f" and {self.broken - 1} more" if self.broken > 1 else ""
        return f"{self.rule}: broken at {self.timestamp} (row {self.row}){more}"


def check_rules(rules: Mapping[str, BoolArray], timestamps: NDArray[np.datetime64]) -> tuple[RuleCheck, ...]:
    """Each rule with the first bar that breaks it; a rule says at which of the T bars it holds, bool (T,)."""
    checks = []
    for rule, held in rules.items():
        row = None if held.all() else int(np.argmin(held))
        checks.append(RuleCheck(rule, int((~held).sum()), row, None if row is None else timestamps[row]))
    return tuple(checks)


def ledger_rules(ledger: Ledger) -> dict[str, BoolArray]:
    """Identities of a ledger by name, bool (T,) where each holds, to 1e-9 of the money at stake.

    Net value = cash + position * mark; cash moves by exactly what was traded and paid;
    r_t = P_t (p_{t+1} - p_t) - O_t; positions are -m, 0 or m and move by what was traded;
    fee = rate * turnover * mark; fee and slippage are never negative; only the last net value may be
    <= 0, and it is exactly where the run says that it was ruined. A NaN breaks every rule that it enters.
    """
    money = max(ledger.initial_capital, ledger.max_position * float(ledger.mark.max()))
    start = np.concatenate([[ledger.initial_capital], ledger.cash[:-1]])
    opening = np.concatenate([[0.0], ledger.position[:-1]])
    paid = ledger.fee + ledger.slippage
    moves = np.append(np.diff(ledger.mark), 0.0)
    return {
        "net value is cash + position * mark": _close(
            ledger.net_value, ledger.cash + ledger.position * ledger.mark, money
        ),
        "cash moves by what was traded and paid": _close(
            ledger.cash, start - ledger.traded * ledger.mark - paid, money
        ),
        "reward is position * next move - fee - slippage": _close(ledger.reward, ledger.position * moves - paid, money),
        "position is -m, 0 or m": np.isin(ledger.position / ledger.max_position, (-1.0, 0.0, 1.0)),
        "position moves by what was traded": _close(ledger.position, opening + ledger.traded, ledger.max_position),
        "turnover is at least the net trade": ledger.turnover >= np.abs(ledger.traded),
        "fee is rate * turnover * mark": _close(
            ledger.fee, ledger.commission_rate * ledger.turnover * ledger.mark, money
        ),
        "fee and slippage are not negative": (ledger.fee >= 0) & (ledger.slippage >= 0),
        "net value is positive until ruin": _positive_until_ruin(ledger),
    }


def reconcile(ledger: Ledger) -> Reconciliation:
    """Check `ledger_rules`, and that the rewards sum to the change of net value, each to 1e-9 relative.

    A broken rule is named with its first bar, never repaired.
    """
    change = float(ledger.net_value[-1] - ledger.initial_capital)
    reward_sum = float(ledger.reward.sum())
    error = abs(reward_sum - change) / max(ledger.initial_capital, abs(change))
    failures = [str(check) for check in check_rules(ledger_rules(ledger), ledger.timestamps) if not check.passed]
    # `not <=` rather than `>`: a NaN error must fail too.
    if not error <= RECONCILIATION_TOLERANCE:
        failures.insert(0, f"rewards sum to {reward_sum!r}, the net value changed by {change!r}")
    return Reconciliation(
        reward_sum=reward_sum,
        net_value_change=change,
        relative_error=error,
        total_fee=float(ledger.fee.sum()),
        total_slippage=float(ledger.slippage.sum()),
        failures=tuple(failures),
    )


def _close(left: FloatArray, right: FloatArray, scale: float) -> BoolArray:
    return np.asarray(np.abs(left - right) <= RECONCILIATION_TOLERANCE * scale, dtype=np.bool_)


def _positive_until_ruin(ledger: Ledger) -> BoolArray:
    held = ledger.net_value > 0
    if ledger.ruined:
        held[-1] = ledger.net_value[-1] <= 0
    return np.asarray(held, dtype=np.bool_)

"""An account that holds several assets at weights of its net value, and pays for what it trades once."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Final

import numpy as np

from archetype_dagster.envs.history_env import HistoryEnv
from archetype_dagster.envs.price_columns import PRICE_COLUMNS, price_columns
from archetype_dagster.envs.price_panel import PricePanel
from archetype_dagster.settings.task_environments import AllocationSettings
from archetype_dagster.types import FloatArray

# Share of the initial capital below which logarithms of the net value are taken of this instead.
_LEAST_SHARE: Final = 1e-6
_PERCENT: Final = 100.0


def value_after_costs(worth: FloatArray, weights: FloatArray, net_value: float, cost_rate: float) -> float:
    """The net value v left by trading to `weights` of it: v = V - k sum |w_i v - h_i|.

    v + k sum |w_i v - h_i| - V is convex, increasing and piecewise linear, so Newton's method comes down from V to
    the root in finitely many steps, at most two a kink.

    Args:
        worth: (N,), h, what each asset held is worth, quote units.
        weights: (N,), w, targets as shares of the net value after costs.
        net_value: V, before the trade.
        cost_rate: k, times the sum of |w| below 1.
    """
    value = net_value
    for _ in range(2 * len(weights) + 2):
        change = weights * value - worth
        excess = value + cost_rate * np.abs(change).sum() - net_value
        if excess <= 0:
            break
        value -= excess / (1 + cost_rate * np.sign(change) @ weights)
    return float(value)


class AllocationEnv(HistoryEnv):
    """One account in N assets; `StockTradingEnv` and `PortfolioAllocationEnv` say what an action means.

    On row t the account trades at that row's prices to the weights of the action, so that after costs of
    `cost_rate` times the value traded the weights hold exactly; then the bar passes and weights drift. A net value
    of zero or less, a margin or a drawdown beyond its limit terminates; the end of the episode or of the data
    truncates. `info` holds `timestamp`, `row`, `net_value` and `cash` (quote units), `position` (base units, (N,))
    and `weights` ((N,), shares of the net value), and after a step `cost` and `turnover` (quote units) and `ended`
    (`ruin`, `margin`, `drawdown` or None).

    Args:
        panel: prices.
        settings: capital, costs, reward and limits.
        columns: (T, C), market numbers beside return, trend and volatility of each asset, with names.
        column_names: their C names.
        account_names: names of the account's numbers beside the weights.
        warm_up: rows whose columns may not be shown.
        actions: numbers in an action.
        seed: of the first reset, if that names none.
    """

    def __init__(
        self,
        panel: PricePanel,
        settings: AllocationSettings,
        *,
        columns: FloatArray,
        column_names: tuple[str, ...],
        account_names: tuple[str, ...],
        warm_up: int,
        actions: int,
        seed: int | None,
    ) -> None:
        self._terms = settings
        shown = price_columns(panel.prices, settings.feature_bars, unit=_PERCENT).reshape(len(panel), -1)
        names = [f"{asset}.{name}" for asset in panel.names for name in PRICE_COLUMNS]
        names += [*column_names, *(f"{asset}.weight" for asset in panel.names), *account_names]
        super().__init__(
            panel,
            np.concatenate((shown, columns), axis=1),
            tuple(names),
            warm_up=max(warm_up, settings.feature_bars),
            settings=settings,
            following=1,
            actions=actions,
            seed=seed,
        )

    @property
    def gain(self) -> float:
        """Logarithm of the net value over the initial capital, bounded below for a ruined account."""
        share = self.net_value / self._terms.initial_capital
        return float(np.log(max(share, _LEAST_SHARE)))

    @property
    def weights(self) -> FloatArray:
        """Value of each asset held over the net value, (N,); a ruined account counts as hardly worth anything."""
        least = _LEAST_SHARE * self._terms.initial_capital
        held: FloatArray = self.position * self.panel.prices[self._row] / max(self.net_value, least)
        return held

    def _begin(self) -> None:
        self.net_value = self._peak = self._terms.initial_capital
        self.position = self._first_weights() * self.net_value / self.panel.prices[self._row]
        self.cash = self.net_value - float(self.position @ self.panel.prices[self._row])

    def _act(self, action: FloatArray) -> tuple[float, dict[str, Any]]:
        weights = self._targets(action)
        prices = self.panel.prices[self._row]
        worth = self.position * prices
        before, gain_before = self.net_value, self.gain
        targets = weights * value_after_costs(worth, weights, before, self._terms.cost_rate)
        turnover = float(np.abs(targets - worth).sum())
        cost = self._terms.cost_rate * turnover
        self.position = targets / prices
        self.cash = before - cost - float(targets.sum())
        self._advance()
        worth = self.position * self.panel.prices[self._row]
        self.net_value = self.cash + float(worth.sum())
        self._peak = max(self._peak, self.net_value)
        reward = self.gain - gain_before
        if self._terms.reward == "simple":
            reward = (self.net_value - before) / self._terms.initial_capital
        ended = self._ended(float(np.abs(worth).sum()))
        return float(reward), {"cost": cost, "turnover": turnover, "ended": ended}

    def _ended(self, gross: float) -> str | None:
        limit = self._terms.max_drawdown
        if self.net_value <= 0:
            return "ruin"
        return "drawdown" if limit is not None and self.net_value <= (1 - limit) * self._peak else None

    def _cut_off(self) -> bool:
        return super()._cut_off() or self._steps == self._terms.episode_bars

    def _info(self) -> dict[str, Any]:
        return {
            "timestamp": self.panel.timestamps[self._row],
            "row": self._row,
            "net_value": self.net_value,
            "cash": self.cash,
            "position": self.position.copy(),
            "weights": self.weights,
        }

    @abstractmethod
    def _first_weights(self) -> FloatArray:
        """Weights that an episode begins with, free of cost, (N,)."""

    @abstractmethod
    def _targets(self, action: FloatArray) -> FloatArray:
        """Weights of the assets that the action asks for, (N,)."""

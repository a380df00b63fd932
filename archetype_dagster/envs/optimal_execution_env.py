"""One order worked off within a horizon, under temporary and permanent impact."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np

from archetype_dagster.envs.execution_schedules import almgren_chriss_left
from archetype_dagster.envs.history_env import HistoryEnv
from archetype_dagster.envs.price_columns import PRICE_COLUMNS, price_columns
from archetype_dagster.envs.price_panel import PriceData, price_panel
from archetype_dagster.settings.task_environments import OptimalExecutionSettings, PricePathSettings
from archetype_dagster.types import FloatArray, IndexArray

_BPS: Final = 1e4
# Four weeks of one-minute bars.
_GENERATED: Final = PricePathSettings(assets=1, bars=40_320, bar_seconds=60, volatility_bps=10.0, trend_share=0.02)


class OptimalExecutionEnv(HistoryEnv):
    """An action is the pace of this bar: 0 that of TWAP, -1 nothing, 1 everything.

    With B bars to go the share of what is left that trades is (1 + a) / B for a up to 0, and B^(a - 1) above, so
    that any share can be had and equal steps of a positive action speed up by equal ratios. On row t a share n of
    the order trades at the mid less half the spread and n times the temporary impact (more than the mid when
    buying); from row t + 1 on the mid stands n times the permanent impact lower (higher). In the horizon's last bar
    all that is left trades, at the same cost; `info["forced"]` is the part the action had not asked for. The episode
    terminates when nothing is left, so it never truncates.

    The reward is the change of cash and remaining order at the mid, less lambda s^2 x^2 for the share x carried into
    the next bar, s the volatility at the start, in basis points of the order's arrival value. Rewards of an episode
    sum to minus the implementation shortfall minus the risk penalty.

    `info` holds `timestamp`, `row`, `mid` (with the order's own impact), `arrival_price`, `proceeds` (paid when
    buying) and `shortfall` so far with the rest at the mid (quote units) and `left` (base units), and after a step
    `traded` and `forced` (base units), `price`, `risk_penalty` (basis points) and `ended` (`executed` or None).

    Args:
        data: prices of one asset, whatever `price_panel` takes; None for four generated weeks of one-minute bars.
        settings: order, impacts and risk aversion.
        seed: of the first reset, if that names none.

    Raises:
        ValueError: prices of several assets.
    """

    baselines: ClassVar[tuple[str, ...]] = ("almgren_chriss", "twap")

    def __init__(
        self,
        data: PriceData | None = None,
        *,
        settings: OptimalExecutionSettings | None = None,
        seed: int | None = None,
    ) -> None:
        self.settings = settings = settings or OptimalExecutionSettings()
        panel = price_panel(_GENERATED if data is None else data)
        if len(panel.names) != 1:
            raise ValueError(f"data must hold the prices of one asset, got {len(panel.names)}: {panel.names}")
        self._market_mid = panel.prices[:, 0]
        self._sign = 1.0 if settings.side == "sell" else -1.0
        columns = price_columns(panel.prices, settings.feature_bars, unit=_BPS)[:, 0]
        self._volatility = columns[:, PRICE_COLUMNS.index("volatility")]
        super().__init__(
            panel,
            columns,
            (*PRICE_COLUMNS, "left", "time_left", "price_gain"),
            warm_up=settings.feature_bars,
            settings=settings,
            following=settings.horizon_bars,
            actions=1,
            seed=seed,
        )

    @property
    def mid(self) -> float:
        """Mid price with the order's own permanent impact, quote units."""
        moved = self.settings.permanent_impact_bps / _BPS * self.arrival_price * (1.0 - self.left)
        return float(self._market_mid[self._row]) - self._sign * moved

    @property
    def shortfall(self) -> float:
        """Arrival value less what the order has brought and its rest at the mid, quote units; a loss is positive."""
        quantity = self.settings.quantity
        return self._sign * (quantity * self.arrival_price - self.proceeds - quantity * self.left * self.mid)

    @property
    def arrival_value(self) -> float:
        """The whole order at the arrival price, quote units."""
        return self.settings.quantity * self.arrival_price

    def _begin(self) -> None:
        self.arrival_price = float(self._market_mid[self._row])
        self.arrival_volatility_bps = float(self._volatility[self._row])
        self.left = 1.0
        self.proceeds = 0.0
        self._start = self._row

    def _account(self) -> FloatArray:
        gain = self._sign * _BPS * (self.mid / self.arrival_price - 1.0)
        return np.array([self.left, 1.0 - self._steps / self.settings.horizon_bars, gain])

    def _account_at(self, rows: IndexArray) -> FloatArray:
        # The price and the clock of the bars before the order are known, and differ from those at its start.
        gain = self._sign * _BPS * (self._market_mid[rows] / self.arrival_price - 1.0)
        time_left = 1.0 + (self._start - rows) / self.settings.horizon_bars
        return np.stack((np.ones(len(rows)), time_left, gain), axis=1)

    def _act(self, action: FloatArray) -> tuple[float, dict[str, Any]]:
        settings, before = self.settings, self.shortfall
        asked = self.left * self._share(float(action[0]))
        is_last = self._bars_to_go == 1
        traded = self.left if is_last else asked
        impact = settings.half_spread_bps + settings.temporary_impact_bps * traded
        price = self.mid - self._sign * impact / _BPS * self.arrival_price
        self.proceeds += settings.quantity * traded * price
        self.left = 0.0 if is_last else self.left - traded
        self._advance()
        change = _BPS * (self.shortfall - before) / self.arrival_value
        penalty = settings.risk_aversion * self.arrival_volatility_bps**2 * self.left**2
        return -change - penalty, {
            "traded": settings.quantity * traded,
            "forced": settings.quantity * (traded - asked),
            "price": price,
            "risk_penalty": penalty,
            "ended": None if self.left else "executed",
        }

    def _info(self) -> dict[str, Any]:
        return {
            "timestamp": self.panel.timestamps[self._row],
            "row": self._row,
            "mid": self.mid,
            "arrival_price": self.arrival_price,
            "proceeds": self.proceeds,
            "shortfall": self.shortfall,
            "left": self.settings.quantity * self.left,
        }

    def _baseline(self, name: str) -> FloatArray:
        bars = self._bars_to_go
        if name == "twap" or bars <= 1:
            return np.zeros(1)
        left = almgren_chriss_left(
            bars,
            volatility_bps=self.arrival_volatility_bps,
            temporary_impact_bps=self.settings.temporary_impact_bps,
            permanent_impact_bps=self.settings.permanent_impact_bps,
            risk_aversion=self.settings.risk_aversion,
        )
        # What is left of the path is the path of what is left. It is never slower than TWAP but for rounding.
        return np.array([max(0.0, 1.0 + np.log(1.0 - left[1]) / np.log(bars))])

    @property
    def _bars_to_go(self) -> int:
        return self.settings.horizon_bars - self._steps

    def _share(self, pace: float) -> float:
        """Share of what is left that an action trades in this bar."""
        return (1.0 + pace) / self._bars_to_go if pace <= 0 else float(self._bars_to_go ** (pace - 1.0))

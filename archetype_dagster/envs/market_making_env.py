"""A bid and an ask kept around the mid, filled at random the less often the further away they stand."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np

from archetype_dagster.envs.avellaneda_stoikov import avellaneda_stoikov_distances
from archetype_dagster.envs.history_env import HistoryEnv
from archetype_dagster.envs.price_columns import PRICE_COLUMNS, price_columns
from archetype_dagster.envs.price_panel import PriceData, price_panel
from archetype_dagster.settings.task_environments import MarketMakingSettings, PricePathSettings
from archetype_dagster.types import FloatArray

_BPS: Final = 1e4
# Two days of bars of ten seconds.
_GENERATED: Final = PricePathSettings(
    assets=1, bars=17_280, bar_seconds=10, volatility_bps=3.0, trend_share=0.01, trend_memory=0.98
)
_LEAST_VOLATILITY: Final = 1e-12


class MarketMakingEnv(HistoryEnv):
    """An action is the distance of the bid and of the ask from the mid, -1 on it and 1 at `max_distance_bps`.

    At 1 the quote is withdrawn. On row t quotes of one lot are placed around its mid p_t. Until row t + 1 the bid is
    filled with probability 1 - exp(-A (1 - e z) exp(-k distance)) and the ask with (1 + e z) in its place: z =
    tanh(next return / volatility), so that with an adverse selection e above 0 a fill is more often followed by a
    move against it. The reward is the change of wealth, cash plus inventory at the mid, less the inventory penalty
    phi q^2 of the lots q held after the fills, in basis points of one lot at the episode's start.

    Inventory beyond the limit terminates; the end of the episode or of the data truncates, with the inventory at the
    mid. `info` holds `timestamp`, `row`, `mid`, `wealth` and `cash` (quote units) and `inventory` (lots), and after
    a step `bid_distance_bps` and `ask_distance_bps` (infinite where withdrawn), `bought` and `sold` (lots), `fee`
    (quote units), `wealth_change` and `inventory_penalty` (basis points of a lot) and `ended` (`inventory` or None).

    Args:
        data: prices of one asset, whatever `price_panel` takes; None for two generated days of ten-second bars.
        settings: quotes, fills, limits and the baseline's risk aversion.
        seed: of the first reset, if that names none.

    Raises:
        ValueError: prices of several assets.
    """

    baselines: ClassVar[tuple[str, ...]] = ("avellaneda_stoikov",)

    def __init__(
        self,
        data: PriceData | None = None,
        *,
        settings: MarketMakingSettings | None = None,
        seed: int | None = None,
    ) -> None:
        self.settings = settings = settings or MarketMakingSettings()
        panel = price_panel(_GENERATED if data is None else data)
        if len(panel.names) != 1:
            raise ValueError(f"data must hold the prices of one asset, got {len(panel.names)}: {panel.names}")
        self._mid = panel.prices[:, 0]
        columns = price_columns(panel.prices, settings.feature_bars, unit=_BPS)[:, 0]
        self._volatility = columns[:, PRICE_COLUMNS.index("volatility")]
        super().__init__(
            panel,
            columns,
            (*PRICE_COLUMNS, "inventory", "bought", "sold"),
            warm_up=settings.feature_bars,
            settings=settings,
            following=1,
            actions=2,
            seed=seed,
        )

    @property
    def mid(self) -> float:
        """Mid price, quote units."""
        return float(self._mid[self._row])

    @property
    def wealth(self) -> float:
        """Cash plus inventory at the mid, quote units; zero at the start."""
        return self.cash + self.inventory * self.settings.quote_size * self.mid

    def fill_probability(self, distance_bps: float, informed: float = 0.0) -> float:
        """Chance that a quote is filled within a bar; `informed`, e z with its sign, raises or lowers it."""
        arrivals = self.settings.arrivals_per_bar * (1 + informed)
        return float(-np.expm1(-arrivals * np.exp(-self.settings.fill_decay_per_bps * distance_bps)))

    def _begin(self) -> None:
        self.cash = 0.0
        self.inventory = 0
        self._bought = self._sold = 0
        self._lot_value = self.settings.quote_size * self.mid

    def _account(self) -> FloatArray:
        return np.array([self.inventory / self.settings.inventory_limit, self._bought, self._sold])

    def _act(self, action: FloatArray) -> tuple[float, dict[str, Any]]:
        settings, mid, before = self.settings, self.mid, self.wealth
        reach = settings.max_distance_bps
        bid, ask = (np.inf if part >= 1.0 else reach * (part + 1.0) / 2 for part in action.tolist())
        move = np.log(self._mid[self._row + 1] / mid) * _BPS
        informed = settings.adverse_selection * np.tanh(move / max(self._volatility[self._row], _LEAST_VOLATILITY))
        # Two draws a bar whatever is quoted, so that quotes can be compared on the same draws.
        draws = self.np_random.random(2)
        self._bought = int(draws[0] < self.fill_probability(bid, -informed))
        self._sold = int(draws[1] < self.fill_probability(ask, informed))
        paid = mid * (1 - bid / _BPS) if self._bought else 0.0
        received = mid * (1 + ask / _BPS) if self._sold else 0.0
        fee = settings.quote_size * (paid + received) * settings.maker_fee_bps / _BPS
        self.cash += settings.quote_size * (received - paid) - fee
        self.inventory += self._bought - self._sold
        self._advance()
        change = _BPS * (self.wealth - before) / self._lot_value
        penalty = settings.inventory_penalty_bps * self.inventory**2
        return float(change - penalty), {
            "bid_distance_bps": bid,
            "ask_distance_bps": ask,
            "bought": self._bought,
            "sold": self._sold,
            "fee": fee,
            "wealth_change": change,
            "inventory_penalty": penalty,
            "ended": "inventory" if abs(self.inventory) > settings.inventory_limit else None,
        }

    def _cut_off(self) -> bool:
        return super()._cut_off() or self._steps == self.settings.episode_bars

    def _info(self) -> dict[str, Any]:
        return {
            "timestamp": self.panel.timestamps[self._row],
            "row": self._row,
            "mid": self.mid,
            "wealth": self.wealth,
            "cash": self.cash,
            "inventory": self.inventory,
        }

    def _baseline(self, name: str) -> FloatArray:
        """Avellaneda-Stoikov quotes with T - t fixed, kept on their side of the mid; none beyond the limit."""
        settings = self.settings
        distances = avellaneda_stoikov_distances(
            self.inventory,
            float(self._volatility[self._row]),
            bars_left=settings.risk_horizon_bars,
            risk_aversion=settings.risk_aversion,
            fill_decay_per_bps=settings.fill_decay_per_bps,
        )
        action = np.clip(2 * np.array(distances) / settings.max_distance_bps - 1, -1.0, 1.0)
        full = np.array([self.inventory, -self.inventory]) >= settings.inventory_limit
        return np.where(full, 1.0, action)

"""Several assets traded to target weights, long or short, with a stop on turbulent bars."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np

from archetype_dagster.envs.allocation import AllocationEnv
from archetype_dagster.envs.price_columns import turbulence
from archetype_dagster.envs.price_panel import PriceData, price_panel
from archetype_dagster.settings.task_environments import PricePathSettings, StockTradingSettings
from archetype_dagster.types import FloatArray

_PERCENT: Final = 100.0


class StockTradingEnv(AllocationEnv):
    """An action is a target weight for each asset, from -1 to 1 of the net value; the rest is cash.

    Where shorting is not allowed negative targets count as zero, and targets whose absolute sum exceeds `max_gross`
    are scaled down to it. On a row whose turbulence, known at its end, exceeds the threshold everything is sold
    whatever the action says, at the usual cost; `info["halted"]` says so. Net value over gross exposure at or below
    `margin_floor` terminates.

    Args:
        data: whatever `price_panel` takes; None for five generated assets.
        settings: weights, costs, stop and limits.
        seed: of the first reset, if that names none.

    Attributes:
        turbulence: float64 (T,), the index of each row.
    """

    baselines: ClassVar[tuple[str, ...]] = ("equal_weight", "flat")

    def __init__(
        self,
        data: PriceData | None = None,
        *,
        settings: StockTradingSettings | None = None,
        seed: int | None = None,
    ) -> None:
        self.settings = settings = settings or StockTradingSettings()
        panel = price_panel(PricePathSettings() if data is None else data)
        self.turbulence = turbulence(panel.prices, settings.turbulence_bars)
        super().__init__(
            panel,
            settings,
            columns=np.log1p(self.turbulence)[:, np.newaxis],
            column_names=("turbulence",),
            account_names=("cash", "gain"),
            warm_up=settings.turbulence_bars + 1,
            actions=len(panel.names),
            seed=seed,
        )

    @property
    def halted(self) -> bool:
        """Whether the newest bar is too turbulent to hold anything after it."""
        threshold = self.settings.turbulence_threshold
        return threshold is not None and bool(self.turbulence[self._row] > threshold)

    def _first_weights(self) -> FloatArray:
        return np.zeros(len(self.panel.names))

    def _targets(self, action: FloatArray) -> FloatArray:
        if self.halted:
            return np.zeros_like(action)
        weights = action if self.settings.shorting else np.maximum(action, 0.0)
        gross = max(float(np.abs(weights).sum()), self.settings.max_gross)
        return weights * (self.settings.max_gross / gross)

    def _act(self, action: FloatArray) -> tuple[float, dict[str, Any]]:
        halted = self.halted
        reward, events = super()._act(action)
        return reward, events | {"halted": halted}

    def _account(self) -> FloatArray:
        weights = self.weights
        return np.array([*weights, 1.0 - weights.sum(), _PERCENT * self.gain])

    def _ended(self, gross: float) -> str | None:
        if 0 < self.net_value <= self.settings.margin_floor * gross:
            return "margin"
        return super()._ended(gross)

    def _info(self) -> dict[str, Any]:
        return super()._info() | {"turbulence": float(self.turbulence[self._row])}

    def _baseline(self, name: str) -> FloatArray:
        assets = len(self.panel.names)
        return np.full(assets, min(1.0, self.settings.max_gross) / assets if name == "equal_weight" else 0.0)

"""A portfolio whose weights sum to one and drift with prices between trades."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from archetype_dagster.envs.allocation import AllocationEnv
from archetype_dagster.envs.price_panel import PriceData, price_panel
from archetype_dagster.settings.task_environments import PortfolioAllocationSettings, PricePathSettings
from archetype_dagster.types import FloatArray

_PERCENT: Final = 100.0


class PortfolioAllocationEnv(AllocationEnv):
    """An action becomes weights of the N assets and, where `cash` is on, of cash, which comes last.

    `softmax`: w = softmax(sharpness a). `renormalised`: w = (a + 1) / sum (a + 1), so that -1 is nothing; where all
    are -1 the weights are equal, which is the limit of equal actions. With cash an episode begins in cash; without,
    in equal weights, free of cost. Cash earns nothing and trades free of cost.

    Args:
        data: whatever `price_panel` takes; None for five generated assets.
        settings: weights, costs and limits.
        seed: of the first reset, if that names none.
    """

    baselines: ClassVar[tuple[str, ...]] = ("equal_weight",)

    def __init__(
        self,
        data: PriceData | None = None,
        *,
        settings: PortfolioAllocationSettings | None = None,
        seed: int | None = None,
    ) -> None:
        self.settings = settings = settings or PortfolioAllocationSettings()
        panel = price_panel(PricePathSettings() if data is None else data)
        super().__init__(
            panel,
            settings,
            columns=np.empty((len(panel), 0)),
            column_names=(),
            account_names=("cash", "gain") if settings.cash else ("gain",),
            warm_up=0,
            actions=len(panel.names) + settings.cash,
            seed=seed,
        )

    def simplex_weights(self, action: FloatArray) -> FloatArray:
        """Weights of assets and cash that an action asks for: non-negative and of sum one, in its order."""
        if self.settings.weights == "softmax":
            raised = np.exp(self.settings.softmax_sharpness * (action - action.max()))
        else:
            raised = action + 1.0
            if not raised.any():
                raised = np.ones_like(action)
        shares: FloatArray = raised / raised.sum()
        return shares

    def _first_weights(self) -> FloatArray:
        assets = len(self.panel.names)
        return np.full(assets, 0.0 if self.settings.cash else 1.0 / assets)

    def _targets(self, action: FloatArray) -> FloatArray:
        return self.simplex_weights(action)[: len(self.panel.names)]

    def _account(self) -> FloatArray:
        weights = self.weights
        cash = [1.0 - weights.sum()] if self.settings.cash else []
        return np.array([*weights, *cash, _PERCENT * self.gain])

    def _baseline(self, name: str) -> FloatArray:
        # Equal actions are equal weights under either rule.
        return np.zeros(self.action_space.shape or ())

"""Limits that refuse orders, and the two things that end trading: the drawdown stop and the kill switch."""

from __future__ import annotations

from collections.abc import Sequence

from archetype_dagster.settings import RiskSettings

_SLACK = 1e-9


class RiskGuard:
    """Watches one run.

    Args:
        settings: the limits.
        max_positions: largest position of each leg, base units; None takes the settings' limit.
        initial_value: net value at the start, quote units, from which drawdowns are measured.

    Attributes:
        stopped: why trading has ended, None while it goes on.
    """

    def __init__(self, settings: RiskSettings, max_positions: Sequence[float | None], *, initial_value: float) -> None:
        self.settings = settings
        self.max_positions = tuple(settings.max_position if own is None else own for own in max_positions)
        self.stopped: str | None = None
        self._peak = initial_value
        self._orders = 0

    @property
    def limits_exposure(self) -> bool:
        """Whether any limit looks at positions."""
        return any(limit is not None for limit in (*self.max_positions, self.settings.max_notional))

    def begin_bar(self) -> None:
        """Count orders anew."""
        self._orders = 0

    def refuse_any(self) -> tuple[str, str] | None:
        """Why no order at all is taken now, as (reason, detail); counts the order otherwise."""
        if self.stopped is not None:
            return "stopped", self.stopped
        if self._orders >= self.settings.max_orders_per_bar:
            return "max_orders_per_bar", f"limit {self.settings.max_orders_per_bar}"
        self._orders += 1
        return None

    def refuse_exposure(self, leg: int, exposures: Sequence[float], marks: Sequence[float]) -> tuple[str, str] | None:
        """Why positions of at most |exposures| base units are not allowed, as (reason, detail)."""
        limit = self.max_positions[leg]
        if limit is not None and exposures[leg] > limit * (1 + _SLACK):
            return "max_position", f"would reach {exposures[leg]:.10g} of at most {limit:.10g}"
        most = self.settings.max_notional
        if most is not None:
            notional = sum(exposure * mark for exposure, mark in zip(exposures, marks, strict=True) if exposure)
            if notional > most * (1 + _SLACK):
                return "max_notional", f"would reach {notional:.10g} of at most {most:.10g}"
        return None

    def stop(self, reason: str) -> bool:
        """Throw the switch; False where it was thrown before."""
        if self.stopped is not None:
            return False
        self.stopped = reason
        return True

    def falls_too_far(self, net_value: float) -> bool:
        """Note a net value; whether it is too far below the highest one for the first time."""
        if net_value > self._peak:
            self._peak = net_value
        limit = self.settings.max_drawdown
        if limit is None or self.stopped is not None:
            return False
        return 1 - net_value / self._peak >= limit

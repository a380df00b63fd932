"""What a paper trader asks of a policy: `deployment.OnnxPolicy`, or anything that decides bar by bar as it does."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from archetype_dagster.types import JsonDict


class BarDecision(Protocol):
    """What a policy decided at a bar's end; see `deployment.Decision`."""

    @property
    def timestamp(self) -> datetime:
        """The bar's end, UTC."""

    @property
    def action(self) -> int:
        """0 short, 1 flat, 2 long: the position wanted from now on."""

    @property
    def base_action(self) -> int:
        """The archetype's action, before an override."""

    @property
    def code(self) -> int:
        """The horizon's archetype."""

    @property
    def tau(self) -> int:
        """Bars since the horizon's first."""

    @property
    def overridden(self) -> bool:
        """Whether the refiner acts at this bar."""


class BarPolicy(Protocol):
    """A policy that is given one bar after the other and cannot know the next."""

    @property
    def manifest(self) -> JsonDict:
        """The bundle's facts; a trader reads `pair`, `quote`, `bar_minutes`, `max_position`, `commission_rate`,
        `execution_delay_bars`, `horizon_boundary` and `warmup_bars`.
        """

    def on_bar(self, bar: Mapping[str, Any]) -> BarDecision | None:
        """The decision at a bar's end, None while features warm up; `MarketDataError` leaves the policy as it was."""

    def position(self, action: int) -> float:
        """Position m (a - 1) of an action, base units."""

    def cost(self, bar: Mapping[str, Any], action_from: int, action_to: int) -> float:
        """Execution loss O of a change of position on the bar's book, commission included, quote units."""

    def reset(self) -> None:
        """Forget every bar."""

    def state(self) -> JsonDict:
        """Everything the next bars need, as plain JSON values."""

    def restore(self, state: JsonDict) -> None:
        """Go on from what `state` gave."""

"""A bundle as a strategy of the event-driven engine: the live policy's decisions as position targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from archetype_dagster.backtest.engine.context import Bar, BarContext
from archetype_dagster.backtest.engine.instruments import Instrument
from archetype_dagster.backtest.engine.orders import Target
from archetype_dagster.backtest.engine.strategy import BaseStrategy
from archetype_dagster.deployment.onnx_policy import Decision, OnnxPolicy
from archetype_dagster.deployment.sessions import CPU
from archetype_dagster.errors import ArtifactError
from archetype_dagster.types import FLAT, JsonDict


class OnnxPolicyStrategy(BaseStrategy):
    """Holds the position that a bundle's policy wants; flat on bars without features.

    The engine executes with the delay of its own settings, which must be the manifest's `execution_delay_bars`. Net
    values are then the evaluation's. Under `horizon_boundary: settle` a horizon's first bar closes the position
    before it trades; the engine's second order of that bar meets the book that the first one left, where the
    evaluation prices both on the same book.

    Args:
        onnx_path: the bundle's folder.
        leg_specs: the one leg to trade; by default the engine's first.
        providers: of onnxruntime, in order of preference.

    Attributes:
        policy: the policy; `state` and `restore` of it go on in another process.

    Raises:
        ArtifactError: a damaged, foreign or newer bundle, or a leg of another pair than the bundle's.
        ValueError: not exactly one leg, or a provider that is not there.
    """

    def __init__(
        self,
        onnx_path: Path | str,
        leg_specs: Sequence[Instrument] | None = None,
        providers: Sequence[str] = (CPU,),
    ) -> None:
        self.policy = OnnxPolicy.load(onnx_path, providers)
        self._leg: Instrument | None = None
        if leg_specs is not None:
            if len(leg_specs) != 1:
                raise ValueError(f"the policy trades one leg, got {len(leg_specs)} leg_specs")
            self._leg = self._known(leg_specs[0])

    def predict(self, observation: Mapping[str, Any]) -> int:
        """Take the next bar and give the action, 0 short, 1 flat, 2 long: flat while features warm up.

        Args:
            observation: a row of a bars table by column name; see `OnnxPolicy.on_bar`.

        Raises:
            MarketDataError: as `OnnxPolicy.on_bar`.
        """
        decision = self.policy.on_bar(observation)
        return FLAT if decision is None else decision.action

    def on_start(self, ctx: BarContext) -> None:
        """Begin a run without memory of an earlier one; `ArtifactError` where leg or delay are not the bundle's."""
        self.policy.reset()
        delay = self.policy.manifest["execution_delay_bars"]
        if ctx.execution_delay_bars != delay:
            raise ArtifactError(
                f"the bundle was judged with execution_delay_bars={delay}, the engine has {ctx.execution_delay_bars}"
            )
        if self._leg is None:
            self._leg = self._known(ctx.instruments[0])

    def on_bar(self, bar: Bar, ctx: BarContext) -> list[Target]:
        """The position wanted from this bar's end on."""
        leg = self._leg or bar.instrument
        decision = self.policy.on_bar(ctx.row(instrument=leg))
        if decision is None:
            return [Target(leg, 0.0)]
        wanted = Target(leg, self.policy.position(decision.action), tag=_tag(decision))
        return [Target(leg, 0.0), wanted] if self._settles(decision) else [wanted]

    def _settles(self, decision: Decision) -> bool:
        return decision.tau == 0 and self.policy.manifest["horizon_boundary"] == "settle"

    def _known(self, leg: Instrument) -> Instrument:
        manifest: JsonDict = self.policy.manifest
        if (leg.base, leg.quote) != (manifest["base"], manifest["quote"]):
            raise ArtifactError(f"the bundle trades {manifest['base']}-{manifest['quote']}, the leg is {leg.symbol}")
        return leg


def _tag(decision: Decision) -> str:
    return f"{'override' if decision.overridden else 'base'} code {decision.code} tau {decision.tau}"

"""A bundle as a strategy of the event-driven engine: the live policy's decisions as position targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from archetype_dagster.backtest.engine.context import Bar, BarContext
from archetype_dagster.backtest.engine.instruments import Instrument
from archetype_dagster.backtest.engine.orders import Target
from archetype_dagster.backtest.engine.strategy import BaseStrategy
from archetype_dagster.deployment.onnx_policy import Decision, OnnxPolicy
from archetype_dagster.deployment.sessions import CPU
from archetype_dagster.errors import ArtifactError, MarketDataError
from archetype_dagster.market.feature_formulas import WARMUP_BARS
from archetype_dagster.market.single_bar import bar_end
from archetype_dagster.types import FLAT, JsonDict


class OnnxPolicyStrategy(BaseStrategy):
    """Holds the position that a bundle's policy wants; flat on bars without features.

    The engine executes with the delay of its own settings, which must be the manifest's `execution_delay_bars`. Net
    values are the evaluation's where commission, depth policy and impact curve are the manifest's too, of which the
    engine tells a strategy nothing. Under `horizon_boundary: settle`, the manifest's, a horizon's first bar closes the
    position before it trades; the engine's second order of that bar meets the book that the first one left, where the
    evaluation prices both on the same book.

    Bars of another length are refused, since the policy would take each for the first after a gap and stay flat: a bar
    that ends sooner after the last one than one bar length, or the 60th in a row that ends later.

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
        self._length = timedelta(minutes=int(self.policy.manifest["bar_minutes"]))
        self._last: datetime | None = None
        self._gaps = 0
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
            MarketDataError: as `OnnxPolicy.on_bar`, or a bar of another length than the bundle's.
        """
        decision = self._decide(observation)
        return FLAT if decision is None else decision.action

    def on_start(self, ctx: BarContext) -> None:
        """Begin a run without memory of an earlier one; `ArtifactError` where leg or delay are not the bundle's."""
        self.policy.reset()
        self._last, self._gaps = None, 0
        delay = self.policy.manifest["execution_delay_bars"]
        if ctx.execution_delay_bars != delay:
            raise ArtifactError(
                f"the bundle was judged with execution_delay_bars={delay}, the engine has {ctx.execution_delay_bars}"
            )
        if self._leg is None:
            self._leg = self._known(ctx.instruments[0])

    def on_bar(self, bar: Bar, ctx: BarContext) -> list[Target]:
        """The position wanted from this bar's end on; `MarketDataError` as `predict`."""
        leg = self._leg or bar.instrument
        decision = self._decide(ctx.row(instrument=leg))
        if decision is None:
            return [Target(leg, 0.0)]
        wanted = Target(leg, self.policy.position(decision.action), tag=_tag(decision))
        return [Target(leg, 0.0), wanted] if self._settles(decision) else [wanted]

    def _decide(self, row: Mapping[str, Any]) -> Decision | None:
        end = bar_end(row)
        # The policy itself refuses a bar that is not later than the last.
        step = self._length if self._last is None else end - self._last
        gaps = self._gaps + 1 if step > self._length else 0
        rule = f"bars must be {self._length} long as the bundle's are"
        if timedelta(0) < step < self._length:
            raise MarketDataError(f"{rule}, got {end} only {step} after the last", field="timestamp")
        if gaps >= WARMUP_BARS:
            raise MarketDataError(f"{rule}, got {gaps} in a row after a gap, the last of {step}", field="timestamp")
        decision = self.policy.on_bar(row)
        self._last, self._gaps = end, gaps
        return decision

    def _settles(self, decision: Decision) -> bool:
        return decision.tau == 0 and self.policy.manifest["horizon_boundary"] == "settle"

    def _known(self, leg: Instrument) -> Instrument:
        manifest: JsonDict = self.policy.manifest
        if (leg.base, leg.quote) != (manifest["base"], manifest["quote"]):
            raise ArtifactError(f"the bundle trades {manifest['base']}-{manifest['quote']}, the leg is {leg.symbol}")
        return leg


def _tag(decision: Decision) -> str:
    return f"{'override' if decision.overridden else 'base'} code {decision.code} tau {decision.tau}"

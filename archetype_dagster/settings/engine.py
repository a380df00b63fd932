"""The event-driven engine: fees, depth, margin, risk limits and what becomes of faults."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from archetype_dagster.settings.section import NonNegativeFloat, PositiveFloat, PositiveInt, Section

EngineDepthPolicy = Literal["extrapolate", "last_level", "partial", "reject"]
SelfTrade = Literal["cancel_resting", "cancel_incoming", "allow"]
ErrorPolicy = Literal["stop", "continue"]

_Rate = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class MarginSettings(Section):
    """What positions need as security, and what a forced close costs. Rates are fractions of notional at the mark."""

    mode: Literal["none", "cross"] = Field(
        "none", description="No margin, so that only ruin ends a run, or one account that secures all legs together."
    )
    spot_initial_rate: _Rate = Field(1.0, description="Security for opening a spot position, long or short.")
    spot_maintenance_rate: _Rate = Field(0.05, description="Security below which spot positions are closed.")
    swap_initial_rate: _Rate = Field(0.1, description="Security for opening a swap position.")
    swap_maintenance_rate: _Rate = Field(0.05, description="Security below which swap positions are closed.")
    liquidation_fee_rate: NonNegativeFloat = Field(
        0.005, description="Fee of a forced close beside the taker's, as a fraction of the closed notional."
    )

    @model_validator(mode="after")
    def _maintenance_below_initial(self) -> Self:
        for kind in ("spot", "swap"):
            initial, maintenance = getattr(self, f"{kind}_initial_rate"), getattr(self, f"{kind}_maintenance_rate")
            if maintenance > initial:
                raise ValueError(
                    f"{kind}_maintenance_rate must not exceed {kind}_initial_rate={initial}, "
                    f"got {kind}_maintenance_rate={maintenance}"
                )
        return self


class RiskSettings(Section):
    """Limits that refuse orders or end trading; empty means no limit."""

    max_position: PositiveFloat | None = Field(
        None, description="Largest position of a leg in base units, counting all its open orders of one side as filled."
    )
    max_notional: PositiveFloat | None = Field(
        None, description="Largest sum of the legs' notionals at the mark, open orders counted as for max_position."
    )
    max_drawdown: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Loss since the highest net value, as a fraction, at which trading stops."
    )
    max_orders_per_bar: PositiveInt = Field(
        1_000, description="Orders taken at one bar's end, those given in answer to fills included."
    )
    close_on_stop: bool = Field(
        True, description="Close all positions when the drawdown or the kill switch stops a run."
    )


class EngineSettings(Section):
    """Event-driven backtests."""

    initial_cash: PositiveFloat = Field(100_000.0, description="Starting net value where nothing else sets it.")
    taker_rate: NonNegativeFloat | None = Field(
        None, description="Fee of taking liquidity; empty means execution.commission_rate."
    )
    maker_rate: Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)] | None = Field(
        None, description="Fee of resting orders, negative for a rebate; empty means the taker's."
    )
    fee_basis: Literal["mark", "fill"] = Field(
        "mark",
        description="Price of the notional that fees are a fraction of: the mark, as in the cost table, or the fill's.",
    )
    depth_policy: EngineDepthPolicy | None = Field(
        None, description="What a market order finds beyond the visible book; empty means execution.depth_policy."
    )
    self_trade: SelfTrade = Field("cancel_resting", description="What happens when an order would meet one's own.")
    unequal_bars: Literal["refuse", "common"] = Field(
        "refuse", description="Legs whose bar ends differ are refused, or only the ends that all have are walked."
    )
    callback_errors: ErrorPolicy = Field(
        "stop", description="An exception in a subscriber ends the run, or is recorded in the result."
    )
    margin: MarginSettings = Field(MarginSettings(), description="Margin and liquidation.")
    risk: RiskSettings = Field(RiskSettings(), description="Limits.")

"""The environments that allocate, make markets and execute orders, and the prices they generate for themselves."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from archetype_dagster.settings.section import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, Section

_Rate = Annotated[float, Field(ge=0, lt=0.1, allow_inf_nan=False)]
_Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
_Bps = Annotated[float, Field(ge=0, lt=10_000, allow_inf_nan=False)]
_Memory = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class PricePathSettings(Section):
    """Seeded prices of correlated assets with trends that last and volatility that clusters."""

    assets: PositiveInt = Field(5, description="Assets with a price each.")
    bars: Annotated[int, Field(ge=2)] = Field(1_500, description="Rows of prices.")
    bar_seconds: PositiveInt = Field(86_400, description="Seconds from one row to the next.")
    seed: int = Field(0, description="Seed of the prices; the starts of episodes have the environment's.")
    volatility_bps: PositiveFloat = Field(120.0, description="Median standard deviation of a one-bar log return.")
    volatility_dispersion: NonNegativeFloat = Field(
        0.35, description="Standard deviation of the logarithm of the assets' common volatility."
    )
    volatility_memory: _Memory = Field(0.9, description="Autocorrelation of that logarithm from bar to bar.")
    correlation: Fraction = Field(0.3, description="Correlation of two assets' returns within a bar.")
    trend_share: Fraction = Field(0.05, description="Share of the returns' variance that lasts from bar to bar.")
    trend_memory: _Memory = Field(0.9, description="Autocorrelation of the part that lasts.")


class HistorySettings(Section):
    """How much of the past an observation holds, and what an episode is."""

    lookback_bars: PositiveInt = Field(1, description="Bars in an observation, the newest one included.")
    feature_bars: Annotated[int, Field(ge=2)] = Field(
        20, description="Returns behind a bar's volatility, and prices behind its trend."
    )
    starts: Literal["random", "first"] = Field(
        "random", description="Episodes begin on a row drawn uniformly, or always on the first possible one."
    )


class AllocationSettings(HistorySettings):
    """What accounts that hold several assets have in common."""

    episode_bars: PositiveInt | None = Field(
        252, description="Steps after which an episode is cut off; null goes on to the end of the data."
    )
    initial_capital: PositiveFloat = Field(1_000_000.0, description="Quote units at the start of an episode.")
    cost_rate: _Rate = Field(0.001, description="Cost of a trade as a fraction of the value traded.")
    reward: Literal["log", "simple"] = Field(
        "log", description="Log return of the net value, or its change over the initial capital."
    )
    max_drawdown: _Share | None = Field(
        None, description="Loss since the highest net value, as a fraction, that ends an episode; null sets no limit."
    )


class StockTradingSettings(AllocationSettings):
    """Target weights in several assets, long or short."""

    shorting: bool = Field(True, description="Whether weights may be negative; otherwise those count as zero.")
    max_gross: PositiveFloat = Field(
        1.0, description="Largest sum of absolute weights; targets beyond it are scaled down in proportion."
    )
    margin_floor: NonNegativeFloat = Field(
        0.05, description="Net value over gross exposure at or below which the account ends, as it does at zero."
    )
    turbulence_threshold: PositiveFloat | None = Field(
        8.0, description="Turbulence per asset above which everything is sold; null never stops trading."
    )
    turbulence_bars: Annotated[int, Field(ge=3)] = Field(
        60, description="Returns before a bar that its turbulence is measured against."
    )

    @model_validator(mode="after")
    def _costs_leave_capital(self) -> Self:
        # Below this the exposure could be larger than what is left pays to close.
        if self.margin_floor < self.cost_rate:
            raise ValueError(
                f"margin_floor must be at least cost_rate={self.cost_rate}, got margin_floor={self.margin_floor}"
            )
        if self.cost_rate * self.max_gross >= 1:
            raise ValueError(f"cost_rate times max_gross must be below 1, got {self.cost_rate * self.max_gross}")
        return self


class PortfolioAllocationSettings(AllocationSettings):
    """Weights that sum to one and drift with prices between trades."""

    cash: bool = Field(True, description="Whether one of the weights is cash.")
    weights: Literal["softmax", "renormalised"] = Field(
        "softmax", description="How an action becomes weights: softmax, or shares of its distance from -1."
    )
    softmax_sharpness: PositiveFloat = Field(5.0, description="What the softmax multiplies an action by.")


class MarketMakingSettings(HistorySettings):
    """A bid and an ask around the mid, filled at random."""

    episode_bars: PositiveInt | None = Field(
        500, description="Steps after which an episode is cut off; null goes on to the end of the data."
    )
    quote_size: PositiveFloat = Field(1.0, description="Base units of a quote, called a lot.")
    inventory_limit: PositiveInt = Field(10, description="Lots, long or short, beyond which the episode ends.")
    max_distance_bps: Annotated[float, Field(gt=0, lt=10_000)] = Field(
        20.0, description="Distance from the mid at which a quote is withdrawn."
    )
    arrivals_per_bar: PositiveFloat = Field(
        0.9, description="Orders a bar that reach a quote at the mid, on each side."
    )
    fill_decay_per_bps: PositiveFloat = Field(
        0.3, description="Rate at which arrivals fall with a quote's distance: exp(-decay distance)."
    )
    adverse_selection: Fraction = Field(
        0.3, description="How much more often the quote that the next move runs over is filled than the other."
    )
    maker_fee_bps: Annotated[float, Field(gt=-10_000, lt=10_000)] = Field(
        0.0, description="Fee of a fill in basis points of its value; negative for a rebate."
    )
    inventory_penalty_bps: NonNegativeFloat = Field(
        0.0, description="Running penalty a bar for one lot held, growing with the square of the lots."
    )
    risk_aversion: PositiveFloat = Field(0.01, description="Gamma of Avellaneda and Stoikov, per lot and basis point.")
    risk_horizon_bars: PositiveInt = Field(
        20, description="Bars over which the Avellaneda-Stoikov baseline minds its inventory."
    )


class OptimalExecutionSettings(HistorySettings):
    """One order worked off within a horizon; impacts are in basis points of the arrival price."""

    side: Literal["sell", "buy"] = Field("sell", description="What is to be done.")
    quantity: PositiveFloat = Field(1.0, description="Base units of the order.")
    horizon_bars: PositiveInt = Field(60, description="Bars in which the order may be worked off.")
    half_spread_bps: _Bps = Field(0.5, description="Paid on every unit traded.")
    temporary_impact_bps: Annotated[float, Field(gt=0, lt=10_000)] = Field(
        200.0, description="Paid on the order if all of it trades in one bar; in proportion to the share traded."
    )
    permanent_impact_bps: _Bps = Field(5.0, description="By how much the whole order moves the mid for good.")
    risk_aversion: NonNegativeFloat = Field(
        0.003, description="Lambda of Almgren and Chriss, per basis point: the price of a bar's variance."
    )

    @model_validator(mode="after")
    def _splitting_pays(self) -> Self:
        if 2 * self.temporary_impact_bps <= self.permanent_impact_bps:
            raise ValueError(
                f"temporary_impact_bps must exceed half of permanent_impact_bps={self.permanent_impact_bps}, "
                f"got temporary_impact_bps={self.temporary_impact_bps}"
            )
        return self

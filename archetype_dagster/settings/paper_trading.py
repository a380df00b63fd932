"""Paper trading: limits that stop it, what becomes of a feed's faults, and when a new bundle becomes champion."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import Field, field_validator

from archetype_dagster.settings.section import NonNegativeFloat, PositiveFloat, PositiveInt, Section


class LimitSettings(Section):
    """Limits at which trading stops; empty means no limit."""

    stale_bars: PositiveInt | None = Field(
        6, description="Bar lengths without a bar used: by the clock while following, by the bars' times always."
    )
    max_drawdown: Annotated[float, Field(gt=0, le=1)] | None = Field(
        0.2, description="Loss since the highest net value, as a fraction."
    )
    max_position: PositiveFloat | None = Field(
        None, description="Largest position in base units; a decision beyond it is not traded."
    )
    max_notional: PositiveFloat | None = Field(
        None, description="Largest position times the mark, in quote units; a decision beyond it is not traded."
    )
    close_on_stop: bool = Field(
        True,
        description="Close the position on the book of the bar that stopped trading, which neither stale data nor an "
        "unused bar has.",
    )


class FeedFaultSettings(Section):
    """What becomes of each fault of a feed's bars; every one is journaled and counted, an unused bar once for its end.

    `drop` leaves the bar unused, as if it never came, which is a gap; `stop` ends trading.
    """

    late_bar: Literal["drop", "stop"] = Field("drop", description="Bar that ends before the last one used.")
    repeated_bar: Literal["drop", "stop"] = Field(
        "drop", description="Bar that ends when the last one used does: the first counts, equal or not."
    )
    faulty_bar: Literal["drop", "stop"] = Field("drop", description="Bar that breaks a rule of validate_bars.")
    future_bar: Literal["drop", "stop"] = Field(
        "drop", description="Bar that ends more than one bar length ahead of the machine's clock."
    )
    missing_bar: Literal["gap", "stop"] = Field(
        "gap",
        description="Bars absent before a bar: it begins a new segment, in which the features warm up again and the "
        "position is closed.",
    )
    off_grid_bar: Literal["keep", "drop", "stop"] = Field(
        "keep", description="Bar that does not end on a multiple of the bar length: a segment of its own."
    )
    locked_book: Literal["widen", "drop", "stop"] = Field(
        "widen", description="Bar with bid1 = ask1; see apply_book_policies."
    )
    crossed_book: Literal["widen", "drop", "stop"] = Field("widen", description="Bar with bid1 > ask1.")
    one_sided_book: Literal["keep", "drop", "stop"] = Field(
        "keep",
        description="Bar with an empty side of the book, where trades cost what the cost model charges for it.",
    )
    zero_size: Literal["keep", "drop", "stop"] = Field(
        "keep", description="Bar with a price of which nothing is offered."
    )
    price_outlier: Literal["keep", "drop", "stop"] = Field(
        "keep", description="Bar with a price further from the close of the last one used than outlier_fraction."
    )
    outlier_fraction: PositiveFloat = Field(0.25, description="Distance that makes a price an outlier, as a fraction.")


class PaperTradingSettings(Section):
    """A paper trader beside its bundle, which holds costs, execution and position."""

    start: datetime | None = Field(
        None, description="First bar end that may be traded on (UTC); earlier bars only warm the features up."
    )
    initial_capital: PositiveFloat | None = Field(
        None, description="Starting net value in quote units; empty means m times the first mark price."
    )
    poll_seconds: Annotated[float, Field(gt=0, le=60, allow_inf_nan=False)] = Field(
        1.0, description="Wait between two looks for new bars while following."
    )
    limits: LimitSettings = Field(LimitSettings(), description="Limits.")
    faults: FeedFaultSettings = Field(FeedFaultSettings(), description="Faults of the feed.")

    @field_validator("start")
    @classmethod
    def _utc(cls, value: datetime | None) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class ChampionSettings(Section):
    """When a new bundle takes the champion's place."""

    metric: Literal["sharpe", "total_return"] = Field(
        "sharpe", description="What is compared on the validation window; total_return means the net value at its end."
    )
    margin: NonNegativeFloat = Field(0.0, description="By how much the candidate must be better.")

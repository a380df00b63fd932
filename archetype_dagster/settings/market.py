"""Pairs, sources of bars, faults of raw data, splits and downloads."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from archetype_dagster.settings.section import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, Section

VendorSource = Literal[
    "tardis-book-snapshot",
    "tardis-incremental-book",
    "tardis-trades",
    "binance-klines",
    "binance-agg-trades",
    "binance-trades",
    "binance-book-depth",
    "binance-depth",
    "binance-capture",
    "book-table",
    "candles",
    "reference-feather",
]
MarketSource = Literal["synthetic", "bars"] | VendorSource


class PairSettings(Section):
    """One traded pair."""

    base: str = Field(description="Base asset, e.g. ETH.")
    quote: str = Field("USDT", description="Quote asset, the unit of every amount of money.")
    max_position: PositiveFloat = Field(description="Position m in base units; positions are -m, 0 or m.")
    beta_1: NonNegativeFloat = Field(description="Regret weight of Eq. (8) used for this pair.")
    liquidity_scale: PositiveFloat = Field(
        description="Notional this pair absorbs relative to BTC; stretches the impact curve's size axis."
    )
    synthetic_price: PositiveFloat = Field(description="First price of the embedded synthetic market.")
    tick_size: PositiveFloat = Field(description="Smallest price step of the book, in quote units.")


class SyntheticMarketSettings(Section):
    """The embedded market: regimes, volatility clustering and a slightly informative book."""

    start: datetime = Field(datetime(2021, 6, 1, tzinfo=UTC), description="End of the first bar (UTC).")
    end: datetime = Field(datetime(2024, 9, 1, tzinfo=UTC), description="No bar ends at or after this time (UTC).")
    volatility_bps: PositiveFloat = Field(18.0, description="Typical one-bar volatility in basis points.")
    drift_bps: NonNegativeFloat = Field(
        2.5, description="One-bar drift inside a trending regime, in basis points; 0 removes the trends."
    )
    regime_bars: PositiveInt = Field(240, description="Mean length of a regime in bars.")
    reversion: Fraction = Field(
        0.05, description="Pull per bar towards the anchor price inside a mean-reverting regime."
    )
    signal_strength: Fraction = Field(
        0.35, description="Correlation of the book imbalance with the regime's drift; 0 removes the signal."
    )
    shuffle_returns: bool = Field(
        False, description="Permute the returns against the book, which leaves nothing to learn: a control."
    )


class ModelledBookSettings(Section):
    """The book given to sources that have none; computed from past bars only."""

    levels: Annotated[int, Field(ge=5)] = Field(25, description="Number of levels on each side.")
    calibration: str = Field("modelled_book.yaml", description="Calibration file in configs/.")
    window_bars: PositiveInt = Field(60, description="Past bars that set the typical volume and volatility.")


class IngestionSettings(Section):
    """What becomes of each fault of raw market data; every one is counted in the bars' report.

    `refuse` ends the ingestion with the first fault; `drop` of a bar leaves a gap.
    """

    malformed_book: Literal["skip", "refuse"] = Field(
        "skip",
        description="Snapshot with an impossible price or size, a hole or levels out of order: as if it never came.",
    )
    malformed_trade: Literal["skip", "refuse"] = Field(
        "skip", description="Trade with an impossible price or size: as if it never came."
    )
    malformed_candle: Literal["skip", "refuse"] = Field(
        "skip", description="Candle with impossible prices or volumes or closed early: missing, and with it its bar."
    )
    repeated_record: Literal["drop", "refuse"] = Field(
        "drop",
        description="Record that came before: of books of one time the last counts, of trades of one number the "
        "first; equal candles count once, and differing ones of one time not at all.",
    )
    incomplete_bar: Literal["drop", "refuse"] = Field(
        "drop", description="Bar of which a candle is missing, or at which the recording begins or ends."
    )
    quiet_bar: Literal["book_mid", "drop"] = Field(
        "book_mid", description="Bar with books and no trade: prices are the mids seen in it and its volume is zero."
    )
    books_only: Literal["refuse", "book_mid"] = Field(
        "refuse", description="Source without trades and candles: every bar is then a quiet one."
    )
    missing_book: Literal["drop", "refuse"] = Field("drop", description="Bar before whose end no book was ever seen.")
    stale_book: Literal["drop", "keep"] = Field("drop", description="Bar whose last book is too old at its end.")
    stale_seconds: PositiveFloat = Field(
        60.0,
        description="Age from which a book is too old; a recording of trades covers a bar if it begins and ends at "
        "most this far, and a tenth of the bar, inside it.",
    )
    locked_book: Literal["widen", "drop"] = Field("widen", description="Bar with bid1 = ask1; see apply_book_policies.")
    crossed_book: Literal["widen", "drop"] = Field("widen", description="Bar with bid1 > ask1.")
    one_sided_book: Literal["keep", "drop"] = Field(
        "keep", description="Bar with an empty side of the book, which cannot be traded."
    )
    zero_size: Literal["keep", "drop"] = Field("keep", description="Bar with a price of which nothing is offered.")
    one_sided_trades: Literal["unknown", "keep"] = Field(
        "unknown", description="Bar all of whose volume one side took: takers were not recorded, or really one-sided."
    )
    price_outlier: Literal["keep", "drop"] = Field(
        "keep", description="Bar with a price further from the close before it than outlier_fraction."
    )
    outlier_fraction: PositiveFloat = Field(0.25, description="Distance that makes a price an outlier, as a fraction.")


class MarketSettings(Section):
    """Where bars come from."""

    locations: ClassVar[dict[str, Any]] = {"path": True, "prices_path": True}

    source: MarketSource = Field(
        "synthetic", description="Embedded market, a Parquet file in the bars schema, or a vendor's format."
    )
    path: Path | None = Field(None, description="File, folder or glob of the source; unused by the embedded market.")
    prices_source: VendorSource | None = Field(
        None, description="Format of the trades or candles that go with a source of books only."
    )
    prices_path: Path | None = Field(None, description="File, folder or glob of the prices' source.")
    seed: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Seed of the embedded market and of the modelled book; empty takes the run's."
    )
    by_month: bool = Field(
        False, description="Build a vendor's bars month by month, as the asset raw_bars; they are the same bars."
    )
    bar_minutes: PositiveInt = Field(10, description="Length of a bar in minutes.")
    book_levels: Annotated[int, Field(ge=5)] = Field(
        25, description="Levels of the embedded market's book, and the most that are kept of a source's."
    )
    ingestion: IngestionSettings = Field(IngestionSettings(), description="Faults of vendors' data.")
    synthetic: SyntheticMarketSettings = Field(SyntheticMarketSettings(), description="The embedded market.")
    modelled_book: ModelledBookSettings = Field(ModelledBookSettings(), description="The modelled book.")

    @model_validator(mode="after")
    def _path_where_needed(self) -> Self:
        if self.source != "synthetic" and self.path is None:
            raise ValueError(f"market.source {self.source!r} needs market.path")
        if (self.prices_source is None) != (self.prices_path is None):
            raise ValueError("market.prices_source and market.prices_path go together")
        if self.prices_source is not None and self.source in {"synthetic", "bars"}:
            raise ValueError(f"market.source {self.source!r} takes no market.prices_source")
        if self.by_month and self.source in {"synthetic", "bars"}:
            raise ValueError(f"market.by_month needs a vendor's source, got market.source {self.source!r}")
        return self

    @property
    def bars_per_year(self) -> float:
        """Bars in a year of 365 days: 52,560 at 10 minutes."""
        return 365 * 24 * 60 / self.bar_minutes


class SplitSettings(Section):
    """Half-open date ranges of the three splits, by bar end, UTC."""

    train_start: datetime = Field(datetime(2021, 6, 1, tzinfo=UTC), description="First training bar end.")
    train_end: datetime = Field(datetime(2023, 6, 1, tzinfo=UTC), description="Training ends before this time.")
    validation_start: datetime = Field(datetime(2023, 6, 1, tzinfo=UTC), description="First validation bar end.")
    validation_end: datetime = Field(datetime(2024, 1, 1, tzinfo=UTC), description="Validation ends before this time.")
    test_start: datetime = Field(datetime(2024, 1, 1, tzinfo=UTC), description="First test bar end.")
    test_end: datetime = Field(datetime(2024, 9, 1, tzinfo=UTC), description="Test ends before this time.")

    @field_validator("*", mode="after")
    @classmethod
    def _utc(cls, value: datetime) -> datetime:
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        times = (
            self.train_start,
            self.train_end,
            self.validation_start,
            self.validation_end,
            self.test_start,
            self.test_end,
        )
        if list(times) != sorted(times) or any(a >= b for a, b in zip(times[::2], times[1::2], strict=True)):
            raise ValueError("splits must be ordered and disjoint: train, validation, test, each start before its end")
        return self


class FetchSettings(Section):
    """Downloads from public archives."""

    binance_url: str = Field("https://data.binance.vision", description="Root of the Binance archive or of a mirror.")
    tardis_url: str = Field("https://datasets.tardis.dev/v1", description="Root of the Tardis archive or of a mirror.")
    connections: Annotated[int, Field(gt=0, le=32)] = Field(4, description="Files fetched at a time.")
    attempts: PositiveInt = Field(6, description="Tries of one request before its file counts as failed.")
    backoff_seconds: PositiveFloat = Field(
        1.0, description="Wait before the second try; doubles with each further one."
    )
    max_wait_seconds: PositiveFloat = Field(
        120.0, description="Longest wait between two tries; a server that asks for more fails the file."
    )
    timeout_seconds: PositiveFloat = Field(30.0, description="Silence after which a connection counts as timed out.")
    checksum: Literal["required", "if_published"] = Field(
        "required", description="Refuse a file whose archive publishes no checksum, or take what unpacks without error."
    )

    @field_validator("binance_url", "tardis_url")
    @classmethod
    def _plain_url(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
            raise ValueError("must be an http or https URL without credentials")
        if parts.query or parts.fragment:
            raise ValueError("must be a URL without query and fragment")
        return value.rstrip("/")

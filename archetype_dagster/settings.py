"""Every setting of the pipeline as one frozen tree, loaded from YAML and hashed by content.

A profile is a YAML file in `configs/profiles/`; what it leaves out has the paper's value.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from archetype_dagster.errors import SettingsError

PAIRS = ("BTC", "ETH", "DOT", "BNB")

DepthPolicy = Literal["extrapolate", "last_level", "reject"]
TradeConstraint = Literal["single_change", "round_trip"]
Objective = Literal["expected", "ppo"]
OverrideRule = Literal["step", "hold"]
FeatureScale = Literal["relative", "raw"]
DecoderKind = Literal["lstm", "bilstm"]
Decoding = Literal["argmax", "single_change"]
HorizonBoundary = Literal["carry", "settle"]
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

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class _Section(BaseModel):
    """A frozen group of settings that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
    _locations: ClassVar[dict[str, Any]] = {}

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of the canonical JSON of this section: equal settings, equal hash.

        Where source files lie and how they are fetched does not count; what is in them is hashed
        with the artifacts.
        """
        values = self.model_dump(mode="json", exclude=self._locations)
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


class PairSettings(_Section):
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


class SyntheticMarketSettings(_Section):
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


class ModelledBookSettings(_Section):
    """The book given to sources that have none; computed from past bars only."""

    levels: Annotated[int, Field(ge=5)] = Field(25, description="Number of levels on each side.")
    calibration: str = Field("modelled_book.yaml", description="Calibration file in configs/.")
    window_bars: PositiveInt = Field(60, description="Past bars that set the typical volume and volatility.")


class IngestionSettings(_Section):
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


class MarketSettings(_Section):
    """Where bars come from."""

    _locations: ClassVar[dict[str, Any]] = {"path": True, "prices_path": True}

    source: MarketSource = Field(
        "synthetic", description="Embedded market, a Parquet file in the bars schema, or a vendor's format."
    )
    path: Path | None = Field(None, description="File, folder or glob of the source; unused by the embedded market.")
    prices_source: VendorSource | None = Field(
        None, description="Format of the trades or candles that go with a source of books only."
    )
    prices_path: Path | None = Field(None, description="File, folder or glob of the prices' source.")
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
        return self

    @property
    def bars_per_year(self) -> float:
        """Bars in a year of 365 days: 52,560 at 10 minutes."""
        return 365 * 24 * 60 / self.bar_minutes


class SplitSettings(_Section):
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


class ExecutionSettings(_Section):
    """How a decision becomes a trade and what it costs."""

    commission_rate: NonNegativeFloat = Field(0.0002, description="Commission as a fraction of traded notional.")
    depth_policy: DepthPolicy = Field("extrapolate", description="How size beyond the visible book is priced.")
    execution_delay_bars: Annotated[int, Field(ge=0)] = Field(
        0, description="Bars between a decision and the book it executes on."
    )
    horizon_boundary: HorizonBoundary = Field(
        "carry", description="Carry the position over a horizon's end, or settle it to flat."
    )
    initial_capital: PositiveFloat | None = Field(
        None, description="Starting net value in quote units; empty means m times the first mark price."
    )


class FeatureSettings(_Section):
    """The 45 features and their scaling."""

    scale: FeatureScale = Field("relative", description="Divide price levels by the mid, or keep them raw.")
    clip_sigma: PositiveFloat = Field(10.0, description="Scaled features are clipped to this many training deviations.")


class PlannerSettings(_Section):
    """Hindsight demonstrations (Algorithm 1)."""

    horizon_bars: Annotated[int, Field(ge=2)] = Field(72, description="Horizon h in bars.")
    num_trajectories: PositiveInt = Field(30_000, description="Training chunks sampled and planned.")
    gamma: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="Planner's discount per bar.")
    trade_constraint: TradeConstraint = Field(
        "single_change", description="At most one position change, or one round trip, per horizon."
    )


class CodebookSettings(_Section):
    """Phase I: the vector-quantised encoder-decoder."""

    num_codes: Annotated[int, Field(ge=2)] = Field(10, description="Archetypes K.")
    code_dim: PositiveInt = Field(16, description="Dimension of a code.")
    hidden_size: PositiveInt = Field(128, description="Units of encoder and decoder LSTM.")
    pooling: Literal["last", "attention"] = Field("last", description="How the encoder summarises a horizon.")
    decoder: DecoderKind = Field(
        "lstm", description="Causal lstm, or bilstm, which reads the future and is flagged hindsight."
    )
    decoding: Decoding = Field("argmax", description="Free argmax per step, or at most one change per horizon.")
    commitment: NonNegativeFloat = Field(0.25, description="Commitment weight beta_0 of Eq. (4).")
    pretrain_epochs: Annotated[int, Field(ge=0)] = Field(
        1, description="Epochs without quantisation before the codes start."
    )
    epochs: PositiveInt = Field(100, description="Epochs with quantisation.")
    batch_size: PositiveInt = Field(256, description="Trajectories per gradient step.")
    learning_rate: PositiveFloat = Field(3e-4, description="Adam step size.")
    initialisation: Literal["kmeans", "direction_aware"] = Field(
        "kmeans", description="k-means over encodings, or k-means inside long, short and flat groups."
    )
    dead_code_epochs: PositiveInt = Field(2, description="A code unused for this many epochs is re-seeded.")
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.05, description="Share of trajectories held out to watch the reconstruction."
    )

    @property
    def hindsight(self) -> bool:
        """True where the decoder reads the horizon's future."""
        return self.decoder == "bilstm"


class PpoSettings(_Section):
    """Clipped-surrogate settings used where `objective: ppo`."""

    clip_range: PositiveFloat = Field(0.2, description="Clipping range of the probability ratio.")
    value_weight: NonNegativeFloat = Field(0.5, description="Weight of the value loss.")
    entropy_weight: NonNegativeFloat = Field(0.01, description="Weight of the entropy bonus.")
    epochs: PositiveInt = Field(4, description="Passes over each rollout.")
    gae_lambda: Fraction = Field(0.95, description="Lambda of generalised advantage estimation.")


class SelectionSettings(_Section):
    """Phase II: choosing an archetype at a horizon's start."""

    objective: Objective = Field("expected", description="Exact expected return, or sampled PPO.")
    alpha: NonNegativeFloat = Field(1.0, description="Weight of the KL term of Eq. (5).")
    total_steps: PositiveInt = Field(3_000_000, description="Environment steps; a horizon counts h steps.")
    stride_bars: PositiveInt = Field(6, description="Bars between the training starts of the returns table.")
    batch_size: PositiveInt = Field(64, description="Horizons per gradient step.")
    learning_rate: PositiveFloat = Field(3e-4, description="Adam step size.")
    hidden_sizes: tuple[PositiveInt, ...] = Field((128, 64), description="Units of the MLP's layers.")
    evaluations: PositiveInt = Field(20, description="Validation passes spread over the training.")
    ppo: PpoSettings = Field(PpoSettings(), description="PPO settings.")


class RefinementSettings(_Section):
    """Phase III: overriding the archetype at most once per horizon."""

    objective: Objective = Field("expected", description="Exact optimal-stopping objective, or sampled PPO.")
    override: OverrideRule = Field("step", description="Override one bar, or hold until the base's next trade.")
    beta_1: NonNegativeFloat | None = Field(None, description="Regret weight of Eq. (8); empty takes the pair's value.")
    beta_2: NonNegativeFloat = Field(1.0, description="Weight of the cross-entropy of Eq. (9).")
    gamma: Annotated[float, Field(gt=0, le=1)] = Field(0.99, description="Discount per bar inside a horizon.")
    top_adaptations: PositiveInt = Field(5, description="Hindsight adaptations kept per horizon (Eq. 7).")
    total_steps: PositiveInt = Field(1_000_000, description="Environment steps; a horizon counts h steps.")
    batch_size: PositiveInt = Field(128, description="Horizons per gradient step.")
    learning_rate: PositiveFloat = Field(3e-4, description="Adam step size.")
    hidden_size: PositiveInt = Field(128, description="Units of the market trunk.")
    evaluations: PositiveInt = Field(20, description="Validation passes spread over the training.")
    ppo: PpoSettings = Field(PpoSettings(), description="PPO settings.")


class EvaluationSettings(_Section):
    """The out-of-sample report."""

    random_archetype_draws: PositiveInt = Field(20, description="Seeded runs behind the random-archetype row.")
    leak_check_cuts: PositiveInt = Field(4, description="Random times after which the leak check perturbs the market.")
    archetype_examples: PositiveInt = Field(
        2, description="Example horizons drawn per archetype in the behaviour plot."
    )


class FetchSettings(_Section):
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


def _default_pairs() -> dict[str, PairSettings]:
    raw = yaml.safe_load(config_text("pairs.yaml"))
    return {name: PairSettings.model_validate(spec) for name, spec in raw.items()}


class Settings(_Section):
    """The whole tree."""

    _locations: ClassVar[dict[str, Any]] = {"market": MarketSettings._locations, "fetch": True}

    seed: Annotated[int, Field(ge=0)] = Field(0, description="Seed from which every random stream is derived.")
    pairs: dict[str, PairSettings] = Field(default_factory=_default_pairs, description="Traded pairs by base asset.")
    market: MarketSettings = Field(MarketSettings(), description="Source of bars.")
    splits: SplitSettings = Field(SplitSettings(), description="Date ranges of the splits.")
    execution: ExecutionSettings = Field(ExecutionSettings(), description="Costs and execution.")
    features: FeatureSettings = Field(FeatureSettings(), description="Features.")
    planner: PlannerSettings = Field(PlannerSettings(), description="Demonstrations.")
    codebook: CodebookSettings = Field(CodebookSettings(), description="Phase I.")
    selection: SelectionSettings = Field(SelectionSettings(), description="Phase II.")
    refinement: RefinementSettings = Field(RefinementSettings(), description="Phase III.")
    evaluation: EvaluationSettings = Field(EvaluationSettings(), description="Report.")
    fetch: FetchSettings = Field(FetchSettings(), description="Downloads.")

    @model_validator(mode="after")
    def _hindsight_decoding(self) -> Self:
        if self.codebook.decoder == "bilstm" and self.codebook.decoding == "argmax":
            raise ValueError("codebook.decoder 'bilstm' is decoded with codebook.decoding 'single_change'")
        return self

    def pair(self, name: str) -> PairSettings:
        """The settings of one pair; `SettingsError` lists the choices when it is unknown."""
        if name not in self.pairs:
            raise SettingsError(f"unknown pair {name!r}; choose from {', '.join(sorted(self.pairs))}")
        return self.pairs[name]

    def beta_1(self, pair: str) -> float:
        """Regret weight used for `pair`: the refinement section's, or else the pair's own."""
        return self.pair(pair).beta_1 if self.refinement.beta_1 is None else self.refinement.beta_1


def config_text(relative_path: str) -> str:
    """Text of a file shipped in `configs/`."""
    return resources.files("configs").joinpath(relative_path).read_text(encoding="utf-8")


def profile_names() -> tuple[str, ...]:
    """Names of the shipped profiles."""
    folder = resources.files("configs").joinpath("profiles")
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def load_settings(profile: str | Path = "smoke", overrides: Mapping[str, Any] | None = None) -> Settings:
    """Settings of a shipped profile or of a YAML file, with dotted overrides on top.

    Args:
        profile: a shipped name (`smoke`, `paper`, `extended`) or the path of a `.yaml` file.
        overrides: values by dotted key, e.g. `{"planner.horizon_bars": 36}`.

    Raises:
        SettingsError: unknown profile, unreadable YAML, unknown key or value out of range;
            the message names the file and the key.
    """
    origin = str(profile)
    if Path(origin).suffix in {".yaml", ".yml"}:
        path = Path(origin)
        if not path.is_file():
            raise SettingsError(f"settings file {origin} does not exist")
        text = path.read_text(encoding="utf-8")
    elif origin in profile_names():
        text = config_text(f"profiles/{origin}.yaml")
    else:
        raise SettingsError(
            f"unknown profile {origin!r}; choose from {', '.join(profile_names())} or name a .yaml file"
        )
    try:
        tree = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise SettingsError(f"settings file {origin} is not valid YAML: {error}") from error
    if not isinstance(tree, dict):
        raise SettingsError(f"settings file {origin} must hold a mapping, got {type(tree).__name__}")
    for key, value in (overrides or {}).items():
        _set_dotted(tree, key, value)
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "settings"
        raise SettingsError(f"profile {origin}: {place}: {first['msg']}, got {first['input']!r}") from error


def _set_dotted(tree: dict[str, Any], key: str, value: Any) -> None:
    *sections, leaf = key.split(".")
    node = tree
    for section in sections:
        child = node.setdefault(section, {})
        if not isinstance(child, dict):
            raise SettingsError(f"setting {key!r}: {section!r} is a value, not a section")
        node = child
    node[leaf] = value

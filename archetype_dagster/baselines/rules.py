"""Strategies without weights: what a market does by itself, by chance, or by one textbook indicator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Final, Self

import numpy as np
import polars as pl
import torch

from archetype_dagster.artifacts import read_json, write_json
from archetype_dagster.baselines.strategy import mean_reward, rolled_out
from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.envs import reward_table
from archetype_dagster.errors import ArtifactError, MarketDataError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.market.features import FEATURE_NAMES
from archetype_dagster.seeding import numpy_generator
from archetype_dagster.settings import BaselineSettings
from archetype_dagster.types import FLAT, LONG, SHORT, ActionArray, Progress, StateArray

RULE_FILE: Final = "rule.json"
_IMBALANCE_COLUMN: Final = FEATURE_NAMES.index("volume_imbalance")
# Averages of equal prices differ by rounding; a difference below this fraction of the mark is none.
_RESIDUE: Final = 1e-12


@dataclass(frozen=True)
class Rule(ABC):
    """Base of the rules: a frozen dataclass whose fields are its constants, kept as JSON."""

    name: ClassVar[str]

    @abstractmethod
    def actions(self, dataset: MarketDataset) -> ActionArray:
        """See `Strategy.actions`."""

    def save(self, directory: Path) -> None:
        """Write the constants into an existing folder."""
        write_json(directory / RULE_FILE, {"name": self.name, **asdict(self)})

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what `save` wrote; `ArtifactError` where it is missing, damaged or of another rule."""
        path = directory / RULE_FILE
        facts = read_json(path)
        if not isinstance(facts, dict) or facts.pop("name", None) != cls.name:
            raise ArtifactError(f"{path} does not hold the rule {cls.name!r}")
        try:
            return cls(**facts)
        except TypeError as error:
            raise ArtifactError(f"{path} holds other constants than {cls.name!r} has ({error})") from error


@dataclass(frozen=True)
class BuyAndHold(Rule):
    """Long on every row."""

    name: ClassVar[str] = "buy_and_hold"

    def actions(self, dataset: MarketDataset) -> ActionArray:
        """See `Strategy.actions`."""
        return np.full(len(dataset), LONG, dtype=np.int8)


@dataclass(frozen=True)
class AlwaysFlat(Rule):
    """No position on any row."""

    name: ClassVar[str] = "always_flat"

    def actions(self, dataset: MarketDataset) -> ActionArray:
        """See `Strategy.actions`."""
        return np.full(len(dataset), FLAT, dtype=np.int8)


@dataclass(frozen=True)
class RandomHolder(Rule):
    """One of the three actions drawn uniformly at each horizon's start and held until the next.

    Attributes:
        seed: seed of the draws.
    """

    name: ClassVar[str] = "random"
    seed: int

    def actions(self, dataset: MarketDataset) -> ActionArray:
        """See `Strategy.actions`."""
        starts, lengths = dataset.decision_starts()
        drawn = numpy_generator(self.seed, self.name).integers(3, size=len(starts), dtype=np.int8)
        return np.repeat(drawn, lengths)


@dataclass(frozen=True)
class Macd(Rule):
    """Long while the MACD is above its signal line, short while below, flat in the first bars of a segment.

    MACD = EMA_fast(p) - EMA_slow(p), signal = EMA_signal(MACD), each EMA with weight 2 / (span + 1) and started
    anew in each segment. The warm-up is the slow and the signal line's span together, less one bar.
    """

    name: ClassVar[str] = "macd"
    fast_bars: int
    slow_bars: int
    signal_bars: int

    def actions(self, dataset: MarketDataset) -> ActionArray:
        """See `Strategy.actions`."""
        frame = pl.DataFrame({"segment": dataset.segment, "mark": dataset.mark})
        mark = pl.col("mark")
        spread = frame.select(
            "segment",
            (_average(mark, self.fast_bars) - _average(mark, self.slow_bars)).alias("macd"),
            pl.int_range(pl.len()).over("segment").alias("age"),
        )
        spread = spread.with_columns((pl.col("macd") - _average(pl.col("macd"), self.signal_bars)).alias("above"))
        above = spread["above"].to_numpy()
        known = spread["age"].to_numpy() >= self.slow_bars + self.signal_bars - 2
        clear = np.abs(above) > _RESIDUE * dataset.mark
        return np.where(known & clear, np.where(above > 0, LONG, SHORT), FLAT).astype(np.int8)


@dataclass(frozen=True)
class ImbalanceVolume(Rule):
    """Long once the book's bid volume outweighs its ask volume enough, short once it is outweighed, else held.

    Attributes:
        lower: scaled `volume_imbalance` at or below which to go short.
        upper: the same at or above which to go long.
        quantile: training quantile that `upper` is, for people.
    """

    name: ClassVar[str] = "imbalance_volume"
    lower: float
    upper: float
    quantile: float

    def actions(self, dataset: MarketDataset) -> ActionArray:
        """See `Strategy.actions`."""
        imbalance = _imbalance(dataset)
        following = np.tile(np.arange(3, dtype=np.int8), (len(dataset), 1))
        following[imbalance <= self.lower] = SHORT
        following[imbalance >= self.upper] = LONG
        return rolled_out(following, dataset.segment)


RULES: Final[Mapping[str, type[Rule]]] = {
    rule.name: rule for rule in (BuyAndHold, AlwaysFlat, RandomHolder, Macd, ImbalanceVolume)
}


def fit_rule(
    name: str,
    train: MarketDataset,
    validation: MarketDataset,
    settings: BaselineSettings,
    *,
    seed: int,
    device: torch.device,
    resume: ResumePoint,
    progress: Progress,
) -> Rule:
    """The rule called `name` with its constants; see `fit_baseline`. It takes no time worth reporting or saving."""
    match name:
        case RandomHolder.name:
            return RandomHolder(seed)
        case Macd.name:
            return Macd(settings.macd.fast_bars, settings.macd.slow_bars, settings.macd.signal_bars)
        case ImbalanceVolume.name:
            return _best_imbalance(train, validation, settings.imbalance.quantiles)
    return RULES[name]()


def _best_imbalance(train: MarketDataset, validation: MarketDataset, quantiles: tuple[float, ...]) -> ImbalanceVolume:
    """The thresholds, measured on training, that earned most on validation; the lower quantile where equal."""
    seen, table = _imbalance(train), reward_table(validation)
    tried = [
        ImbalanceVolume(float(np.quantile(seen, 1 - quantile)), float(np.quantile(seen, quantile)), quantile)
        for quantile in sorted(quantiles)
    ]
    earned = [mean_reward(rule.actions(validation), validation, table) for rule in tried]
    return tried[int(np.argmax(earned))]


def _imbalance(dataset: MarketDataset) -> StateArray:
    if dataset.num_features != len(FEATURE_NAMES):
        raise MarketDataError(
            f"the imbalance rule reads the {len(FEATURE_NAMES)} features by name, "
            f"got a dataset of {dataset.num_features}",
            field=FEATURE_NAMES[_IMBALANCE_COLUMN],
        )
    return dataset.states[:, _IMBALANCE_COLUMN]


def _average(values: pl.Expr, span: int) -> pl.Expr:
    return values.ewm_mean(span=span, adjust=False).over("segment")

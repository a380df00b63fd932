"""The whole tree of settings, and how it is read from a profile with overrides on top."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import yaml
from pydantic import Field, field_validator, model_validator

from archetype_dagster.errors import SettingsError
from archetype_dagster.settings.baselines import BaselineSettings
from archetype_dagster.settings.engine import EngineSettings
from archetype_dagster.settings.evaluation import EvaluationSettings
from archetype_dagster.settings.files import config_text, named_mapping, shipped_names
from archetype_dagster.settings.market import FetchSettings, MarketSettings, PairSettings, SplitSettings
from archetype_dagster.settings.operations import OperationsSettings
from archetype_dagster.settings.paper_trading import ChampionSettings, PaperTradingSettings
from archetype_dagster.settings.phases import CodebookSettings, PlannerSettings, RefinementSettings, SelectionSettings
from archetype_dagster.settings.section import Section
from archetype_dagster.settings.statistics import StatisticsSettings
from archetype_dagster.settings.studies import StudySettings
from archetype_dagster.settings.sweeps import SweepSettings
from archetype_dagster.settings.trading import ExecutionSettings, FeatureSettings

PAIRS = ("BTC", "ETH", "DOT", "BNB")


def _default_pairs() -> dict[str, PairSettings]:
    raw = yaml.safe_load(config_text("pairs.yaml"))
    return {name: PairSettings.model_validate(spec) for name, spec in raw.items()}


def _default_sweep() -> SweepSettings:
    return SweepSettings.model_validate(yaml.safe_load(config_text("sweeps/refinement.yaml")))


class Settings(Section):
    """The whole tree."""

    locations: ClassVar[dict[str, Any]] = {"market": MarketSettings.locations, "fetch": True, "sweep": True}

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
    engine: EngineSettings = Field(EngineSettings(), description="Event-driven backtests.")
    evaluation: EvaluationSettings = Field(EvaluationSettings(), description="Report.")
    baselines: BaselineSettings = Field(BaselineSettings(), description="The strategies to compare with.")
    statistics: StatisticsSettings = Field(StatisticsSettings(), description="Certainty of the results.")
    studies: StudySettings = Field(StudySettings(), description="Retraining under other settings.")
    paper_trading: PaperTradingSettings = Field(PaperTradingSettings(), description="Paper trading.")
    champion: ChampionSettings = Field(ChampionSettings(), description="Promotion of exported bundles.")
    sweep: SweepSettings = Field(default_factory=_default_sweep, description="What a sweep tries around this run.")
    operations: OperationsSettings = Field(OperationsSettings(), description="Keeping a trained policy up to date.")
    fetch: FetchSettings = Field(FetchSettings(), description="Downloads.")

    @field_validator("sweep", mode="before")
    @classmethod
    def _over_the_default_sweep(cls, value: Any) -> Any:
        # A sweep of one's own has a name; anything else changes the default one.
        if isinstance(value, dict) and "name" not in value:
            return {**_default_sweep().model_dump(), **value}
        return value

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

    @property
    def market_seed(self) -> int:
        """Seed of what the market's source draws: the market section's, or else the run's."""
        return self.seed if self.market.seed is None else self.market.seed

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """The same tree with other values by dotted key, e.g. `{"planner.horizon_bars": 36}`, checked again.

        Raises:
            SettingsError: unknown key or value out of range.
        """
        return self.checked(self.model_dump(), changes, "settings")

    def beta_1(self, pair: str) -> float:
        """Regret weight used for `pair`: the refinement section's, or else the pair's own."""
        return self.pair(pair).beta_1 if self.refinement.beta_1 is None else self.refinement.beta_1


def profile_names() -> tuple[str, ...]:
    """Names of the shipped profiles."""
    return shipped_names("profiles")


def load_settings(profile: str | Path = "smoke", overrides: Mapping[str, Any] | None = None) -> Settings:
    """Settings of a shipped profile or of a YAML file, with dotted overrides on top.

    Args:
        profile: a shipped name (`smoke`, `paper`, `extended`) or the path of a `.yaml` file.
        overrides: values by dotted key, e.g. `{"planner.horizon_bars": 36}`.

    Raises:
        SettingsError: unknown profile, unreadable YAML, unknown key or value out of range;
            the message names the file and the key.
    """
    tree = named_mapping(str(profile), "profiles", kind="profile")
    return Settings.checked(tree, overrides or {}, f"profile {profile}")

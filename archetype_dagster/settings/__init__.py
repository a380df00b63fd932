"""Every setting of the pipeline as one frozen tree, loaded from YAML and hashed by content.

A profile is a YAML file in `configs/profiles/`; what it leaves out has the paper's value.
"""

from archetype_dagster.settings.acceptance import AcceptanceSettings
from archetype_dagster.settings.baselines import BaselineSettings
from archetype_dagster.settings.engine import (
    EngineDepthPolicy,
    EngineSettings,
    ErrorPolicy,
    MarginSettings,
    RiskSettings,
)
from archetype_dagster.settings.environments import EnvironmentSettings
from archetype_dagster.settings.evaluation import EvaluationSettings
from archetype_dagster.settings.files import config_text, named_mapping, shipped_names
from archetype_dagster.settings.hierarchical import EarnHftSettings, MacroHftSettings
from archetype_dagster.settings.market import (
    FetchSettings,
    IngestionSettings,
    MarketSettings,
    MarketSource,
    ModelledBookSettings,
    PairSettings,
    SplitSettings,
    SyntheticMarketSettings,
    VendorSource,
)
from archetype_dagster.settings.operations import OperationsSettings
from archetype_dagster.settings.phases import (
    CodebookSettings,
    DecoderKind,
    Decoding,
    Embedding,
    Objective,
    OverrideRule,
    PlannerSettings,
    PpoSettings,
    RefinementSettings,
    SelectionSettings,
    TradeConstraint,
)
from archetype_dagster.settings.policies import CleanRlSettings, PretrainingSettings
from archetype_dagster.settings.section import Section
from archetype_dagster.settings.statistics import StatisticsSettings
from archetype_dagster.settings.studies import MAX_WINDOWS, StudySettings
from archetype_dagster.settings.sweeps import SweepSettings, SweptAccount, SweptMetric, SweptRange
from archetype_dagster.settings.task_environments import (
    MarketMakingSettings,
    OptimalExecutionSettings,
    PortfolioAllocationSettings,
    PricePathSettings,
    StockTradingSettings,
)
from archetype_dagster.settings.trading import ExecutionSettings, FeatureSettings
from archetype_dagster.settings.tree import PAIRS, Settings, load_settings, profile_names
from archetype_dagster.types import DepthPolicy, FeatureScale, HorizonBoundary

__all__ = [
    "MAX_WINDOWS",
    "PAIRS",
    "AcceptanceSettings",
    "BaselineSettings",
    "CleanRlSettings",
    "CodebookSettings",
    "DecoderKind",
    "Decoding",
    "DepthPolicy",
    "EarnHftSettings",
    "Embedding",
    "EngineDepthPolicy",
    "EngineSettings",
    "EnvironmentSettings",
    "ErrorPolicy",
    "EvaluationSettings",
    "ExecutionSettings",
    "FeatureScale",
    "FeatureSettings",
    "FetchSettings",
    "HorizonBoundary",
    "IngestionSettings",
    "MacroHftSettings",
    "MarginSettings",
    "MarketMakingSettings",
    "MarketSettings",
    "MarketSource",
    "ModelledBookSettings",
    "Objective",
    "OperationsSettings",
    "OptimalExecutionSettings",
    "OverrideRule",
    "PairSettings",
    "PlannerSettings",
    "PortfolioAllocationSettings",
    "PpoSettings",
    "PretrainingSettings",
    "PricePathSettings",
    "RefinementSettings",
    "RiskSettings",
    "Section",
    "SelectionSettings",
    "Settings",
    "SplitSettings",
    "StatisticsSettings",
    "StockTradingSettings",
    "StudySettings",
    "SweepSettings",
    "SweptAccount",
    "SweptMetric",
    "SweptRange",
    "SyntheticMarketSettings",
    "TradeConstraint",
    "VendorSource",
    "config_text",
    "load_settings",
    "named_mapping",
    "profile_names",
    "shipped_names",
]

"""The policy of a study's run: trained under its settings, or found, with every unchanged stage shared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from archetype_dagster.artifacts import Artifact
from archetype_dagster.backtest.policy import TradingPolicy
from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.codebook import Codebook
from archetype_dagster.errors import SettingsError
from archetype_dagster.pipeline.cache import StageCache
from archetype_dagster.pipeline.inputs import policy_of, splits_of
from archetype_dagster.pipeline.stages import STAGES
from archetype_dagster.selection import ContinuousSelector, train_continuous_selector
from archetype_dagster.settings import Settings

Account = Literal["full", "no_refinement"]

# Embeddings leave no table of returns to read, so their Phase II is a stage of its own, outside the graph.
_CONTINUOUS_SELECTION: Final = replace(
    STAGES["selection_checkpoint"],
    kind="continuous_selection",
    parents=("feature_table", "vq_codebook"),
    settings=(*STAGES["selection_checkpoint"].settings, "planner.gamma", "planner.trade_constraint"),
)


@dataclass(frozen=True)
class StudyRun:
    """One thing that a study tries.

    Attributes:
        settings: what it is trained and judged under.
        account: the account that counts; `no_refinement` trains no Phase III.
    """

    settings: Settings
    account: Account = "full"


def trained_policy(run: StudyRun, pair: str, cache: StageCache) -> tuple[TradingPolicy, list[Artifact]]:
    """The frozen policy of a run, and the artifacts it is read from: bars, features and phases.

    A training that was stopped goes on where it was.

    Raises:
        SettingsError: unknown pair, or a refiner wanted for continuous embeddings, which have no code to refine.
        ArchetypeError: the computations' own errors.
    """
    if run.settings.codebook.embedding == "continuous":
        return _continuous_policy(run, pair, cache)
    kinds = ["market_bars", "feature_table", "vq_codebook", "selection_checkpoint"]
    if run.account == "full":
        kinds.append("refinement_checkpoint")
    artifacts = cache.artifacts(kinds, run.settings, pair)
    codebook, selector, *refiner = artifacts[2:]
    return policy_of(codebook, selector, refiner[0] if refiner else None, run.settings), artifacts


def _continuous_policy(run: StudyRun, pair: str, cache: StageCache) -> tuple[TradingPolicy, list[Artifact]]:
    settings = run.settings
    if run.account == "full":
        raise SettingsError("codebook.embedding 'continuous' has no refinement; judge its account 'no_refinement'")
    bars, table, codebook = cache.artifacts(("market_bars", "feature_table", "vq_codebook"), settings, pair)

    def train(resume: ResumePoint) -> ContinuousSelector:
        splits = splits_of(table, settings, sealed=cache.sealed)
        return train_continuous_selector(
            splits.train,
            splits.validation,
            Codebook.load(codebook.directory),
            settings.planner,
            settings.selection,
            seed=settings.seed,
            device=cache.device,
            resume=resume,
            progress=cache.progress,
        )

    selection = cache.kept(_CONTINUOUS_SELECTION, settings, pair, [table, codebook], train)
    selector = ContinuousSelector.load(selection.directory)
    policy = TradingPolicy(Codebook.load(codebook.directory), selector, None, settings)
    return policy, [bars, table, codebook, selection]

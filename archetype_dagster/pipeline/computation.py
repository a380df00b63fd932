"""How each stage that needs no orchestrator is computed from its parents' artifacts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

import polars as pl
import torch

from archetype_dagster.artifacts import Artifact
from archetype_dagster.baselines import BASELINES, Strategy, fit_baseline
from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.codebook import Codebook, train_codebook
from archetype_dagster.market.feature_table import FeatureTable, build_feature_table
from archetype_dagster.market.market_bars import MarketBars
from archetype_dagster.market.months import bars_of_months
from archetype_dagster.market.raw_bars import RawBars
from archetype_dagster.market.sources import bars_with_report
from archetype_dagster.market.splits import Splits
from archetype_dagster.pipeline.inputs import bars_of, splits_of
from archetype_dagster.pipeline.stages import baseline_stage
from archetype_dagster.planning import Trajectories, build_trajectories
from archetype_dagster.refinement import Refiner, train_refiner
from archetype_dagster.selection import ArchetypeReturns, Selector, build_archetype_returns, train_selector
from archetype_dagster.settings import Settings
from archetype_dagster.types import Progress


class Saveable(Protocol):
    """What a stage computes: something that writes plain files into an empty folder."""

    def save(self, directory: Path) -> None:
        """Write the files."""


@dataclass(frozen=True)
class StageRun:
    """What a stage's computation works with.

    Attributes:
        pair: traded pair; empty for a stage over all pairs.
        settings: the whole settings tree.
        device: where networks run.
        resume: where a training loop keeps its state.
        progress: where long work reports to.
        sealed: whether the test split may not be seen; see `split_dataset`.
    """

    pair: str
    settings: Settings
    device: torch.device
    resume: ResumePoint
    progress: Progress
    sealed: bool = False

    def splits(self, feature_table: Artifact) -> Splits:
        """Training, validation and, unless it is sealed, test datasets of a feature table."""
        return splits_of(feature_table, self.settings, sealed=self.sealed)


Parents = Mapping[str, Artifact]
"""Artifacts by the name that the manifest of what is made from them calls them; see `parent_name`."""
Computation = Callable[[StageRun, Parents], Saveable]


def newest_bars(run: StageRun, months: Sequence[Artifact]) -> pl.DataFrame:
    """All bars that the source has now, from the months made of it where `market.by_month` is on."""
    parents = {f"{month.manifest.kind}/{month.manifest.part}": month for month in months}
    return _market_bars(run, parents).bars


def _market_bars(run: StageRun, parents: Parents) -> MarketBars:
    if run.settings.market.by_month:
        months = [RawBars.load(parents[name].directory) for name in sorted(parents)]
        return MarketBars(*bars_of_months(months, run.settings, run.pair))
    return MarketBars(*bars_with_report(run.settings, run.pair))


def _feature_table(run: StageRun, parents: Parents) -> FeatureTable:
    return build_feature_table(bars_of(parents["market_bars"]), run.settings, run.pair)


def _dp_trajectories(run: StageRun, parents: Parents) -> Trajectories:
    return build_trajectories(
        run.splits(parents["feature_table"]).train,
        run.settings.planner,
        seed=run.settings.seed,
        progress=run.progress,
    )


def _vq_codebook(run: StageRun, parents: Parents) -> Codebook:
    return train_codebook(
        run.splits(parents["feature_table"]).train,
        Trajectories.load(parents["dp_trajectories"].directory),
        run.settings.codebook,
        seed=run.settings.seed,
        device=run.device,
        resume=run.resume,
        progress=run.progress,
    )


def _archetype_returns(run: StageRun, parents: Parents) -> ArchetypeReturns:
    splits = run.splits(parents["feature_table"])
    return build_archetype_returns(
        splits.train,
        splits.validation,
        Codebook.load(parents["vq_codebook"].directory),
        run.settings.planner,
        run.settings.selection,
        device=run.device,
        progress=run.progress,
    )


def _selection_checkpoint(run: StageRun, parents: Parents) -> Selector:
    splits = run.splits(parents["feature_table"])
    return train_selector(
        splits.train,
        splits.validation,
        ArchetypeReturns.load(parents["archetype_returns"].directory),
        run.settings.selection,
        horizon_bars=run.settings.planner.horizon_bars,
        seed=run.settings.seed,
        device=run.device,
        resume=run.resume,
        progress=run.progress,
    )


def _refinement_checkpoint(run: StageRun, parents: Parents) -> Refiner:
    splits = run.splits(parents["feature_table"])
    return train_refiner(
        splits.train,
        splits.validation,
        Codebook.load(parents["vq_codebook"].directory),
        Selector.load(parents["selection_checkpoint"].directory),
        run.settings.refinement,
        beta_1=run.settings.beta_1(run.pair),
        seed=run.settings.seed,
        device=run.device,
        resume=run.resume,
        progress=run.progress,
    )


def _baseline(name: str, run: StageRun, parents: Parents) -> Strategy:
    splits = run.splits(parents["feature_table"])
    return fit_baseline(
        name,
        splits.train,
        splits.validation,
        run.settings.baselines,
        seed=run.settings.seed,
        device=run.device,
        resume=run.resume,
        progress=run.progress,
    )


COMPUTATIONS: Final[Mapping[str, Computation]] = MappingProxyType(
    {
        "market_bars": _market_bars,
        "feature_table": _feature_table,
        "dp_trajectories": _dp_trajectories,
        "vq_codebook": _vq_codebook,
        "archetype_returns": _archetype_returns,
        "selection_checkpoint": _selection_checkpoint,
        "refinement_checkpoint": _refinement_checkpoint,
        **{baseline_stage(name): partial(_baseline, name) for name in BASELINES},
    }
)

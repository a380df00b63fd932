"""One trial of a sweep over the pipeline: trained in a sealed cache, judged by its account on the validation split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import optuna
import torch

from archetype_dagster.artifacts import Artifact, read_json, write_json
from archetype_dagster.backtest.performance import Performance, performance
from archetype_dagster.backtest.policy import TradingPolicy
from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.compute import DeviceName, compute_session
from archetype_dagster.pipeline.cache import StageCache
from archetype_dagster.pipeline.inputs import bars_of, splits_of
from archetype_dagster.pipeline.stages import Stage
from archetype_dagster.selection.training import VALIDATION_SCORE
from archetype_dagster.settings import Settings
from archetype_dagster.studies.results import AccountPath, SplitResult
from archetype_dagster.studies.runs import split_accounts
from archetype_dagster.studies.training import StudyRun, trained_policy
from archetype_dagster.sweeps.pipeline_space import trial_settings
from archetype_dagster.types import NoProgress, Progress

RESULT_KEY: Final = "result_key"
_TABLE_FILE: Final = "validation.parquet"
_FACTS_FILE: Final = "result.json"
# What judging reads; what the training read is in the parents' hashes.
_RESULT: Final = Stage(
    "sweep_trial",
    "sweeps",
    ("market_bars", "feature_table", "vq_codebook"),
    (
        "splits.validation_start",
        "splits.validation_end",
        "execution",
        "planner.horizon_bars",
        "refinement.override",
        "pair",
        "calibration.impact_curve",
    ),
)
_LAST_PHASE: Final = {"no_refinement": "selection", "full": "refinement"}


@dataclass(frozen=True)
class ValidationResult:
    """What a trial's settings earned on the validation split.

    Attributes:
        key: hash of everything the result depends on, the data included.
        split: the accounts, bar by bar.
        account: path of the one that is judged.
        performance: its six metrics.
    """

    key: str
    split: SplitResult
    account: AccountPath
    performance: Performance


@dataclass(frozen=True)
class _Accounts:
    split: SplitResult

    def save(self, directory: Path) -> None:
        write_json(directory / _FACTS_FILE, self.split.save(directory / _TABLE_FILE))

    @classmethod
    def load(cls, directory: Path) -> Self:
        return cls(SplitResult.load(directory / _TABLE_FILE, read_json(directory / _FACTS_FILE)))


def validated(
    settings: Settings, pair: str, cache: StageCache, trained: Callable[[TradingPolicy], None] | None = None
) -> ValidationResult:
    """Train some settings, or find what was trained, and account for them on every bar of the validation split.

    Prices, costs and rules are those of `evaluate`; every stage and the result are kept in the cache under their
    keys, so trials share what their settings do not change.

    Args:
        settings: sealed ones, see `sealed_settings`; `settings.sweep` names the account.
        pair: traded pair.
        cache: sealed, so that the test split is out of reach.
        trained: called with the frozen policy before it is judged.

    Raises:
        ValueError: a cache that is not sealed.
        ArchetypeError: the computations' own errors.
    """
    if not cache.sealed:
        raise ValueError("a trial needs a sealed cache, which keeps the test split out of its reach")
    policy, parents = trained_policy(StudyRun(settings, settings.sweep.account), pair, cache)
    if trained is not None:
        trained(policy)

    def account(resume: ResumePoint) -> _Accounts:
        dates = settings.splits
        split, _ = split_accounts(
            bars_of(parents[0]),
            splits_of(parents[1], settings, sealed=True).validation,
            policy,
            settings,
            (dates.validation_start, dates.validation_end),
        )
        return _Accounts(split)

    return _result(cache.kept(_RESULT, settings, pair, parents, account), settings)


def validated_before(key: str, settings: Settings, pair: str, cache: StageCache) -> ValidationResult:
    """The result that `validated` kept under a key; `ArtifactError` where it is gone or damaged."""
    return _result(cache.found(_RESULT, pair, key), settings)


def _result(kept: Artifact, settings: Settings) -> ValidationResult:
    split = _Accounts.load(kept.directory).split
    path = split.accounts[settings.sweep.account]
    metrics = performance(path.net_value, periods_per_year=settings.market.bars_per_year)
    return ValidationResult(kept.manifest.key, split, path, metrics)


@dataclass(frozen=True)
class PipelineObjective:
    """The objective of a sweep: `settings.sweep.metric` on the validation split.

    It holds plain values, so that a worker process can be given it.

    Attributes:
        settings: sealed ones, see `sealed_settings`.
        pair: traded pair.
        root: folder of the cache that all trials share.
        device: where networks run.
    """

    settings: Settings
    pair: str
    root: Path
    device: DeviceName

    def __call__(self, params: Mapping[str, Any], trial: optuna.Trial) -> float:
        """The value of one trial.

        Raises:
            optuna.TrialPruned: its last phase did worse than others at the same point of their training, or its
                account has no such ratio, as one that never trades.
            ArchetypeError: settings that do not go together, or the computations' own errors.
        """
        settings = trial_settings(self.settings, params)
        with compute_session(self.device, threads=None, deterministic=True, precision="float32") as device:
            progress = TrialProgress(trial, settings)
            found = validated(settings, self.pair, sealed_cache(self.root, device, progress), progress.catch_up)
        trial.set_user_attr(RESULT_KEY, found.key)
        value = getattr(found.performance, settings.sweep.metric)
        if value is None:
            raise optuna.TrialPruned(f"{settings.sweep.metric} is undefined for this account")
        return float(value)


def sealed_cache(root: Path, device: torch.device, progress: Progress | None = None) -> StageCache:
    """A cache in whose stages the test split does not exist."""
    return StageCache(root, device, progress or NoProgress(), sealed=True)


class TrialProgress:
    """A `Progress` that reports each validation of a trial's last phase, and stops the trial where that is no use.

    Reported is the mean return per bar, in percent of notional, after which of the phase's validations.
    """

    def __init__(self, trial: optuna.Trial, settings: Settings) -> None:
        self._trial = trial
        self._account = settings.sweep.account
        self._phase = _LAST_PHASE[self._account]
        self._evaluations: int = getattr(settings, self._phase).evaluations
        self._total: int = getattr(settings, self._phase).total_steps
        self._horizon_bars = settings.planner.horizon_bars
        self._task, self._from_the_start = "", False

    def start(self, description: str, total: int) -> None:
        """Note which phase trains."""
        self._task = description

    def advance(self, completed: int, metrics: Mapping[str, float] | None = None) -> None:
        """Report the phase's validation; `optuna.TrialPruned` where the pruner gives the trial up."""
        if self._task != self._phase or not metrics or VALIDATION_SCORE not in metrics:
            return
        # A training that goes on told its first validations another trial, and is not judged by the others alone.
        self._from_the_start = self._from_the_start or completed == 0
        if self._from_the_start:
            self._report(completed, metrics[VALIDATION_SCORE])

    def catch_up(self, policy: TradingPolicy) -> None:
        """Report all validations of a phase that was found or gone on with, as its training would have.

        Raises:
            optuna.TrialPruned: the pruner would have given the trial up.
        """
        phase = policy.selector if self._account == "no_refinement" else policy.refiner
        if self._from_the_start or phase is None:
            return
        for steps, score in phase.history.select("steps", VALIDATION_SCORE).iter_rows():
            self._report(min(steps, self._total), score)

    def finish(self) -> None:
        """Nothing is left open."""

    def _report(self, completed: int, score: float) -> None:
        # The number of the validation, because steps differ between trials with other batches.
        validation = round(self._evaluations * completed / self._total)
        self._trial.report(score / self._horizon_bars, validation)
        if self._trial.should_prune():
            raise optuna.TrialPruned(f"given up after {completed} of {self._total} steps of {self._phase}")

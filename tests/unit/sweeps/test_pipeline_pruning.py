"""A trial is given up for what its training said, whoever trained it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import optuna

from archetype_dagster.pipeline.cache import StageCache
from archetype_dagster.settings import Settings
from archetype_dagster.sweeps.pipeline_market import sealed_settings
from archetype_dagster.sweeps.pipeline_trial import PipelineObjective

SWEEP = {
    "name": "test",
    "space": {"selection.learning_rate": {"type": "log_uniform", "low": 1e-4, "high": 1e-2}},
    "account": "no_refinement",
}
PARAMS = {"selection.learning_rate": 1e-3}


class Kills(optuna.pruners.BasePruner):
    """Kills the trial at a report, or gives it up there."""

    def __init__(self, report: int, kind: type[BaseException] | None) -> None:
        self.report, self.kind = report, kind

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        if len(trial.intermediate_values) <= self.report:
            return False
        if self.kind is not None:
            raise self.kind
        return True


def reports(objective: PipelineObjective, pruner: optuna.pruners.BasePruner) -> tuple[dict[int, float], bool]:
    """What a trial reported, and whether it came to its end."""
    study = optuna.create_study(pruner=pruner)
    try:
        objective(PARAMS, study.ask())
    except (optuna.TrialPruned, KeyboardInterrupt):
        return study.trials[0].intermediate_values, False
    return study.trials[0].intermediate_values, True


def test_a_phase_that_was_found_or_gone_on_with_is_reported_and_given_up_like_a_trained_one(
    tiny: Callable[..., Settings], cache_at: Callable[[Path], StageCache], tmp_path: Path
) -> None:
    cache = cache_at(tmp_path)
    settings = tiny({"sweep": SWEEP, "selection.evaluations": 2})
    sealed = sealed_settings(cache.artifact("market_bars", settings, "ETH"), settings, cache)
    objective = PipelineObjective(sealed, "ETH", tmp_path, "cpu")
    trained, ended = reports(objective, Kills(1, KeyboardInterrupt))
    assert (list(trained), ended) == ([0, 1], False)
    resumes = tmp_path / ".resume"
    assert len(list(resumes.iterdir())) == 1
    gone_on_with = reports(objective, Kills(1, None))
    assert not list(resumes.iterdir())
    found = reports(objective, Kills(1, None))
    assert gone_on_with == found == (trained, False)
    whole, ended = reports(objective, optuna.pruners.NopPruner())
    assert (list(whole), ended) == ([0, 1, 2], True)
    assert trained.items() <= whole.items()

"""Hyper-parameter search: what its best settings gain on bars that it never saw, and how long it takes."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from typing import Final

from archetype_dagster.acceptance.convergence import test_sharpes
from archetype_dagster.acceptance.metric import AcceptanceMetric, Target
from archetype_dagster.acceptance.policies import AcceptanceRun
from archetype_dagster.artifacts import git_revision, json_hash, read_json, write_json
from archetype_dagster.pipeline.cache import StageCache
from archetype_dagster.settings import Settings
from archetype_dagster.sweeps.pipeline_results import BestSettings, PipelineSweep
from archetype_dagster.sweeps.pipeline_sweep import sweep_pipeline

_SECONDS_FILE: Final = "seconds.json"


@dataclass(frozen=True)
class TimedSweep:
    """A sweep that began with nothing, its wall time in seconds, the untuned settings included, and the code timed."""

    found: PipelineSweep
    seconds: float
    commit: str | None

    @property
    def best(self) -> BestSettings:
        """The best of its settings."""
        return BestSettings.of(self.found)


def timed_sweep(run: AcceptanceRun) -> TimedSweep:
    """The sweep of the acceptance settings, or the one that was finished before.

    One that was interrupted begins anew: what it had trained would make its time too short.

    Raises:
        ArchetypeError: the sweep's own errors.
    """
    settings = _sweep_settings(run)
    made_from = {"settings": settings.model_dump(mode="json"), "pair": run.settings.pair, "cores": _cores()}
    folder = run.root / f"sweep-{json_hash(made_from)[:16]}"
    if not (folder / _SECONDS_FILE).is_file():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        run.note(f"sweep of {settings.sweep.trials} trials on {settings.sweep.jobs} workers")
        began = time.monotonic()
        cache = StageCache(folder / "stages", run.device, run.progress)
        bars = cache.artifact("market_bars", settings, run.settings.pair)
        sweep_pipeline(bars, settings, run.settings.pair, cache).save(folder)
        write_json(folder / _SECONDS_FILE, {"seconds": time.monotonic() - began, "commit": git_revision()})
    timed = read_json(folder / _SECONDS_FILE)
    return TimedSweep(PipelineSweep.load(folder), timed["seconds"], timed.get("commit"))


def hpo_gain(run: AcceptanceRun, sweep: TimedSweep) -> AcceptanceMetric:
    """Mean Sharpe ratio on the test split with the sweep's best settings, over that of the baseline, less one.

    Both are trained with the same seeds, none of which is the sweep's. The gain of a seed is its difference of
    Sharpe ratios over the baseline's mean, so that the gains' mean is that of the means.

    Raises:
        ArchetypeError: the computations' own errors.
    """
    settings, best = run.settings, sweep.best
    before = test_sharpes(run.judged_seeds(run.baseline, "gain, baseline"))
    after = test_sharpes(run.judged_seeds(run.baseline.changed(best.overrides), "gain, best settings"))
    gains = _relative_gains(before, after)
    return AcceptanceMetric.over_seeds(
        "hpo_gain",
        Target(settings.least_gain, exceeded=True, poor=settings.poor_gain, unit="of the baseline's Sharpe ratio"),
        gains,
        confidence=run.baseline.statistics.confidence,
        facts={
            "baseline_by_seed": {str(seed): value for seed, value in before.items()},
            "best_by_seed": {str(seed): value for seed, value in after.items()},
            "best_settings": best.overrides,
            "validation": {"untuned": best.untuned, "best": best.value, "seed": settings.sweep_run_seed},
        },
    )


def hpo_wall_time(run: AcceptanceRun, sweep: TimedSweep) -> AcceptanceMetric:
    """Wall time of the sweep, from raw market to its last trial; one run, so there is no interval."""
    states = [facts["state"] for name, facts in sweep.found.runs.items() if facts["params"]]
    spec = run.settings.sweep
    return AcceptanceMetric(
        "hpo_wall_time",
        Target(run.settings.most_hours, exceeded=False, unit=f"hours for {spec.trials} trials on {spec.jobs} workers"),
        sweep.seconds / 3600,
        None,
        "none: one sweep was timed",
        (run.settings.sweep_run_seed,),
        {
            "seconds": sweep.seconds,
            # Not always that of the report: a sweep that was timed once is not timed again.
            "commit": sweep.commit,
            "trials": {state: states.count(state) for state in ("complete", "pruned")} | {"failed": sweep.found.failed},
            "workers": spec.jobs,
            "cores": _cores(),
            "steps_per_trial": run.steps_taken(_for_seed(run.baseline, run.settings.seeds[0])),
        },
    )


def _relative_gains(before: dict[int, float | None], after: dict[int, float | None]) -> dict[int, float | None]:
    """By seed; None for all where a ratio is undefined or the baseline's mean is not positive."""
    pairs = {seed: (value, after[seed]) for seed, value in before.items()}
    known = {seed: (b, a) for seed, (b, a) in pairs.items() if b is not None and a is not None}
    mean = sum(b for b, _ in known.values()) / len(pairs)
    if len(known) < len(pairs) or mean <= 0:
        return dict.fromkeys(pairs)
    return {seed: (a - b) / mean for seed, (b, a) in known.items()}


def _sweep_settings(run: AcceptanceRun) -> Settings:
    return _for_seed(run.baseline, run.settings.sweep_run_seed).changed({"sweep": run.settings.sweep.model_dump()})


def _for_seed(settings: Settings, seed: int) -> Settings:
    """The same settings with another seed, on the market of their own."""
    return settings.changed({"seed": seed, "market.seed": settings.market_seed})


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

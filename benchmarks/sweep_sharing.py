"""How the time of many trials falls where they share the stages that they do not change.

Run with `python benchmarks/sweep_sharing.py`. The same trials of a small pipeline are run twice, one after the other in
this process: over one cache, as a sweep does, and each with an empty cache of its own. Both must earn the same on
validation, or the run stops. Nothing is extrapolated: all trials of both ways are run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from _machine import machine_line

from archetype_dagster.artifacts import Artifact
from archetype_dagster.pipeline.cache import StageCache
from archetype_dagster.settings import Settings, load_settings, named_mapping, shipped_names
from archetype_dagster.sweeps.pipeline_market import sealed_settings
from archetype_dagster.sweeps.pipeline_results import PipelineSweep
from archetype_dagster.sweeps.pipeline_space import trial_settings
from archetype_dagster.sweeps.pipeline_sweep import sweep_pipeline
from archetype_dagster.sweeps.pipeline_trial import sealed_cache, validated
from archetype_dagster.types import NoProgress

PAIR = "ETH"
SMALL = {
    "market.synthetic.start": "2023-01-01T00:00:00Z",
    "market.synthetic.end": "2023-03-22T00:00:00Z",
    "market.book_levels": 5,
    "splits.train_start": "2023-01-01T00:00:00Z",
    "splits.train_end": "2023-02-20T00:00:00Z",
    "splits.validation_start": "2023-02-20T00:00:00Z",
    "splits.validation_end": "2023-03-07T00:00:00Z",
    "splits.test_start": "2023-03-07T00:00:00Z",
    "splits.test_end": "2023-03-22T00:00:00Z",
    "planner.num_trajectories": 400,
    "codebook.hidden_size": 32,
    "codebook.epochs": 2,
    "selection.total_steps": 40_000,
    "selection.evaluations": 2,
    "refinement.total_steps": 15_000,
    "refinement.hidden_size": 32,
    "refinement.evaluations": 2,
}


def settings_of(name: str, trials: int) -> Settings:
    spec = {**named_mapping(name, "sweeps", kind="sweep"), "trials": trials, "jobs": 1, "pruner": "none"}
    return load_settings("smoke", {**SMALL, "sweep": spec})


def shared(settings: Settings, bars: Artifact, root: Path) -> tuple[PipelineSweep, float, Counter[str]]:
    """The sweep over one cache: what it found, its seconds, and the stages that were computed."""
    begin = time.perf_counter()
    found = sweep_pipeline(bars, settings, PAIR, StageCache(root, torch.device("cpu"), NoProgress()))
    seconds = time.perf_counter() - begin
    return found, seconds, Counter(path.parent.parent.name for path in root.glob("[!.]*/*/manifest.json"))


def alone(settings: Settings, bars: Artifact, found: PipelineSweep) -> float:
    """Seconds of the same runs, each from an empty cache.

    Raises:
        RuntimeError: a run earns something else than it did over the shared cache.
    """
    seconds = 0.0
    for name, facts in found.runs.items():
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            cache = sealed_cache(Path(folder), torch.device("cpu"))
            sealed = sealed_settings(bars, settings, cache)
            result = validated(trial_settings(sealed, facts["params"]), PAIR, cache)
            seconds += time.perf_counter() - begin
        if result.key != facts["key"] or result.performance.as_dict() != facts["validation"]:
            raise RuntimeError(f"{name} earns {result.performance} alone, and {facts['validation']} in the sweep")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100, help="trials of each sweep, besides the untuned settings")
    parser.add_argument("--sweeps", nargs="+", choices=shipped_names("sweeps"), default=list(shipped_names("sweeps")))
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine_line("torch", "optuna"))
    print(f"{options.trials} trials and the untuned settings, one process, one thread; all of them run both ways\n")
    print("| Sweep | one cache s | a cache each s | times faster | codebooks | selectors | refiners |")
    print("|--|--:|--:|--:|--:|--:|--:|")
    # Whatever loads at its first use has been loaded before anything is timed.
    with tempfile.TemporaryDirectory() as folder:
        cache = StageCache(Path(folder) / "bars", torch.device("cpu"), NoProgress())
        bars = cache.artifact("market_bars", settings_of("refinement", 1), PAIR)
        shared(settings_of("selection", 1), bars, Path(folder) / "first")
        for name in options.sweeps:
            settings = settings_of(name, options.trials)
            found, together, made = shared(settings, bars, Path(folder) / name)
            apart = alone(settings, bars, found)
            counts = [made[kind] for kind in ("vq_codebook", "selection_checkpoint", "refinement_checkpoint")]
            row = [name, f"{together:.1f}", f"{apart:.1f}", f"{apart / together:.2f}", *map(str, counts)]
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()

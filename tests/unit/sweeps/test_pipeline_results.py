"""What a sweep found reads back as it was saved, names its best settings, and counts as trials."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

from archetype_dagster.errors import ArtifactError
from archetype_dagster.settings import Settings
from archetype_dagster.studies.trials import collect_trials
from archetype_dagster.sweeps.pipeline_results import UNTUNED, BestSettings, PipelineSweep

BARS = 20


def facts(value: float | None, **changes: Any) -> dict[str, Any]:
    state = "pruned" if value is None else "complete"
    metrics = {"sharpe": value}
    key = f"key {sorted(changes.items())}"
    found = {"key": key, "account": "full", "params": changes, "changes": changes, "state": state, "value": value}
    return {**found, "validation": metrics}


def sweep_of(*values: float | None, untuned: float | None = 1.0) -> PipelineSweep:
    runs = {UNTUNED: facts(untuned)}
    runs |= {f"trial {number}": facts(value, **{"selection.alpha": number}) for number, value in enumerate(values)}
    clock = pl.datetime_range(datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 20, tzinfo=UTC), "1d", eager=True)
    rng = np.random.default_rng(0)
    judged = {name: pl.Series(name, rng.normal(size=BARS)) for name, run in runs.items() if run["value"] is not None}
    returns = pl.DataFrame([clock.alias("timestamp"), *judged.values()])
    return PipelineSweep("ETH", Settings().sweep.model_dump(mode="json"), runs, 1, returns)


def test_a_sweep_reads_back_as_it_was_saved(tmp_path: Path) -> None:
    made = sweep_of(*range(12))
    made.save(tmp_path)
    found = PipelineSweep.load(tmp_path)
    assert (found.pair, found.sweep, found.runs, found.failed) == (made.pair, made.sweep, made.runs, made.failed)
    assert list(found.runs) == list(made.runs)
    assert found.validation.equals(made.validation)
    (tmp_path / "sweep.json").write_text('{"runs": []}')
    with pytest.raises(ArtifactError, match="lacks 'pair'"):
        PipelineSweep.load(tmp_path)


def test_the_best_run_is_the_earliest_of_the_highest() -> None:
    assert sweep_of(0.5, 2.0, None, 2.0).best == "trial 1"
    assert sweep_of(0.5, 1.0).best == UNTUNED
    assert sweep_of(-3.0, untuned=None).best == "trial 0"
    with pytest.raises(ArtifactError, match="no run of sweep refinement of ETH has a sharpe"):
        _ = sweep_of(None, untuned=None).best


def test_best_settings_are_the_changes_of_the_best_trial_and_none_where_nothing_did_better(tmp_path: Path) -> None:
    best = BestSettings.of(sweep_of(0.5, 2.0, None))
    assert (best.overrides, best.value, best.untuned, best.trials) == ({"selection.alpha": 1}, 2.0, 1.0, 4)
    best.save(tmp_path)
    assert BestSettings.load(tmp_path) == best
    config = yaml.safe_load((tmp_path / "run_config.yaml").read_text())
    assert config["resources"]["settings"]["config"]["overrides"] == best.overrides
    assert BestSettings.of(sweep_of(0.5)).overrides == {}
    (tmp_path / "best_settings.json").write_text('{"pair": "ETH"}')
    with pytest.raises(ArtifactError, match="does not hold what it should"):
        BestSettings.load(tmp_path)


def test_a_trial_that_was_given_up_counts_although_nobody_knows_what_it_would_have_earned() -> None:
    trials = collect_trials({"sweep": sweep_of(0.5, 2.0, None)})
    assert trials.sharpes == (1.0, 0.5, 2.0, None)
    assert trials.returns.shape == (BARS, 3)


def test_the_same_trials_in_a_longer_sweep_count_once() -> None:
    trials = collect_trials({"short": sweep_of(0.5), "long": sweep_of(0.5, 2.0)})
    assert trials.names == ("short: untuned", "short: trial 0", "long: trial 1")


def test_a_sweep_whose_trials_were_all_given_up_has_no_returns_to_compare() -> None:
    trials = collect_trials({"sweep": sweep_of(None, untuned=None)})
    assert (len(trials.names), trials.returns.shape) == (2, (BARS, 0))

"""What a selection, a job and a resource override of the code location mean; what there is, is in test_snapshot."""

from __future__ import annotations

from datetime import UTC, datetime

import dagster as dg
import pytest

from archetype_dagster.compute import has_accelerator
from archetype_dagster.definitions import build_defs, defs
from archetype_dagster.errors import SettingsError
from archetype_dagster.jobs import MONTHS, PIPELINE, WINDOWS, select_stages
from archetype_dagster.pipeline.stages import CORE_STAGES, JUDGING_GROUPS, STAGES, SWEEPS_GROUP
from archetype_dagster.settings.baseline_names import BASELINES

EVERY_PAIR = {"BTC", "ETH", "DOT", "BNB"}
CORE = {"raw_bars", *CORE_STAGES}
UP_TO_SELECTION = {
    "raw_bars",
    "market_bars",
    "feature_table",
    "dp_trajectories",
    "vq_codebook",
    "archetype_returns",
    "selection_checkpoint",
}
PARTED = {"raw_bars", "walk_forward_window"}


@pytest.fixture(scope="module")
def graph() -> dg.AssetGraph:
    return defs.resolve_asset_graph()


def test_raw_bars_have_a_partition_per_pair_and_month_up_to_the_present_one(graph):
    keys = graph.get(dg.AssetKey("raw_bars")).partitions_def.get_partition_keys()
    assert {key.split("|")[1] for key in keys} == EVERY_PAIR
    months = sorted({key.split("|")[0] for key in keys})
    assert months[0] == "2015-01-01"
    assert months[-1] == f"{datetime.now(UTC):%Y-%m}-01"
    assert len(keys) == len(months) * len(EVERY_PAIR)
    mapping = graph.get(dg.AssetKey("market_bars")).partition_mappings[dg.AssetKey("raw_bars")]
    assert mapping == dg.MultiToSingleDimensionPartitionMapping("pair")


def test_training_waits_its_turn_in_the_gpu_pool_where_there_is_a_gpu(graph):
    training = {kind for kind, stage in STAGES.items() if stage.gpu}
    learners = {f"baseline_{name}" for name, baseline in BASELINES.items() if baseline.is_learner}
    assert {"vq_codebook", "selection_checkpoint", "refinement_checkpoint", "walk_forward", *learners} < training
    assert training.isdisjoint(
        {"market_bars", "feature_table", "dp_trajectories", "evaluation_report", "baseline_macd"}
    )
    pooled = {kind for kind in STAGES if graph.get(dg.AssetKey(kind)).pools == {"gpu"}}
    assert pooled == (training if has_accelerator() else set())


def test_code_versions_are_those_of_the_stage_table(graph):
    versions = {kind: graph.get(dg.AssetKey(kind)).code_version for kind in STAGES}
    assert versions == {kind: stage.code_version for kind, stage in STAGES.items()}


def test_the_pipeline_job_runs_every_stage_that_is_not_made_in_parts(graph):
    job = defs.resolve_job_def(PIPELINE)
    assert set(STAGES) - PARTED <= {key.path[-1] for key in job.asset_layer.executable_asset_keys}
    assert set(job.asset_layer.asset_graph.asset_check_keys) == set(graph.asset_check_keys)


@pytest.mark.parametrize(("name", "stage"), [(MONTHS, "raw_bars"), (WINDOWS, "walk_forward_window")])
def test_months_and_windows_have_jobs_of_their_own(name: str, stage: str):
    job = defs.resolve_job_def(name)
    assert {key.path[-1] for key in job.asset_layer.executable_asset_keys} == {stage}


def test_selections_are_dagsters_and_unknown_ones_list_the_stages():
    def names(selection: str) -> list[str]:
        return [key.path[-1] for key in select_stages(defs, selection)]

    assert set(names("*")) == CORE
    assert set(names("refinement_checkpoint+")) == CORE - UP_TO_SELECTION
    assert set(names("+selection_checkpoint")) == UP_TO_SELECTION
    assert names("archetype_returns or selection_checkpoint") == ["archetype_returns", "selection_checkpoint"]
    assert names("group:discovery") == ["dp_trajectories", "vq_codebook"]
    assert names("vq_codebook") == ["vq_codebook"]
    judged = {kind for kind, stage in STAGES.items() if stage.group in JUDGING_GROUPS - {SWEEPS_GROUP}}
    assert CORE | judged - PARTED <= set(names("* or group:judging"))
    assert set(names("+best_settings")) == {"raw_bars", "market_bars", "sweep_study", "best_settings"}
    assert names("group:judging") == ["method_comparison", "paper_tables", "robustness", "trade_audit"]
    for mistake in ("codebok", "vq_codebook++ or (", "group:nothing", ""):
        with pytest.raises(
            SettingsError, match=r"cannot select .*; stages are archetype_returns, baseline_always_flat"
        ):
            names(mistake)


def test_an_unknown_resource_override_is_refused():
    with pytest.raises(ValueError, match="unknown resource stor; choose from settings, store"):
        build_defs({"stor": None})

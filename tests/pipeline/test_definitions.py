"""What the code location offers, pinned: a renamed asset or a lost check is a change of contract."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime

import dagster as dg
import pytest

from archetype_dagster.compute import has_accelerator
from archetype_dagster.definitions import build_defs, defs
from archetype_dagster.errors import SettingsError
from archetype_dagster.jobs import MONTHS, PIPELINE, WINDOWS, select_stages
from archetype_dagster.pipeline.stages import STAGES

EVERY_PAIR = {"BTC", "ETH", "DOT", "BNB"}
GRAPH = {
    "raw_bars": ("market", set()),
    "market_bars": ("market", {"raw_bars"}),
    "feature_table": ("market", {"market_bars"}),
    "dp_trajectories": ("discovery", {"feature_table"}),
    "vq_codebook": ("discovery", {"feature_table", "dp_trajectories"}),
    "archetype_returns": ("selection", {"feature_table", "vq_codebook"}),
    "selection_checkpoint": ("selection", {"feature_table", "archetype_returns"}),
    "refinement_checkpoint": ("refinement", {"feature_table", "vq_codebook", "selection_checkpoint"}),
    "onnx_policy": (
        "deployment",
        {"feature_table", "vq_codebook", "selection_checkpoint", "refinement_checkpoint"},
    ),
    "evaluation_report": (
        "evaluation",
        {"market_bars", "feature_table", "vq_codebook", "selection_checkpoint", "refinement_checkpoint"},
    ),
    "leaderboard": ("evaluation", {"evaluation_report", "method_comparison", "seed_study"}),
}
BASELINES = {
    f"baseline_{name}"
    for name in (
        "clstm_ppo",
        "ppo",
        "cdqnrp",
        "dqn",
        "macd",
        "imbalance_volume",
        "earnhft",
        "macrohft",
        "buy_and_hold",
        "random",
        "always_flat",
    )
}
STUDIES = {"embedding_study", "refinement_study", "horizon_study", "code_count_study"}
PHASES = {"vq_codebook", "selection_checkpoint", "refinement_checkpoint"}
JUDGING = {
    **{name: ("baselines", {"feature_table"}) for name in BASELINES},
    **{name: ("studies", {"market_bars", "refinement_checkpoint"}) for name in STUDIES},
    "seed_study": ("studies", {"market_bars", "refinement_checkpoint", "method_comparison"}),
    "walk_forward_window": ("studies", {"market_bars"}),
    "walk_forward": ("studies", {"market_bars", "walk_forward_window"}),
    "method_comparison": ("judging", {"market_bars", "feature_table", "evaluation_report", *BASELINES}),
    "trade_audit": ("judging", {"market_bars", "feature_table", "evaluation_report"}),
    "robustness": (
        "judging",
        {"market_bars", "feature_table", "method_comparison", "seed_study", *PHASES, *STUDIES},
    ),
    "paper_tables": (
        "judging",
        {"evaluation_report", "method_comparison", "robustness", "seed_study", "walk_forward", *STUDIES},
    ),
}
SWEEPS = {"sweep_study": ("sweeps", {"market_bars"}), "best_settings": ("sweeps", {"sweep_study"})}
RULES = ("macd", "imbalance_volume", "buy_and_hold", "random", "always_flat")
OVER_ALL_PAIRS = {"leaderboard", "paper_tables"}
UP_TO_SELECTION = {
    "raw_bars",
    "market_bars",
    "feature_table",
    "dp_trajectories",
    "vq_codebook",
    "archetype_returns",
    "selection_checkpoint",
}
CHECKS = {
    ("market_bars", "bars_sane"),
    ("feature_table", "features_finite"),
    ("dp_trajectories", "plans_replay"),
    ("vq_codebook", "codebook_alive"),
    ("refinement_checkpoint", "leak_check"),
    ("onnx_policy", "onnx_parity"),
    ("evaluation_report", "ledger_reconciles"),
    ("method_comparison", "baselines_causal"),
    ("trade_audit", "audit_passes"),
    ("trade_audit", "engines_agree"),
}


@pytest.fixture(scope="module")
def graph() -> dg.AssetGraph:
    return defs.resolve_asset_graph()


def test_the_definitions_load():
    dg.Definitions.validate_loadable(defs)


def test_assets_groups_and_lineage(graph):
    found = {
        key.path[-1]: (graph.get(key).group_name, {parent.path[-1] for parent in graph.get(key).parent_keys})
        for key in graph.get_all_asset_keys()
    }
    assert found == GRAPH | JUDGING | SWEEPS


def test_every_asset_but_those_over_all_pairs_has_a_partition_per_pair(graph):
    for key in graph.get_all_asset_keys():
        partitions = graph.get(key).partitions_def
        if key.path[-1] in OVER_ALL_PAIRS:
            assert partitions is None
        elif not isinstance(partitions, dg.MultiPartitionsDefinition):
            assert set(partitions.get_partition_keys()) == EVERY_PAIR


def test_raw_bars_have_a_partition_per_pair_and_month_up_to_the_present_one(graph):
    keys = graph.get(dg.AssetKey("raw_bars")).partitions_def.get_partition_keys()
    assert {key.split("|")[1] for key in keys} == EVERY_PAIR
    months = sorted({key.split("|")[0] for key in keys})
    assert months[0] == "2015-01-01"
    assert months[-1] == f"{datetime.now(UTC):%Y-%m}-01"
    assert len(keys) == len(months) * len(EVERY_PAIR)
    mapping = graph.get(dg.AssetKey("market_bars")).partition_mappings[dg.AssetKey("raw_bars")]
    assert mapping == dg.MultiToSingleDimensionPartitionMapping("pair")


def test_every_check_blocks_and_has_a_verdict_per_pair(graph):
    keys = graph.asset_check_keys
    assert {(key.asset_key.path[-1], key.name) for key in keys} == CHECKS
    for key in keys:
        spec = graph.get_check_spec(key)
        assert spec.blocking
        assert set(spec.partitions_def.get_partition_keys()) == EVERY_PAIR


def test_training_waits_its_turn_in_the_gpu_pool_where_there_is_a_gpu(graph):
    pooled = {key.path[-1] for key in graph.get_all_asset_keys() if graph.get(key).pools == {"gpu"}}
    learners = BASELINES - {f"baseline_{name}" for name in RULES}
    walks = {"walk_forward_window", "walk_forward"}
    training = PHASES | {"archetype_returns", "seed_study", "sweep_study"} | STUDIES | walks | learners
    assert {kind for kind, stage in STAGES.items() if stage.gpu} == training
    assert pooled == (training if has_accelerator() else set())


def test_code_versions_are_those_of_the_stage_table(graph):
    versions = {key.path[-1]: graph.get(key).code_version for key in graph.get_all_asset_keys()}
    assert versions == {kind: stage.code_version for kind, stage in STAGES.items()}


def test_the_pipeline_job_runs_everything():
    job = defs.resolve_job_def(PIPELINE)
    parted = {"raw_bars", "walk_forward_window"}
    assert {key.path[-1] for key in job.asset_layer.executable_asset_keys} == set(GRAPH | JUDGING | SWEEPS) - parted
    assert {(key.asset_key.path[-1], key.name) for key in job.asset_layer.asset_graph.asset_check_keys} == CHECKS


@pytest.mark.parametrize(("name", "stage"), [(MONTHS, "raw_bars"), (WINDOWS, "walk_forward_window")])
def test_months_and_windows_have_jobs_of_their_own(name: str, stage: str):
    job = defs.resolve_job_def(name)
    assert {key.path[-1] for key in job.asset_layer.executable_asset_keys} == {stage}


def test_selections_are_dagsters_and_unknown_ones_list_the_stages():
    def names(selection: str) -> list[str]:
        return [key.path[-1] for key in select_stages(defs, selection)]

    assert set(names("*")) == set(GRAPH)
    assert set(names("refinement_checkpoint+")) == set(GRAPH) - UP_TO_SELECTION
    assert set(names("+selection_checkpoint")) == UP_TO_SELECTION
    assert names("archetype_returns or selection_checkpoint") == ["archetype_returns", "selection_checkpoint"]
    assert names("group:discovery") == ["dp_trajectories", "vq_codebook"]
    assert names("vq_codebook") == ["vq_codebook"]
    assert set(names("* or group:judging")) == set(GRAPH | JUDGING) - {"walk_forward_window"}
    assert set(names("+best_settings")) == {"raw_bars", "market_bars", *SWEEPS}
    assert names("group:judging") == ["method_comparison", "paper_tables", "robustness", "trade_audit"]
    for mistake in ("codebok", "vq_codebook++ or (", "group:nothing", ""):
        with pytest.raises(
            SettingsError, match=r"cannot select .*; stages are archetype_returns, baseline_always_flat"
        ):
            names(mistake)


def test_an_unknown_resource_override_is_refused():
    with pytest.raises(ValueError, match="unknown resource stor; choose from settings, store"):
        build_defs({"stor": None})


def test_loading_does_not_import_mlflow():
    code = "import sys, archetype_dagster.definitions; assert 'mlflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_asset_depends_on_exactly_the_parents_its_stage_names():
    graph = defs.resolve_asset_graph()
    found = {kind: {key.to_user_string() for key in graph.get(dg.AssetKey(kind)).parent_keys} for kind in STAGES}
    assert found == {kind: set(stage.parents) for kind, stage in STAGES.items()}

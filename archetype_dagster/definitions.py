"""The code location: every asset, check, job and resource."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from archetype_dagster.bundle_sensors import new_bundle, new_checkpoint
from archetype_dagster.jobs import (
    champion_job,
    export_job,
    months_job,
    pipeline_job,
    policies_job,
    refresh_job,
    training_job,
    windows_job,
)
from archetype_dagster.schedules import SCHEDULES, SENSORS
from assets.baselines import BASELINE_ASSETS
from assets.champion import champion_comparison
from assets.checks import CHECKS
from assets.deployment import onnx_policy
from assets.discovery import dp_trajectories, vq_codebook
from assets.evaluation import evaluation_report, leaderboard
from assets.judging import method_comparison, robustness, trade_audit
from assets.market import feature_table, market_bars, raw_bars
from assets.monitoring import MONITORING_CHECKS, recent_evaluation
from assets.policies import POLICY_ASSETS
from assets.refinement import refinement_checkpoint
from assets.selection import archetype_returns, selection_checkpoint
from assets.studies import STUDY_ASSETS, seed_study, walk_forward, walk_forward_window
from assets.sweeps import best_settings, sweep_study
from assets.tables import paper_tables
from resources.alerts import AlertsResource
from resources.compute import ComputeResource
from resources.progress import ProgressResource
from resources.settings import SettingsResource
from resources.storage import ArtifactIOManager, ArtifactStore
from resources.tracking import TrackingResource

ASSETS = (
    raw_bars,
    market_bars,
    feature_table,
    dp_trajectories,
    vq_codebook,
    archetype_returns,
    selection_checkpoint,
    refinement_checkpoint,
    onnx_policy,
    evaluation_report,
    leaderboard,
    *BASELINE_ASSETS,
    method_comparison,
    trade_audit,
    *STUDY_ASSETS,
    seed_study,
    walk_forward_window,
    walk_forward,
    sweep_study,
    best_settings,
    robustness,
    paper_tables,
    recent_evaluation,
    champion_comparison,
    *POLICY_ASSETS,
)


def build_defs(resource_overrides: Mapping[str, Any] | None = None) -> dg.Definitions:
    """The definitions with some resources replaced: `settings`, `store`, `compute`, `tracking` or `progress`.

    Args:
        resource_overrides: resources by key, for tests and for the command line.

    Raises:
        ValueError: an unknown key.
    """
    resources: dict[str, Any] = {
        "settings": SettingsResource(),
        # The IO manager holds the same store, so its folder is configured at launch, once for both.
        "store": ArtifactStore.configure_at_launch(),
        "compute": ComputeResource(),
        "tracking": TrackingResource(),
        "progress": ProgressResource(),
        "alerts": AlertsResource(),
    }
    unknown = sorted(set(resource_overrides or {}) - set(resources))
    if unknown:
        raise ValueError(f"unknown resource {', '.join(unknown)}; choose from {', '.join(resources)}")
    resources |= resource_overrides or {}
    return dg.Definitions(
        assets=list(ASSETS),
        asset_checks=[*CHECKS, *MONITORING_CHECKS],
        jobs=[
            pipeline_job(),
            training_job(),
            refresh_job(),
            months_job(),
            windows_job(),
            export_job(),
            champion_job(),
            policies_job(),
        ],
        schedules=list(SCHEDULES),
        sensors=[*SENSORS, new_checkpoint, new_bundle],
        executor=dg.in_process_executor,
        resources={**resources, "io_manager": ArtifactIOManager(store=resources["store"])},
    )


defs = build_defs()

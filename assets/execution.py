"""How every stage runs: reuse what is on disk if nothing it depends on changed, else compute and publish."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import dagster as dg

from archetype_dagster.artifacts import Artifact, Manifest, open_artifact, publish_artifact
from archetype_dagster.errors import ArtifactError
from archetype_dagster.pipeline.stages import STAGES, Stage
from archetype_dagster.settings import MAX_WINDOWS, PAIRS, Settings
from archetype_dagster.types import Progress
from assets.lineage import verify_current
from assets.metadata import Metadata, numeric_values, tracking_facts
from resources.compute import ComputeResource
from resources.failure import clear_failure
from resources.instance import GPU_POOL
from resources.progress import ProgressResource
from resources.settings import SettingsResource
from resources.storage import ArtifactStore
from resources.tracking import Tracker, TrackingResource

if TYPE_CHECKING:
    # What computes is imported when something is: a graph is drawn, and a run accepted, without torch.
    from archetype_dagster.pipeline.computation import Saveable, StageRun

PAIR_PARTITIONS: Final = dg.StaticPartitionsDefinition(list(PAIRS))
# Candles in USDT go back to 2015 at some venues; the month that has begun is open.
_MONTHS: Final = dg.MonthlyPartitionsDefinition(start_date="2015-01-01", end_offset=1)
_WINDOWS: Final = dg.StaticPartitionsDefinition([str(window) for window in range(1, MAX_WINDOWS + 1)])
PART_PARTITIONS: Final = {
    "month": dg.MultiPartitionsDefinition({"month": _MONTHS, "pair": PAIR_PARTITIONS}),
    "window": dg.MultiPartitionsDefinition({"pair": PAIR_PARTITIONS, "window": _WINDOWS}),
}
RESOURCE_KEYS: Final = {"settings", "store", "compute", "tracking", "progress"}
# NVIDIA's, AMD's, and that of a Linux inside Windows.
_ACCELERATOR_NODES: Final = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
OWNERS: Final = ("team:research",)
_KINDS: Final = {
    "market": {"polars", "parquet"},
    "discovery": {"pytorch"},
    "selection": {"pytorch"},
    "refinement": {"pytorch"},
    "deployment": {"onnx"},
    "evaluation": {"python", "html"},
    "monitoring": {"python", "html"},
}


class StageResources(Protocol):
    """The resources every stage is given."""

    settings: SettingsResource
    store: ArtifactStore
    compute: ComputeResource
    tracking: TrackingResource
    progress: ProgressResource


@dataclass(frozen=True)
class Roots:
    """What a stage is made from besides the artifacts that the graph hands it.

    Attributes:
        files: hashes of the files that it reads, or of the programs that it asks, by name.
        parts: artifacts of the months or windows that were made before.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    parts: Sequence[Artifact] = ()


@dataclass(frozen=True)
class TrackedProgress:
    """A `Progress` that also records the metrics as curves."""

    inner: Progress
    tracker: Tracker

    def start(self, description: str, total: int) -> None:
        """Open a task."""
        self.inner.start(description, total)

    def advance(self, completed: int, metrics: Mapping[str, float] | None = None) -> None:
        """Report, and add a point to each curve."""
        self.inner.advance(completed, metrics)
        if metrics:
            self.tracker.log_curve_point(completed, metrics)

    def finish(self) -> None:
        """Close the task."""
        self.inner.finish()


def stage_asset(**options: Any) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Decorator: the asset of the stage called like the function, with what the stage table says about it.

    Args:
        options: further arguments of `dagster.asset`.
    """

    def decorate(function: Callable[..., Any]) -> dg.AssetsDefinition:
        stage = STAGES[function.__name__]
        decorated: dg.AssetsDefinition = dg.asset(
            group_name=stage.group,
            partitions_def=_partitions(stage),
            code_version=stage.code_version,
            # Without one there is nothing to wait for.
            pool=GPU_POOL if stage.gpu and _has_accelerator() else None,
            required_resource_keys=RESOURCE_KEYS,
            owners=list(OWNERS),
            kinds=_KINDS.get(stage.group, {"pytorch"} if stage.gpu else {"python"}),
            **options,
        )(function)
        return decorated

    return decorate


def when_a_parent_changed() -> Any:
    """Made again when a parent was, once nothing that it is made from is being made."""
    return (
        dg.AutomationCondition.any_deps_updated().since_last_handled()
        & ~dg.AutomationCondition.any_deps_in_progress()
        & ~dg.AutomationCondition.in_progress()
    ).with_label("a parent changed")


def run_stage(
    context: dg.AssetExecutionContext,
    parents: Sequence[Artifact],
    *,
    describe: Callable[[Artifact], Metadata],
    compute: "Callable[[StageRun], Saveable] | None" = None,
    roots: Callable[[Settings, str, ArtifactStore], Roots] | None = None,
    accepted: Sequence[Artifact] = (),
) -> dg.MaterializeResult[Artifact]:
    """Materialise a stage for the context's partition.

    Args:
        context: of the running asset.
        parents: artifacts it is made from.
        describe: metadata for a person, read from the artifact.
        compute: the work, where it is not the stage's own among `COMPUTATIONS`; called only when the
            artifact on disk was not made from exactly this.
        roots: for a stage that is made from more than `parents`, tells what else by settings, pair and store.
        accepted: parents that are taken as they are: nobody asks whether what they were made from is current.

    Raises:
        dagster.Failure: an `ArchetypeError`, with its message, or a disk that cannot be written.
        dagster.RetryRequested: a fault that may pass, such as a connection that was reset.
    """
    from archetype_dagster.pipeline.computation import COMPUTATIONS
    from archetype_dagster.pipeline.manifests import parent_name, stage_manifest

    resources = cast(StageResources, context.resources)
    stage = STAGES[context.asset_key.path[-1]]
    pair, part = partition_of(context)
    with clear_failure(context):
        settings = resources.settings.load()
        root = roots(settings, pair, resources.store) if roots and pair else Roots()
        by_name = {parent_name(parent, stage): parent for parent in (*parents, *root.parts)}
        work = compute or (lambda run: COMPUTATIONS[stage.kind](run, by_name))
        if stage.per_pair:
            _verify(list(by_name.values()), settings, resources.store, accepted)
        wanted = stage_manifest(stage, pair, settings, list(by_name.values()), root.files, part)
        directory = resources.store.directory(stage.kind, pair, part)
        title = _title(wanted)
        with resources.store.lock(stage.kind, pair, part):
            artifact = _reusable(context, directory, wanted) or resources.store.fetch(wanted)
            reused = artifact is not None
            began = time.monotonic()
            tracked: Metadata = {}
            if artifact is None:
                artifact, description, tracked = _compute(context, resources, stage, wanted, settings, work, describe)
            else:
                description = describe(artifact)
            seconds = time.monotonic() - began
            resources.store.share(artifact)
    ending = "reused, nothing changed" if reused else f"computed in {seconds:.1f} s"
    resources.progress.note(context.log, f"{title}: {ending}")
    return dg.MaterializeResult(
        value=artifact,
        data_version=dg.DataVersion(artifact.content_hash),
        metadata={
            "reused": reused,
            "seconds": round(seconds, 3),
            "path": dg.MetadataValue.path(artifact.directory),
            "content_hash": artifact.content_hash,
            "stage_key": artifact.manifest.key,
            "settings_hash": artifact.manifest.settings_hash,
            **tracked,
            **description,
        },
    )


def current_pairs(context: dg.AssetExecutionContext, kind: str, made: Mapping[str, Artifact]) -> dict[str, Artifact]:
    """Those of a stage's artifacts, by pair, that the current settings would give; the log names the others."""
    resources = cast(StageResources, context.resources)
    settings = resources.settings.load()
    current = {}
    for pair, artifact in sorted(made.items()):
        try:
            verify_current(kind, pair, store=resources.store, settings=settings)
        except ArtifactError as error:
            context.log.warning(f"left out: {error}")
        else:
            current[pair] = artifact
    return current


def partition_of(context: dg.AssetExecutionContext) -> tuple[str | None, str | None]:
    """Pair, and month (`YYYY-MM`) or window, that a stage runs for; None for what it is not partitioned by."""
    stage = STAGES[context.asset_key.path[-1]]
    if stage.parts is not None:
        keys = cast(dg.MultiPartitionKey, context.partition_key).keys_by_dimension
        return keys["pair"], keys[stage.parts].removesuffix("-01") if stage.parts == "month" else keys[stage.parts]
    return (context.partition_key if stage.per_pair else None), None


def run_identity(context: dg.AssetExecutionContext) -> str:
    """What makes two attempts at a stage's partition the same materialisation, for the tracking store."""
    pair, part = partition_of(context)
    return "/".join([_root_run(context), context.asset_key.path[-1], pair or "all", *([] if part is None else [part])])


def _root_run(context: dg.AssetExecutionContext) -> str:
    return context.run.root_run_id or context.run.run_id


def _partitions(stage: Stage) -> dg.PartitionsDefinition[str] | None:
    if stage.parts is not None:
        return PART_PARTITIONS[stage.parts]
    return PAIR_PARTITIONS if stage.per_pair else None


def gpu_pool() -> str | None:
    """The pool in which what trains waits its turn; None on a machine without a GPU, where nothing has to wait."""
    return GPU_POOL if _has_accelerator() else None


def _has_accelerator() -> bool:
    """True where runs share a GPU; torch is asked only on a machine that may have one."""
    if sys.platform != "darwin" and not any(Path(node).exists() for node in _ACCELERATOR_NODES):
        return False
    from archetype_dagster.compute import has_accelerator

    return has_accelerator()


def _verify(
    parents: Sequence[Artifact], settings: Settings, store: ArtifactStore, accepted: Sequence[Artifact]
) -> None:
    verified: dict[str, Manifest] = {parent.manifest.kind: parent.manifest for parent in accepted}
    for parent in (parent.manifest for parent in parents):
        verify_current(parent.kind, parent.pair, parent.part, store=store, settings=settings, verified=verified)


def _title(manifest: Manifest) -> str:
    return " ".join(part for part in (manifest.pair, manifest.kind, manifest.part) if part is not None)


def _reusable(context: dg.AssetExecutionContext, directory: Path, wanted: Manifest) -> Artifact | None:
    if not directory.exists():
        return None
    try:
        artifact = open_artifact(directory, kind=wanted.kind)
    except ArtifactError as error:
        context.log.warning(f"computing again: {error}")
        return None
    return artifact if artifact.manifest.key == wanted.key else None


def _compute(
    context: dg.AssetExecutionContext,
    resources: StageResources,
    stage: Stage,
    wanted: Manifest,
    settings: Settings,
    compute: "Callable[[StageRun], Saveable]",
    describe: Callable[[Artifact], Metadata],
) -> tuple[Artifact, Metadata, Metadata]:
    from archetype_dagster.pipeline.computation import StageRun

    directory = resources.store.directory(stage.kind, wanted.pair, wanted.part)
    resume = resources.store.resume_point(stage.kind, wanted.pair, wanted.key)
    title = _title(wanted)
    tags = {
        "asset": stage.kind,
        "pair": wanted.pair or "all",
        "dagster_run": _root_run(context),
        "stage_key": wanted.key,
    }
    with (
        resources.tracking.run(
            identity=run_identity(context),
            name=title,
            tags=tags if wanted.part is None else {**tags, "part": wanted.part},
            result_root=resources.store.path,
        ) as tracker,
        resources.compute.session() as device,
    ):
        tracker.log_params({**wanted.settings, "seed": wanted.seed})
        progress: Progress = TrackedProgress(resources.progress.open(context.log, title), tracker)
        if stage.gpu:
            progress = resources.tracking.with_curves(
                progress, resources.store.curves(stage.kind, wanted.pair, wanted.key)
            )
        made = compute(StageRun(wanted.pair or "", settings, device, resume, progress))
        with publish_artifact(directory, wanted) as folder:
            made.save(folder)
        resume.clear()
        artifact = open_artifact(directory, kind=stage.kind)
        description = describe(artifact)
        tracker.log_metrics(numeric_values(description))
        if stage.tracked:
            tracker.log_artifacts(directory)
    if tracker.missing:
        context.log.warning(f"{title}: {tracker.missing}")
    return artifact, description, tracking_facts(tracker)

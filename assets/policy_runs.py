"""A specification trained, judged, exported and published: the work of its asset and of `archetype train-policy`."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from filelock import FileLock

from archetype_dagster.artifacts import (
    Artifact,
    Manifest,
    file_hash,
    json_hash,
    open_artifact,
    publish_artifact,
    read_json,
    read_table,
    stage_key,
    write_json,
)
from archetype_dagster.errors import ArtifactError
from archetype_dagster.settings.policy_specs import PolicySpec
from archetype_dagster.types import Progress
from assets.execution import TrackedProgress
from assets.metadata import Metadata, curves, facts_table, numeric_values, table
from resources.compute import ComputeResource
from resources.tracking import TrackingResource

if TYPE_CHECKING:
    from archetype_dagster.policy_training import TrainedPolicy

KIND: Final = "trained_policy"
CODE_VERSION: Final = "1"
ONNX_FOLDER: Final = "onnx"
PARITY_FILE: Final = "parity.json"
_PARITY_OBSERVATIONS: Final = 1_000


@dataclass(frozen=True)
class PolicyRun:
    """What a specification is trained with.

    Attributes:
        name: of the specification, which names the folder.
        result: result folder; the policy lies in `policies/<name>` of it.
        compute: device and numerics.
        tracking: where the run is recorded.
        identity: what makes two attempts the same run there.
        log: told when an artifact on disk has to be made again.
    """

    name: str
    result: Path
    compute: ComputeResource
    tracking: TrackingResource
    identity: str
    log: logging.Logger

    @property
    def folder(self) -> Path:
        """Where policies and what belongs to their training lie."""
        return self.result / "policies"

    @property
    def directory(self) -> Path:
        """Where this policy lies."""
        return self.folder / self.name

    def tensorboard(self, key: str) -> Path:
        """Event files of one training; beside the artifact, as they hold the times at which they were written."""
        return self.folder / ".tensorboard" / f"{self.name}-{key[:12]}"


def make_policy(spec: PolicySpec, run: PolicyRun, progress: Progress) -> tuple[Artifact, bool]:
    """The trained, judged and exported policy of a specification, and whether it was there before.

    Raises:
        ArchetypeError: what `train_policy` refuses; a policy that decides otherwise once exported or read back.
    """
    # Here, as loading it takes seconds that a command's --help is not worth.
    from archetype_dagster.checkpoints import ResumePoint
    from archetype_dagster.policy_training import train_policy

    wanted = policy_manifest(spec, run.name)
    run.folder.mkdir(parents=True, exist_ok=True)
    with FileLock(run.folder / f".{run.name}.lock"):
        artifact = _reusable(run, wanted)
        if artifact is not None:
            return artifact, True
        resume = ResumePoint(run.folder / ".resume" / f"{run.name}.safetensors", wanted.key)
        tags = {"policy": run.name, "environment": spec.environment.name, "stage_key": wanted.key}
        with (
            run.tracking.run(identity=run.identity, name=run.name, tags=tags, result_root=run.result) as tracker,
            run.compute.session() as device,
        ):
            tracker.log_params(_flat(wanted.settings))
            trained = train_policy(
                spec,
                device=device,
                resume=resume,
                progress=TrackedProgress(progress, tracker),
                tensorboard=run.tensorboard(wanted.key),
            )
            with publish_artifact(run.directory, wanted) as staging:
                trained.save(staging)
                _export(trained, staging)
            resume.clear()
            artifact = open_artifact(run.directory, kind=KIND)
            tracker.log_metrics(numeric_values(describe_policy(artifact)))
            tracker.log_artifacts(artifact.directory)
    return artifact, False


def policy_manifest(spec: PolicySpec, name: str) -> Manifest:
    """The manifest, without files, of the policy that a specification is trained to; its key is the run's hash.

    The files of prices and the one a backbone starts from count by what is in them.

    Raises:
        MarketDataError: a file of prices is missing.
    """
    from archetype_dagster.policy_training import price_files

    settings, files = spec.model_dump(mode="json"), price_files(spec.universe)
    pretrained = spec.backbone.arguments.get("pretrained_path")
    # A missing file is refused where the network is made.
    if pretrained is not None and Path(pretrained).is_file():
        files["pretrained"] = file_hash(Path(pretrained))
    key = stage_key(KIND, pair=None, settings=settings, parents=files, seed=spec.seed, code_version=CODE_VERSION)
    return Manifest(
        kind=KIND,
        pair=None,
        key=key,
        settings=settings,
        parents=files,
        seed=spec.seed,
        code_version=CODE_VERSION,
        data_fingerprint=json_hash([settings["universe"], files]),
        facts={"specification": name},
    )


def describe_policy(artifact: Artifact) -> Metadata:
    """The metrics of all policies, the training's curves and plain numbers of the trained policy."""
    from archetype_dagster.policy_training.evaluation import TRAINED
    from archetype_dagster.policy_training.trained import EVALUATION_FILE
    from archetype_dagster.rl.network_files import HISTORY_FILE

    summary: dict[str, dict[str, Any]] = read_json(artifact.path(EVALUATION_FILE))
    trained = summary[TRAINED]
    history = read_table(artifact.path(HISTORY_FILE))
    parity = read_json(artifact.path(PARITY_FILE))
    return {
        "policies": table(reward_rows(summary)),
        "leads": table(lead_rows(summary)),
        "curves": curves(history, x="steps"),
        "onnx_parity": facts_table(parity),
        "onnx_max_abs_difference": float(parity["max_abs_difference"]),
        **{f"evaluation_{name}": float(value) for name, value in trained.items() if isinstance(value, int | float)},
        **{f"ahead_of_{name}": facts["ahead"] for name, facts in summary.items() if name != TRAINED},
    }


def reward_rows(summary: dict[str, dict[str, Any]]) -> list[dict[str, object]]:
    """A row for each policy, the trained one first: means over its episodes, and the interval of the reward's."""
    rows: list[dict[str, object]] = []
    for name in _trained_first(summary):
        facts = dict(summary[name])
        interval = facts.pop("reward_interval")
        means = {key: value for key, value in facts.items() if key not in ("reward", "lead", "ahead")}
        rows.append(
            {"policy": name, "reward": facts["reward"], "low": interval["low"], "high": interval["high"], **means}
        )
    return rows


def lead_rows(summary: dict[str, dict[str, Any]]) -> list[dict[str, object]]:
    """A row for each other policy: the trained one's reward over its, with interval and share of resamples ahead."""
    return [
        {
            "over": name,
            "lead": summary[name]["lead"]["estimate"],
            "low": summary[name]["lead"]["low"],
            "high": summary[name]["lead"]["high"],
            "ahead": summary[name]["ahead"],
        }
        for name in _trained_first(summary)[1:]
    ]


def _trained_first(summary: dict[str, dict[str, Any]]) -> list[str]:
    return sorted(summary, key=lambda name: "lead" in summary[name])


def _reusable(run: PolicyRun, wanted: Manifest) -> Artifact | None:
    if not run.directory.exists():
        return None
    try:
        artifact = open_artifact(run.directory, kind=KIND)
    except ArtifactError as error:
        run.log.warning("training again: %s", error)
        return None
    return artifact if artifact.manifest.key == wanted.key else None


def _export(trained: "TrainedPolicy", folder: Path) -> None:
    """Add the ONNX form, held to the policy as it is read back from its files."""
    from archetype_dagster.deployment.agent_export import check_agent, export_agent
    from archetype_dagster.deployment.onnx_agent import OnnxAgent
    from archetype_dagster.policy_training import Tasks, TrainedPolicy
    from archetype_dagster.policy_training.tasks import random_observations

    env = Tasks.of(trained.spec).evaluation
    observations = random_observations(env, _PARITY_OBSERVATIONS, seed=trained.spec.seed)
    expected = TrainedPolicy.load(folder).decide(observations)
    if not (expected == trained.decide(observations)).all():
        raise ArtifactError(f"the policy in {folder} must decide as before it was written, and does not")
    export_agent(trained.policy, folder / ONNX_FOLDER, scaler=trained.scaler)
    parity = check_agent(expected, OnnxAgent.load(folder / ONNX_FOLDER), observations)
    write_json(folder / PARITY_FILE, parity.as_dict())


def _flat(values: dict[str, Any], place: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        inner = isinstance(value, dict) and value
        flat |= _flat(value, f"{place}{name}.") if inner else {f"{place}{name}": value}
    return flat

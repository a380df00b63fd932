"""Whether an artifact on disk is the one the current settings and its current ancestors would give."""

from archetype_dagster.artifacts import Manifest, read_manifest
from archetype_dagster.errors import ArtifactError
from archetype_dagster.pipeline.stages import STAGES, stage_seed, stage_settings
from archetype_dagster.settings import Settings
from resources.storage import ArtifactStore


def verify_current(
    kind: str,
    pair: str | None,
    part: str | None = None,
    *,
    store: ArtifactStore,
    settings: Settings,
    verified: dict[str, Manifest] | None = None,
) -> Manifest:
    """The manifest of a stage's artifact after checking it and all its ancestors.

    Args:
        kind: stage.
        pair: traded pair.
        part: the month, `YYYY-MM`, or window, for a stage made in parts.
        store: where the artifacts lie.
        settings: the settings of the current run.
        verified: manifests already checked, by kind and part; filled in on the way.

    Raises:
        ArtifactError: the artifact, or one it was made from, is missing, was made with other settings,
            another seed or another version of the algorithm, or from other parents than the current ones.
    """
    verified = {} if verified is None else verified
    name = kind if part is None else f"{kind}/{part}"
    if name in verified:
        return verified[name]
    directory = store.directory(kind, pair, part)
    manifest = read_manifest(directory, kind=kind)
    differences = _differences(manifest, settings)
    if differences:
        raise ArtifactError(
            f"{directory} was made with {'; '.join(differences)}; give the settings it was made with, "
            f"or materialise {kind} again (archetype run --select {kind}+)"
        )
    for parent, recorded in manifest.parents.items():
        parent_kind, _, parent_part = parent.partition("/")
        if parent_kind not in STAGES:
            continue
        current = verify_current(
            parent_kind, pair, parent_part or None, store=store, settings=settings, verified=verified
        ).content_hash
        if current != recorded:
            raise ArtifactError(
                f"{directory} was made from {parent} {recorded[:12]}, but the current {parent} is {current[:12]}; "
                f"materialise {kind} again (archetype run --select {kind}+)"
            )
    verified[name] = manifest
    return manifest


def _differences(manifest: Manifest, settings: Settings) -> list[str]:
    stage = STAGES[manifest.kind]
    wanted = stage_settings(stage, settings, manifest.pair)
    found = manifest.settings
    names = sorted(wanted.keys() | found.keys())
    differences = [
        f"{name} = {found.get(name)!r}, not {wanted.get(name)!r} as now"
        for name in names
        if wanted.get(name) != found.get(name)
    ]
    seed = stage_seed(stage, settings)
    if manifest.seed != seed:
        differences.append(f"seed = {manifest.seed}, not {seed} as now")
    if manifest.code_version != stage.code_version:
        differences.append(f"code version {manifest.code_version}, not {stage.code_version} as now")
    return differences

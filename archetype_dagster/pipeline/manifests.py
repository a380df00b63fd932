"""What an artifact of a stage will be called: its key from settings, parents and seed, before it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archetype_dagster.artifacts import Artifact, Manifest, file_hash, json_hash, stage_key
from archetype_dagster.market.months import month_files
from archetype_dagster.market.sources import source_files
from archetype_dagster.pipeline.stages import MARKET_BARS, RAW_BARS, Stage, stage_seed, stage_settings
from archetype_dagster.settings import Settings


def stage_manifest(
    stage: Stage,
    pair: str | None,
    settings: Settings,
    parents: Sequence[Artifact],
    source: Mapping[str, str],
    part: str | None = None,
) -> Manifest:
    """The manifest, without files, of the artifact that a stage makes from its parents.

    Args:
        stage: the stage.
        pair: traded pair; None for a stage over all pairs.
        settings: the run's settings.
        parents: artifacts it is made from.
        source: hashes of the files it reads, by name; only for a stage at the graph's root.
        part: the month, `YYYY-MM`, or window, for a stage made in parts.
    """
    read = stage_settings(stage, settings, pair)
    hashes = {**source, **{parent_name(parent, stage): parent.content_hash for parent in parents}}
    seed = stage_seed(stage, settings)
    owner = pair if part is None else f"{pair}/{part}"
    key = stage_key(stage.kind, pair=owner, settings=read, parents=hashes, seed=seed, code_version=stage.code_version)
    fingerprints = sorted({_data_fingerprint(parent) for parent in parents if parent.manifest.kind != RAW_BARS})
    return Manifest(
        kind=stage.kind,
        pair=pair,
        key=key,
        settings=read,
        parents=hashes,
        seed=seed,
        code_version=stage.code_version,
        data_fingerprint="+".join(fingerprints) if fingerprints else key,
        facts={"hindsight": settings.codebook.hindsight} | ({} if part is None else {"part": part}),
    )


def source_hashes(settings: Settings, pair: str, month: str | None = None) -> dict[str, str]:
    """Hash of the files that the bars come from, so that a changed file is read again; empty without files.

    Args:
        settings: the run's settings.
        pair: traded pair.
        month: a month, `YYYY-MM`, whose files alone count.

    Raises:
        MarketDataError: a file is missing.
    """
    market, spec = settings.market, settings.pair(pair)
    files = source_files(market, spec) if month is None else month_files(market, spec, month)
    hashes = [file_hash(file) for file in files]
    if not hashes:
        return {}
    return {"source": hashes[0] if len(hashes) == 1 else json_hash(hashes)}


def parent_name(parent: Artifact, stage: Stage) -> str:
    """What a stage's manifest calls one of its parents: the kind, and the part or pair where there are several."""
    kind, part = parent.manifest.kind, parent.manifest.part
    if part is not None:
        return f"{kind}/{part}"
    return kind if stage.per_pair else f"{kind}/{parent.manifest.pair}"


def _data_fingerprint(parent: Artifact) -> str:
    return parent.content_hash if parent.manifest.kind == MARKET_BARS else parent.manifest.data_fingerprint

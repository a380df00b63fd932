"""Promotion: a new bundle beside the champion on the validation window; the alias moves only to a better one."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import dagster as dg

from archetype_dagster.artifacts import Artifact
from archetype_dagster.market.market_bars import BARS_FILE
from archetype_dagster.pipeline.stages import REGISTRY_GROUP
from archetype_dagster.settings import Settings
from assets.execution import OWNERS, PAIR_PARTITIONS, RESOURCE_KEYS, StageResources
from assets.lineage import verify_current
from assets.metadata import Metadata, table
from resources.failure import clear_failure

if TYPE_CHECKING:
    from archetype_dagster.paper_trading.champion import Comparison, Judgement
    from resources.registry import BundleRegistry, RegisteredBundle

CHAMPION_COMPARISON: Final = "champion_comparison"
# Its own id marks a run that failed because the registry did not answer: the sensor asks for it again.
AWAY_TAG: Final = "archetype/registry_away"
_SHOWN: Final = ("total_return", "sharpe", "max_drawdown")


@dg.asset(
    name=CHAMPION_COMPARISON,
    group_name=REGISTRY_GROUP,
    partitions_def=PAIR_PARTITIONS,
    required_resource_keys=RESOURCE_KEYS,
    owners=list(OWNERS),
    kinds={"onnx"},
)
def champion_comparison(
    context: dg.AssetExecutionContext, market_bars: Artifact, onnx_policy: Artifact
) -> dg.MaterializeResult[Any]:
    """The exported bundle as a registered model, judged beside the champion on the validation window; the better stays.

    The test split is not read. The comparison is written into the registry before the alias moves, so where the
    registry does not answer the run fails, the alias stays where it is, and the sensor asks for the run again. Only
    where the very move is not answered may the alias have moved; the next comparison finds it as it is.
    """
    resources = cast(StageResources, context.resources)
    pair = context.partition_key
    with clear_failure(context):
        settings = resources.settings.load()
        verify_current("onnx_policy", pair, store=resources.store, settings=settings)
        with _marked_where_away(context):
            registry = _registry(resources)
            with resources.store.lock(CHAMPION_COMPARISON, pair):
                made, candidate, champion = _compare(registry, settings, pair, market_bars, onnx_policy)
                # Beside itself a champion would lose the record of why it is one.
                if champion is None or candidate.bundle != champion.bundle:
                    registry.note(candidate, _tags(made, champion))
                if made.promotes:
                    registry.promote(candidate, instead_of=champion, pair=pair)
    verdict = _verdict(made, candidate, champion)
    resources.progress.note(context.log, f"{pair} {CHAMPION_COMPARISON}: {verdict}")
    return dg.MaterializeResult(metadata=_describe(made, candidate, champion, verdict))


@contextmanager
def _marked_where_away(context: dg.AssetExecutionContext) -> Iterator[None]:
    """Tag the run where the registry does not answer."""
    from resources.registry import RegistryAwayError

    try:
        yield
    except RegistryAwayError:
        context.instance.add_run_tags(context.run.run_id, {AWAY_TAG: context.run.run_id})
        raise


def _registry(resources: StageResources) -> "BundleRegistry":
    from resources.registry import BundleRegistry, RegistryError

    tracking = resources.tracking
    if not tracking.enabled:
        raise RegistryError("tracking is switched off, and the model registry is MLflow's; switch tracking on")
    return BundleRegistry.connect(tracking.tracking_uri, tracking.experiment, result_root=resources.store.path)


def _compare(
    registry: "BundleRegistry", settings: Settings, pair: str, market_bars: Artifact, onnx_policy: Artifact
) -> "tuple[Comparison, RegisteredBundle, RegisteredBundle | None]":
    from archetype_dagster.paper_trading.champion import Comparison, judge_bundle, validation_bars

    facts = {"archetype.pair": pair, "archetype.artifact": onnx_policy.content_hash}
    candidate = registry.register(onnx_policy.directory, pair, facts)
    champion = registry.champion(pair)
    bars = validation_bars(market_bars.path(BARS_FILE), settings.splits)
    judged = judge_bundle(onnx_policy.directory, bars, settings, pair)
    other = None
    if champion is not None:
        with tempfile.TemporaryDirectory() as folder:
            other = judge_bundle(registry.fetch(champion, Path(folder)), bars, settings, pair)
    return Comparison(judged, other, settings.champion), candidate, champion


def _tags(made: "Comparison", champion: "RegisteredBundle | None") -> dict[str, Any]:
    against = "none" if champion is None else champion.version
    values = {f"archetype.validation.{name}": getattr(made.candidate.performance, name) for name in _SHOWN}
    return {"archetype.compared_with_version": against, "archetype.promotes": made.promotes, **values}


def _verdict(made: "Comparison", candidate: "RegisteredBundle", champion: "RegisteredBundle | None") -> str:
    if champion is None:
        return f"version {candidate.version} is the first champion"
    if champion.bundle == candidate.bundle:
        return f"version {candidate.version} is the champion already"
    better = f"version {candidate.version} is better than champion {champion.version} and takes its place"
    return better if made.promotes else f"version {candidate.version} is no better than champion {champion.version}"


def _describe(
    made: "Comparison", candidate: "RegisteredBundle", champion: "RegisteredBundle | None", verdict: str
) -> Metadata:
    def row(role: str, registered: "RegisteredBundle", judged: "Judgement") -> dict[str, object]:
        metrics = {name: getattr(judged.performance, name) for name in _SHOWN}
        return {"role": role, "version": registered.version, "net_value": judged.net_value, **metrics}

    rows = [row("candidate", candidate, made.candidate)]
    if champion is not None and made.champion is not None:
        rows.append(row("champion", champion, made.champion))
    return {
        "reused": False,
        "verdict": verdict,
        "promoted": made.promotes,
        "model": candidate.name,
        "version": candidate.version,
        "metric": made.settings.metric,
        "margin": made.settings.margin,
        "validation_bars": made.candidate.bars,
        "comparison": table(rows),
        "details": dg.MetadataValue.json(made.as_dict()),
    }

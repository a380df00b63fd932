"""Market data: validated bars, and the features and trade costs computed from them."""

import warnings
from typing import TYPE_CHECKING

import dagster as dg
import numpy as np
import polars as pl

from archetype_dagster.artifacts import Artifact, read_json
from archetype_dagster.errors import ArtifactError
from archetype_dagster.pipeline.stages import RAW_BARS
from archetype_dagster.settings import Settings
from archetype_dagster.types import FloatArray, JsonDict
from assets.execution import Roots, partition_of, run_stage, stage_asset
from assets.metadata import Metadata, facts_table, picture, table
from resources.storage import ArtifactStore

if TYPE_CHECKING:
    from archetype_dagster.market.raw_bars import RawBars
    from archetype_dagster.pipeline.computation import StageRun

with warnings.catch_warnings():
    # The mapping of a pair to all its months is one that Dagster calls beta.
    warnings.simplefilter("ignore", dg.BetaWarning)
    _EVERY_MONTH = dg.MultiToSingleDimensionPartitionMapping("pair")


@stage_asset()
def raw_bars(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Artifact]:
    """What a vendor's records of each bar of one month say by themselves; made where `market.by_month` is on."""

    _, month = partition_of(context)

    def compute(run: "StageRun") -> "RawBars":
        from archetype_dagster.market.months import month_bars

        return month_bars(run.settings.market, run.settings.pair(run.pair), str(month))

    def roots(settings: Settings, pair: str, store: ArtifactStore) -> Roots:
        from archetype_dagster.pipeline.manifests import source_hashes

        return Roots(files=source_hashes(settings, pair, month))

    return run_stage(context, [], roots=roots, compute=compute, describe=_describe_month)


@stage_asset(deps=[dg.AssetDep(RAW_BARS, partition_mapping=_EVERY_MONTH)])
def market_bars(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Artifact]:
    """Validated bars of the pair with their order book, from the configured source or from all its months."""

    return run_stage(context, [], roots=bars_roots, describe=_describe_bars)


@stage_asset()
def feature_table(context: dg.AssetExecutionContext, market_bars: Artifact) -> dg.MaterializeResult[Artifact]:
    """The 45 features, the cost of every trade and the scaler fitted on the training split."""

    return run_stage(context, [market_bars], describe=_describe_features)


def bars_roots(settings: Settings, pair: str, store: ArtifactStore) -> Roots:
    """The source's files, or every month that they have records of; `ArtifactError` where one was not made yet."""
    from archetype_dagster.market.months import covered_months
    from archetype_dagster.pipeline.manifests import source_hashes

    if not settings.market.by_month:
        return Roots(files=source_hashes(settings, pair))
    months = covered_months(settings.market, settings.pair(pair))
    missing = [month for month in months if not store.holds(RAW_BARS, pair, month)]
    if missing:
        raise ArtifactError(
            f"{len(missing)} of {len(months)} months of {pair} are not made yet, the first is {missing[0]}; "
            f"materialise {RAW_BARS} of them (archetype run --select {RAW_BARS})"
        )
    return Roots(parts=[store.open(RAW_BARS, pair, month) for month in months])


def _describe_month(artifact: Artifact) -> Metadata:
    from archetype_dagster.market.market_bars import REPORT_FILE

    report: JsonDict = read_json(artifact.path(REPORT_FILE))
    rows = [{"of": kind, **{name: told[name] for name in told if name != "faults"}} for kind, told in report.items()]
    faults = [row for told in report.values() for row in told["faults"]]
    return {
        "dagster/row_count": max((row["bars"] for row in rows), default=0),
        "month": str(artifact.manifest.part),
        "no_bars": not any(row["bars"] for row in rows),
        "records": table(rows),
        "faults": table(faults),
        "faulty": sum(row["count"] for row in faults if row["policy"] is not None),
    }


def _describe_bars(artifact: Artifact) -> Metadata:
    from archetype_dagster.market.market_bars import REPORT_FILE
    from archetype_dagster.pipeline.inputs import bars_of
    from archetype_dagster.reporting.plots import bars_quality, price_history

    bars = bars_of(artifact)
    report: JsonDict = read_json(artifact.path(REPORT_FILE))
    gaps, ingestion = report.pop("gaps"), report.pop("ingestion")
    stamps, close = bars["timestamp"].dt.replace_time_zone(None).to_numpy(), bars["close"].to_numpy()
    return {
        "dagster/row_count": bars.height,
        "first_bar": report["first_timestamp"],
        "last_bar": report["last_timestamp"],
        "book_source": ", ".join(report["book_sources"]),
        "quality": facts_table(report),
        "gaps": table(gaps),
        **_describe_ingestion(ingestion),
        "quality_picture": picture(
            bars_quality(stamps, _spread_bps(bars), _found(report, ingestion), bar_minutes=report["bar_minutes"]),
            "quality",
        ),
        "price": picture(price_history(stamps, close, title=f"{artifact.manifest.pair} close"), "close"),
    }


def _spread_bps(bars: pl.DataFrame) -> FloatArray:
    bid, ask = pl.col("bid1_price"), pl.col("ask1_price")
    spread: FloatArray = bars.select(2e4 * (ask - bid) / (ask + bid)).to_series().to_numpy()
    return spread


def _found(report: JsonDict, ingestion: JsonDict | None) -> dict[str, int]:
    """Faults by name and unit: of the raw records where there were some, else of the bars."""
    if ingestion is not None:
        return {f"{row['fault'].replace('_', ' ')} ({row['unit']})": row["count"] for row in ingestion["faults"]}
    return {name.removesuffix("_rows").replace("_", " "): report[name] for name in report if name.endswith("_rows")}


def _describe_ingestion(report: JsonDict | None) -> Metadata:
    if report is None:
        return {}
    faults = report["faults"]
    return {
        "records": facts_table({name: value for name, value in report.items() if name != "faults"}),
        "faults": table(faults),
        "faulty": sum(row["count"] for row in faults if row["policy"] is not None),
    }


def _describe_features(artifact: Artifact) -> Metadata:
    from archetype_dagster.market.features import FEATURE_NAMES
    from archetype_dagster.pipeline.inputs import table_of
    from archetype_dagster.reporting.plots import histograms

    features = table_of(artifact)
    frame = features.features
    traded = {name: features.costs[name] / frame["mark"] for name in features.costs.columns if name != "timestamp"}
    spread = [{"change": name, "median quote units per mark": float(np.median(c))} for name, c in traded.items()]
    return {
        "dagster/row_count": frame.height,
        "first_row": str(frame["timestamp"][0]),
        "last_row": str(frame["timestamp"][-1]),
        "features": len(FEATURE_NAMES),
        "costs": table(spread),
        "distributions": picture(histograms(frame.select(FEATURE_NAMES).to_numpy(), FEATURE_NAMES), "features"),
    }

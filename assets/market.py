"""Market data: validated bars, and the features and trade costs computed from them."""

import dagster as dg
import numpy as np
import polars as pl

from archetype_dagster.artifacts import Artifact, read_json
from archetype_dagster.market.features import FEATURE_NAMES
from archetype_dagster.market.market_bars import REPORT_FILE
from archetype_dagster.pipeline.inputs import bars_of, table_of
from archetype_dagster.pipeline.manifests import source_hashes
from archetype_dagster.types import FloatArray, JsonDict
from assets.execution import run_stage, stage_asset
from assets.metadata import Metadata, facts_table, picture, table


@stage_asset()
def market_bars(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Artifact]:
    """Validated bars of the pair with their order book, from the configured source."""

    return run_stage(context, [], source=source_hashes, describe=_describe_bars)


@stage_asset()
def feature_table(context: dg.AssetExecutionContext, market_bars: Artifact) -> dg.MaterializeResult[Artifact]:
    """The 45 features, the cost of every trade and the scaler fitted on the training split."""

    return run_stage(context, [market_bars], describe=_describe_features)


def _describe_bars(artifact: Artifact) -> Metadata:
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

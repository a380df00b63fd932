"""Market data: validated bars, and the features and trade costs computed from them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import dagster as dg
import numpy as np
import polars as pl

from archetype_dagster.artifacts import Artifact, file_hash, json_hash, read_json, write_json
from archetype_dagster.market.feature_table import FeatureTable, build_feature_table
from archetype_dagster.market.features import FEATURE_NAMES
from archetype_dagster.market.sources import bars_with_report, source_files
from archetype_dagster.market.validation import BarsReport
from archetype_dagster.settings import Settings
from archetype_dagster.types import FloatArray, JsonDict
from assets.execution import StageRun, run_stage, stage_asset
from assets.inputs import BARS_FILE, bars_of, table_of
from assets.metadata import Metadata, facts_table, picture, table

REPORT_FILE: Final = "report.json"


@dataclass(frozen=True)
class MarketBars:
    """Bars and the report on them as they came."""

    bars: pl.DataFrame
    report: BarsReport

    def save(self, directory: Path) -> None:
        """Write bars.parquet and report.json into an existing folder."""
        self.bars.write_parquet(directory / BARS_FILE)
        write_json(directory / REPORT_FILE, self.report.as_dict())


@stage_asset()
def market_bars(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Artifact]:
    """Validated bars of the pair with their order book, from the configured source."""

    def compute(run: StageRun) -> MarketBars:
        return MarketBars(*bars_with_report(run.settings, run.pair))

    return run_stage(context, [], source=_source_files, compute=compute, describe=_describe_bars)


@stage_asset()
def feature_table(context: dg.AssetExecutionContext, market_bars: Artifact) -> dg.MaterializeResult[Artifact]:
    """The 45 features, the cost of every trade and the scaler fitted on the training split."""

    def compute(run: StageRun) -> FeatureTable:
        return build_feature_table(bars_of(market_bars), run.settings, run.pair)

    return run_stage(context, [market_bars], compute=compute, describe=_describe_features)


def _source_files(settings: Settings, pair: str) -> dict[str, str]:
    """Hash of the files that the bars come from, so that a changed file is read again."""
    hashes = [file_hash(file) for file in source_files(settings.market, settings.pair(pair))]
    if not hashes:
        return {}
    return {"source": hashes[0] if len(hashes) == 1 else json_hash(hashes)}


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

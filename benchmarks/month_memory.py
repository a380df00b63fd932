"""The most memory that one month of raw bars takes: 2.7 million snapshots of 25 levels and as many trades.

Run with `python benchmarks/month_memory.py [--days N ...]`. Writes daily files in the layout of Tardis, a record a
second, and materialises their month as Dagster does, in a process of its own. Stops where that takes 2 GB or more.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import date, timedelta
from pathlib import Path
from typing import NamedTuple

import dagster as dg
from _machine import machine_line
from ingestion import write_day

from archetype_dagster.definitions import build_defs
from archetype_dagster.jobs import MONTHS
from archetype_dagster.market.raw_bars import RawBars
from resources.settings import SettingsResource
from resources.storage import ArtifactStore
from resources.tracking import TrackingResource

FIRST_DAY = date(2024, 1, 1)
ROWS_OF_A_DAY = 86_400
LIMIT_MIB = 2e9 / 2**20


class Measured(NamedTuple):
    """Records read, bars made, wall time, and the process's most resident memory, with its libraries, in MiB."""

    records: int
    bars: int
    seconds: float
    peak: float


def write_dated_day(folder: Path, rows: int, day: int, seed: int) -> None:
    """A day's two files under the names that the vendor's own client gives them."""
    write_day(folder, rows, day, seed)
    for kind in ("book_snapshot_25", "trades"):
        name = f"binance-futures_{kind}_{FIRST_DAY + timedelta(day)}_BTCUSDT.csv.gz"
        (folder / kind / f"{day:03}.csv.gz").rename(folder / kind / name)


def materialise(folder: Path, result: Path) -> Measured:
    overrides = {
        "market.source": "tardis-book-snapshot",
        "market.path": str(folder / "book_snapshot_25"),
        "market.prices_source": "tardis-trades",
        "market.prices_path": str(folder / "trades"),
        "market.by_month": True,
    }
    definitions = build_defs(
        {
            "settings": SettingsResource(overrides=overrides),
            "store": ArtifactStore(root=str(result)),
            "tracking": TrackingResource(enabled=False),
        }
    )
    begun = time.perf_counter()
    with dg.DagsterInstance.ephemeral() as instance:
        done = definitions.resolve_job_def(MONTHS).execute_in_process(
            partition_key=f"{FIRST_DAY}|BTC",
            instance=instance,
            run_config={"loggers": {"console": {"config": {"log_level": "ERROR"}}}},
        )
    seconds = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    month = RawBars.load(done.output_for_node("raw_bars").directory)
    parts = [part for _, part in month.parts()]
    return Measured(sum(part.records for part in parts), max(part.rows.height for part in parts), seconds, peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, nargs="+", default=[7, 31], help="days of the month that there are")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(machine_line("polars", "dagster"))
    with (
        tempfile.TemporaryDirectory() as scratch,
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool,
    ):
        folder, written = Path(scratch) / "archive", 0
        for days in sorted(options.days):
            for day in range(written, days):
                pool.submit(write_dated_day, folder, ROWS_OF_A_DAY, day, options.seed).result()
            written = days
            packed = sum(file.stat().st_size for file in folder.rglob("*.gz"))
            made = pool.submit(materialise, folder, Path(scratch) / f"result-{days}").result()
            print(
                f"{days:2} days, {packed / 1e9:4.1f} GB packed, {made.records:,} records, {made.bars:,} bars: "
                f"{made.seconds:5.0f} s, peak {made.peak:5.0f} MiB",
                flush=True,
            )
            if made.peak >= LIMIT_MIB:
                sys.exit(f"the peak must stay below {LIMIT_MIB:.0f} MiB")


if __name__ == "__main__":
    main()

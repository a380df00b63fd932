"""Tardis files (gzip CSV, 25-level snapshots and trades) to 10-minute bars: ours against plain pandas, time and memory.

Run with `python benchmarks/ingestion.py [--rows N --files N]`. Each run is a process of its own, and both ways must
give the same bars, or the benchmark stops.
"""

from __future__ import annotations

import argparse
import gzip
import multiprocessing
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import polars as pl
from _machine import machine_line

from archetype_dagster.market.bars import book_columns
from archetype_dagster.market.sources import bars_with_report
from archetype_dagster.settings import load_settings

LEVELS = 25
BAR_MINUTES = 10
BAR_MICROSECONDS = BAR_MINUTES * 60_000_000
BARS_PER_FILE = 144
START = 1_704_067_200_000_000
HEAD = ("exchange", "symbol", "timestamp", "local_timestamp")
PRICES = ("open", "high", "low", "close", "volume", "taker_buy_volume")


def arrival_times(rng: np.random.Generator, rows: int, day: int) -> np.ndarray:
    """Sorted times of a day's records, int64 (rows,) microseconds, with one at the day's either end."""
    length = BARS_PER_FILE * BAR_MICROSECONDS
    offsets = np.sort(rng.integers(1, length, rows))
    offsets[[0, -1]] = 1, length - 1
    return START + day * length + offsets


def write_day(folder: Path, rows: int, day: int, seed: int) -> None:
    """One day's `book_snapshot_25` and `trades` files with `rows` rows each."""
    rng = np.random.default_rng((seed, day))
    mid = 40_000 + rng.normal(0, 0.5, rows).cumsum()
    head = {"exchange": "binance-futures", "symbol": "BTCUSDT"}
    book: dict[str, object] = {}
    gaps = rng.integers(1, 40, (2, LEVELS, rows), dtype=np.int32).cumsum(axis=1)
    amounts = rng.gamma(0.7, 1.5, (2, LEVELS, rows)) + 0.001
    for level in range(LEVELS):
        for name, sign, side in (("asks", 1, 0), ("bids", -1, 1)):
            book[f"{name}[{level}].price"] = np.rint(mid * 100 + sign * gaps[side, level]) / 100
            book[f"{name}[{level}].amount"] = np.round(amounts[side, level], 3)
    trades = {
        "id": np.arange(rows) + day * rows,
        "side": np.where(rng.random(rows) < 0.5, "buy", "sell"),
        "price": np.rint(mid * 100) / 100,
        "amount": np.round(rng.gamma(0.5, 0.2, rows) + 0.001, 3),
    }
    for kind, columns in (("book_snapshot_25", book), ("trades", trades)):
        arrival = arrival_times(rng, rows, day)
        clocks = {"timestamp": arrival - 5_000, "local_timestamp": arrival}
        table = pl.select(*(pl.lit(text).alias(name) for name, text in head.items())).join(
            pl.DataFrame(clocks | columns), how="cross"
        )
        target = folder / kind / f"{day:03}.csv.gz"
        target.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(target, "wb", compresslevel=6) as packed:
            table.write_csv(packed)


def our_bars(folder: Path) -> pl.DataFrame:
    overrides = {
        "market.source": "tardis-book-snapshot",
        "market.path": str(folder / "book_snapshot_25"),
        "market.prices_source": "tardis-trades",
        "market.prices_path": str(folder / "trades"),
        "market.bar_minutes": BAR_MINUTES,
    }
    return bars_with_report(load_settings("smoke", overrides), "BTC")[0]


def pandas_bars(folder: Path) -> pl.DataFrame:
    """The same bars the plain way: all files read, sorted, grouped and joined."""

    def read(kind: str) -> pd.DataFrame:
        files = sorted((folder / kind).iterdir())
        return pd.concat(pd.read_csv(file) for file in files).sort_values("local_timestamp", kind="stable")

    trades = read("trades")
    trades["end"] = trades["local_timestamp"] // BAR_MICROSECONDS * BAR_MICROSECONDS + BAR_MICROSECONDS
    by_bar = trades.groupby("end")
    bars = by_bar["price"].agg(open="first", high="max", low="min", close="last")
    bars["volume"] = by_bar["amount"].sum()
    bars["taker_buy_volume"] = trades[trades["side"] == "buy"].groupby("end")["amount"].sum()
    joined = pd.merge_asof(bars.reset_index(), read("book_snapshot_25"), left_on="end", right_on="local_timestamp")
    named = {
        f"{side}s[{level}].{theirs}": f"{side}{level + 1}_{ours}"
        for level in range(LEVELS)
        for side in ("ask", "bid")
        for theirs, ours in (("price", "price"), ("amount", "size"))
    }
    table = pl.DataFrame({name: joined[name].to_numpy() for name in ("end", *PRICES, *named)})
    return table.rename({"end": "timestamp", **named})


WAYS = {"ours": our_bars, "pandas": pandas_bars}


class Measured(NamedTuple):
    """Bars; seconds by the clock and of all cores; the process's most resident memory, libraries included, in MiB."""

    bars: pl.DataFrame
    seconds: float
    core_seconds: float
    peak: float


def measure(way: str, folder: Path) -> Measured:
    begun, worked = time.perf_counter(), time.process_time()
    bars = WAYS[way](folder)
    seconds, core_seconds = time.perf_counter() - begun, time.process_time() - worked
    return Measured(bars, seconds, core_seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10)


def check_equal(ours: pl.DataFrame, theirs: pl.DataFrame) -> None:
    ends = ours["timestamp"].dt.epoch("us").to_numpy()
    np.testing.assert_array_equal(ends, theirs["timestamp"].to_numpy())
    columns = [*PRICES, *book_columns(LEVELS)]
    np.testing.assert_allclose(ours.select(columns).to_numpy(), theirs.select(columns).to_numpy(), rtol=1e-9)


def days_of(scratch: Path, count: int) -> tuple[Path, int, int]:
    """A folder with the first `count` days, and their bytes packed and unpacked."""
    folder, packed, plain = scratch / f"days-{count}", 0, 0
    for kind in ("book_snapshot_25", "trades"):
        (folder / kind).mkdir(parents=True)
        for file in sorted((scratch / "all" / kind).iterdir())[:count]:
            (folder / kind / file.name).hardlink_to(file)
            packed += file.stat().st_size
            # A gzip file ends with the length of what it holds.
            plain += int.from_bytes(file.read_bytes()[-4:], "little")
    return folder, packed, plain


def compare(scratch: Path, rows: int, files: int, repeats: int, seed: int) -> None:
    # A fresh process for each task: a peak is never forgotten, and a child begins with its parent's.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for day in range(files):
            pool.submit(write_day, scratch / "all", rows, day, seed).result()
        print("files      gz     csv  way        time  all cores        gz       csv     peak")
        for count in sorted({files, *(2**power for power in range(files.bit_length()))}):
            folder, packed, plain = days_of(scratch, count)
            # Turn by turn, so that whatever else the machine does meets both.
            runs = [{way: pool.submit(measure, way, folder).result() for way in WAYS} for _ in range(repeats)]
            for run in runs:
                check_equal(*(measured.bars for measured in run.values()))
            for way in WAYS:
                seconds, core_seconds = (min(run[way][place] for run in runs) for place in (1, 2))
                print(
                    f"{count:5} {packed / 1e6:4.0f} MB {plain / 1e6:4.0f} MB  {way:6} {seconds:6.2f} s "
                    f"{core_seconds:8.2f} s {packed / 1e6 / seconds:4.0f} MB/s {plain / 1e6 / seconds:4.0f} MB/s "
                    f"{max(run[way].peak for run in runs):4.0f} MiB",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of each file, of snapshots and of trades")
    parser.add_argument("--files", type=int, default=8, help="most files of each kind, one a day")
    parser.add_argument("--repeats", type=int, default=3, help="runs of which the fastest counts, and the largest peak")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(machine_line("polars", "pandas"))
    print(f"{options.rows:,} snapshots of {LEVELS} levels and as many trades a file, seed {options.seed}")
    with tempfile.TemporaryDirectory() as scratch:
        compare(Path(scratch), options.rows, options.files, options.repeats, options.seed)


if __name__ == "__main__":
    main()

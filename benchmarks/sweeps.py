"""Trials per second and CPU use of a sweep at 1, 2, ... processes, on work of a fixed size and on none.

Run with `python benchmarks/sweeps.py`; nothing else should run meanwhile. `trials/s` counts from the first trial's
start to the last one's end, so without the workers' start, which stands beside it in seconds; `cores` is the CPU time
of all processes, that start included, by the whole time. The figures of a row are those of its fastest repeat; repeats
of the rows take turns. `idle` trials do nothing: what is left is the sweep's own work, most of it waiting for the disk.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from _machine import machine_line
from threadpoolctl import threadpool_limits

from archetype_dagster.sweeps import RLHPOSweeper, SearchSpaceDef

SPACE = {"x": SearchSpaceDef("uniform", -1, 1)}


@dataclass(frozen=True)
class Figures:
    trials_per_second: float
    start_seconds: float
    cores: float


def busy(params: dict[str, Any], products: int) -> float:
    """So many products of matrices, one thread."""
    matrix, total = np.full((160, 160), 1e-3), 0.0
    with threadpool_limits(1):
        for _ in range(products):
            total += float((matrix @ matrix)[0, 0])
    return float(params["x"]) + total


def idle(params: dict[str, Any]) -> float:
    """Nothing."""
    return float(params["x"])


def cpu_seconds() -> float:
    """Of this process and of those it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measured(objective: Callable[..., float], trials: int, jobs: int) -> Figures:
    """One sweep in a journal of its own."""
    with tempfile.TemporaryDirectory() as folder:
        begin, cpu = time.perf_counter(), cpu_seconds()
        sweeper = RLHPOSweeper("bench", trials, SPACE, Path(folder) / "study.journal", n_jobs=jobs, sampler="random")
        table = sweeper.sweep(objective).trials
        wall = time.perf_counter() - begin
        used = cpu_seconds() - cpu
    ended = table.select(pl.col("started") + pl.duration(microseconds=pl.col("seconds") * 1e6)).to_series().max()
    span = (ended - table["started"].min()).total_seconds()
    return Figures(trials / span, wall - span, used / wall)


def products_for(milliseconds: float) -> int:
    """Products of matrices that take about so long here."""
    begin = time.perf_counter()
    busy({"x": 0.0}, 200)
    return max(1, round(milliseconds / 1e3 * 200 / (time.perf_counter() - begin)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--milliseconds", type=float, default=250, help="of work in a busy trial")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    products = products_for(options.milliseconds)
    rows = [
        (name, objective, jobs)
        for name, objective in ((f"busy, {products} products", partial(busy, products=products)), ("idle", idle))
        for jobs in options.jobs
    ]
    found: dict[tuple[str, int], Figures] = {}
    for _ in range(options.repeats):
        for name, objective, jobs in rows:
            figures = measured(objective, options.trials, jobs)
            best = found.setdefault((name, jobs), figures)
            if figures.trials_per_second > best.trials_per_second:
                found[name, jobs] = figures
    print(machine_line("optuna", "numpy"))
    print(f"{options.trials} trials, journal storage, best of {options.repeats}")
    print(f"{'':24}{'processes':>10}{'trials/s':>10}{'ratio':>7}{'start s':>9}{'cores':>7}")
    for name, _, jobs in rows:
        figures, first = found[name, jobs], found[name, options.jobs[0]]
        ratio = figures.trials_per_second / first.trials_per_second
        print(
            f"{name:24}{jobs:10}{figures.trials_per_second:10.2f}{ratio:7.2f}"
            f"{figures.start_seconds:9.2f}{figures.cores:7.2f}"
        )


if __name__ == "__main__":
    main()

"""What a pair-month costs: processor time, memory and disk of one pair over spans of different length.

Run with `python benchmarks/scaling.py [--profile P] [--months N N]`. Each span is computed in a process of its own, on
one thread and on the CPU, so that a stage's processor time is its time on a free core. A line through two spans tells
what grows with months from what a profile's budgets fix; the last table divides some nodes by it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from _machine import machine_line

START = datetime(2022, 1, 1, tzinfo=UTC)
MONTH = timedelta(days=30.4375)
# Of a span: training, validation and test.
SHARES = (0.6, 0.2, 0.2)
NODES = {"small": (2, 8), "workstation": (16, 64), "server": (64, 256)}
# What stays free for the system, the queue's own programs and the page cache.
USABLE = 0.75


class Stage(NamedTuple):
    """Processor time in seconds and bytes on disk of one stage."""

    seconds: float
    size: int


class Span(NamedTuple):
    """Stages of one span, and the process's most resident memory, with its libraries, in MiB."""

    stages: dict[str, Stage]
    peak: float


def settings_of(months: int) -> dict[str, object]:
    """The synthetic market over so many months, split by `SHARES`."""
    days = (months * MONTH) // timedelta(days=1)
    train = START + timedelta(days=round(days * SHARES[0]))
    validation = START + timedelta(days=round(days * (SHARES[0] + SHARES[1])))
    end = START + timedelta(days=days)
    bounds = {"train": (START, train), "validation": (train, validation), "test": (validation, end)}
    splits = {
        f"splits.{name}_{side}": at
        for name, pair in bounds.items()
        for side, at in zip(("start", "end"), pair, strict=True)
    }
    times: dict[str, datetime] = {"market.synthetic.start": START, "market.synthetic.end": end, **splits}
    return {name: time.isoformat() for name, time in times.items()}


def measure(profile: str, months: int) -> Span:
    import torch

    from archetype_dagster.pipeline.cache import StageCache
    from archetype_dagster.pipeline.computation import COMPUTATIONS
    from archetype_dagster.pipeline.stages import CORE_STAGES
    from archetype_dagster.settings import load_settings
    from archetype_dagster.types import NoProgress

    torch.set_num_threads(1)
    settings = load_settings(profile, settings_of(months))
    stages: dict[str, Stage] = {}
    with tempfile.TemporaryDirectory() as folder:
        cache = StageCache(Path(folder), torch.device("cpu"), NoProgress())
        for kind in [kind for kind in CORE_STAGES if kind in COMPUTATIONS]:
            begun = processor_time()
            artifact = cache.artifact(kind, settings, "ETH")
            size = sum(path.stat().st_size for path in artifact.directory.rglob("*") if path.is_file())
            stages[kind] = Stage(processor_time() - begun, size)
    return Span(stages, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10)


def processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def print_tables(first: int, second: int, short: Span, long: Span) -> None:
    more = second - first
    print(f"| stage | s at {first} months | s at {second} | s a month more | MiB at {first} | MiB at {second} |")
    print("| -- | --: | --: | --: | --: | --: |")
    for kind, (seconds, size) in short.stages.items():
        longer = long.stages[kind]
        slope = (longer.seconds - seconds) / more
        print(
            f"| {kind} | {seconds:.1f} | {longer.seconds:.1f} | {slope:.2f} | {size / 2**20:.1f} | "
            f"{longer.size / 2**20:.1f} |"
        )
    totals = [sum(stage.seconds for stage in span.stages.values()) for span in (short, long)]
    sizes = [sum(stage.size for stage in span.stages.values()) / 2**20 for span in (short, long)]
    print(
        f"| all | {totals[0]:.1f} | {totals[1]:.1f} | {(totals[1] - totals[0]) / more:.2f} | {sizes[0]:.1f} | "
        f"{sizes[1]:.1f} |"
    )
    print(
        f"\nA pair of {second} months: {totals[1] / second:.1f} core-seconds and {sizes[1] / second:.1f} MiB on disk a "
        f"pair-month; peak memory {short.peak:.0f} MiB at {first} months, {long.peak:.0f} MiB at {second}.\n"
    )
    print(f"| node | cores | GiB | pairs at once | pairs an hour, {second} months each |")
    print("| -- | --: | --: | --: | --: |")
    for name, (cores, gibibytes) in NODES.items():
        at_once = min(cores, int(gibibytes * 1024 * USABLE / long.peak))
        print(f"| {name} | {cores} | {gibibytes} | {at_once} | {at_once * 3600 / totals[1]:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="smoke")
    parser.add_argument("--months", type=int, nargs=2, default=(6, 24), metavar="N")
    chosen = parser.parse_args()
    first, second = sorted(chosen.months)
    print(f"{machine_line('torch', 'polars')}; profile {chosen.profile}\n")
    spans = []
    for months in (first, second):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            spans.append(process.submit(measure, chosen.profile, months).result())
    print_tables(first, second, *spans)


if __name__ == "__main__":
    main()
